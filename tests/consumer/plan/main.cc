// Plans a run without libtorch: tensor memory of each rank and bytes that it sends in a step, the step time, and the
// schedule. Usage: plan_run RUN_FILE [section.key=VALUE ...]
#include <fmt/format.h>
#include <orthant/advice/advised_plan.h>
#include <orthant/base/errors.h>
#include <orthant/config/config.h>
#include <orthant/library/run.h>

#include <cstdio>
#include <string>
#include <vector>

int main(int argc, char** argv) try {
  if (argc < 2) throw orthant::ConfigError("usage: plan_run RUN_FILE [section.key=VALUE ...]");
  const std::vector<std::string> settings(argv + 2, argv + argc);
  const orthant::RunToPlan run = orthant::run_to_plan(orthant::load_config(argv[1], settings));
  const orthant::Plan plan = orthant::advised_plan(run.config, run.facts);

  const std::vector<int64_t> sent = plan.communication_bytes();  // by class of equal ranks
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    fmt::print("rank {}: {} bytes of tensors, sends {} bytes in a step\n", rank, plan.memory_of(rank).total(),
               sent[static_cast<size_t>(plan.classes.of(rank))]);
  }
  if (plan.step_time) fmt::print("step: {:.9f} s\n", plan.step_time->seconds);
  fmt::print("{}", orthant::to_csv(plan.schedule));
} catch (const orthant::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return orthant::kFailed;
}
