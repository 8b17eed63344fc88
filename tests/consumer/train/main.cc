// Trains the run of a run file, with its ranks as threads of this process, and checks that the loss falls.
// Usage: train_ranks RUN_FILE [section.key=VALUE ...]
#include <fmt/format.h>
#include <orthant/advice/advised_plan.h>
#include <orthant/base/errors.h>
#include <orthant/comm/thread_ranks.h>
#include <orthant/library/run.h>
#include <orthant/runtime/session.h>
#include <orthant/runtime/snapshot.h>
#include <orthant/runtime/training_data.h>

#include <cstdio>
#include <string>
#include <vector>

using namespace orthant;

// The part of one rank: its weights, and all steps. Rank 0 records the loss of each step.
void train_rank(const Plan& plan, const Loader& samples, const Rendezvous& rendezvous, int rank,
                std::vector<double>& losses) {
  Comm comm(plan.mesh, rank, rendezvous);
  Session session(plan, samples, comm);
  load_first_weights(plan, session.weights());
  const auto record = [&](const StepResult& result) {
    if (rank != 0) return;
    fmt::print("step {} loss {:.17g}\n", result.step, result.loss);
    losses.push_back(result.loss);
  };
  for (int64_t step = 1; step <= plan.config.training.steps; ++step) session.advance(step, {}, record);
  session.finalize_pending_step(record);
}

int main(int argc, char** argv) try {
  if (argc < 2) throw ConfigError("usage: train_ranks RUN_FILE [section.key=VALUE ...]");
  const std::vector<std::string> settings(argv + 2, argv + argc);
  const Config config = complete_run(load_config(argv[1], settings));
  const TrainingData data = open_training_data(config);
  const auto ranks = static_cast<int>(config.run.ranks);
  const Plan plan = advised_plan(config, facts_of(data, ranks));

  std::vector<double> losses;
  run_ranks(ranks,
            [&](const Rendezvous& rendezvous, int rank) { train_rank(plan, data.train, rendezvous, rank, losses); });
  if (losses.back() < losses.front()) return kDone;
  std::fprintf(stderr, "error: the loss does not fall: it is %f in step 1, and %f in the last step\n", losses.front(),
               losses.back());
  return kFailed;
} catch (const Error& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return kFailed;
}
