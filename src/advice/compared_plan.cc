#include "advice/compared_plan.h"

#include "advice/fit.h"

namespace orthant {

void set_costs(ComparedPlan& compared, const Plan& plan) {
  compared.memory_bytes = plan.largest_memory_bytes();
  compared.sent_bytes = plan.largest_communication_bytes();
  compared.step_seconds = plan.step_time ? plan.step_time->seconds : 0;
  compared.fits = fit_of(plan).fits();
}

}  // namespace orthant
