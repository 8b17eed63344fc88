#include "runtime/gpu_groups.h"

#include "base/text.h"
#include "plan/nccl_groups.h"
#include "runtime/from_plan.h"

namespace orthant {

void open_gpu_groups(const Plan& plan, Comm& comm) {
  const at::Device device = device_of(plan.config);
  if (device.is_cpu() || plan.mesh.size() == 1) return;
  const NcclGroups all = nccl_groups(plan);
  for (const auto& [axes, channel] : all.groups) {
    channel == 0 ? comm.prepare(split(axes, '+'), device) : comm.channel(channel).prepare(split(axes, '+'), device);
  }
  if (!all.directions.empty()) comm.prepare_messages(kOverPipeline, device, all.directions);
}

}  // namespace orthant
