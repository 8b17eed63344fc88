#include "parallel/tensor/plan.h"

namespace orthant {

Layout weight_layout(Stationary what) {
  Layout layout = whole(2);
  layout.split[what == Stationary::output ? 0 : 1] = {std::string(kColumn)};
  layout.split[what == Stationary::output ? 1 : 0] = {std::string(kRow)};
  return layout;
}

Stationary stationary_of(int64_t in, int64_t out) { return 3 * in <= 2 * out ? Stationary::output : Stationary::input; }

}  // namespace orthant
