// Plans and runs one combination, and compares it with one device. Plain operations check that device in turn.
#include "tests/combinations/outcome.h"

#include "advice/advised_plan.h"
#include "base/errors.h"
#include "base/text.h"
#include "plan/rounding.h"
#include "tests/support/plain_training.h"
#include "tests/support/ways_out.h"

namespace orthant {
namespace {

// All settings as text, without their origins.
std::string text_of(Config config) {
  config.origins.clear();
  return print_config(config);
}

// The same run on one device, without recomputation and with the update after backward.
Config one_device(Config config) {
  config.parallelism = {};
  config.activation_checkpoint = {};
  config.optimizer.in_backward = false;
  config.run.ranks = 1;
  return config;
}

// Compares the engine's run on one rank with plain operations, which do not use the engine. Throws LogicError if they
// differ.
void require_plain(const Plan& plan, const TrainingData& data, const OracleTrace& trace) {
  if (plan.config.training.dtype != "float64") return;
  constexpr double kBound = 1e-10;
  const std::vector<StepTrace> plain = train_plain(plan, data, kSteps);
  const auto require_close = [&](size_t step, const std::string& what, double error) {
    if (!(error <= kBound)) {
      throw LogicError(
          fmt::format("step {}: {} on one rank is off by {:.2e} relative to plain operations", step + 1, what, error));
    }
  };
  for (size_t step = 0; step < plain.size(); ++step) {
    require_close(step, "the loss", relative_error(trace.losses[step], plain[step].loss));
    require_close(step, "the gradient norm", relative_error(trace.norms[step], plain[step].norm));
    const NamedError gradient = worst_parameter(plan, trace.gradients[step], plain[step].gradients);
    require_close(step, "the gradient of " + gradient.name, gradient.error);
    const NamedError weight = worst_parameter(plan, trace.weights[step], plain[step].weights);
    require_close(step, weight.name, weight.error);
  }
}

}  // namespace

Config CombinationRunner::checked(const Settings& settings) const {
  Settings all = settings;
  all.push_back("data.path=" ORTHANT_SOURCE_DIR "/tests/combinations/text.txt");
  all.push_back("job.dump_folder=" + folder_.path());
  Config config = config_of(all);
  check_with_advice(config);
  return config;
}

const TrainingData& CombinationRunner::data_of(const Config& config) {
  Config key;
  key.model.objective = config.model.objective;
  key.model.masked_share = config.model.masked_share;
  key.data = config.data;
  key.training.seq_len = config.training.seq_len;
  key.training.seed = config.training.seed;
  const std::string text = text_of(key);
  const auto found = data_.find(text);
  return found != data_.end() ? found->second : data_.emplace(text, open_training_data(config)).first->second;
}

const OracleTrace& CombinationRunner::oracle_of(const Config& config) {
  const Config one = one_device(config);
  const std::string text = text_of(one);
  const auto found = oracles_.find(text);
  if (found != oracles_.end()) return found->second;
  const TrainingData& data = data_of(one);
  const Plan plan = advised_plan(one, facts_of(data, 1));
  OracleTrace trace = trace_oracle(plan, data, kSteps);
  require_plain(plan, data, trace);
  return oracles_.emplace(text, std::move(trace)).first->second;
}

std::string CombinationRunner::difference(const Settings& settings, const Change& change) {
  const Config config = checked(settings);
  const TrainingData& data = data_of(config);
  Plan plan = advised_plan(config, facts_of(data, static_cast<int>(config.run.ranks)));
  check_bounds_detect_mistakes(plan);
  try {
    if (!change) return verify_against(oracle_of(config), plan, data).first_difference;
    OracleTrace oracle = oracle_of(config);
    change(plan, oracle);
    return verify_against(oracle, plan, data).first_difference;
  } catch (const ConfigError& error) {
    throw LogicError(std::string("refused while it ran: ") + error.what());
  }
}

Outcome CombinationRunner::run_changed(const Settings& settings, const Change& change) {
  try {
    const std::string problem = difference(settings, change);
    return {problem.empty() ? Verdict::works : Verdict::wrong, "", problem};
  } catch (const ConfigError& error) {
    return follow(settings, error.what());
  } catch (const std::exception& error) {
    return {Verdict::wrong, "", error.what()};
  }
}

Outcome CombinationRunner::run(const Settings& settings) {
  watch_.start(command_of(settings));
  const Outcome outcome = run_changed(settings, {});
  watch_.stop();
  return outcome;
}

Outcome CombinationRunner::follow(const Settings& settings, const std::string& refusal) {
  const auto wrong = [&](const std::string& problem) {
    return Outcome{Verdict::wrong, refusal, fmt::format("{}\n    refusal: {}", problem, refusal)};
  };
  if (first_key(refusal).empty()) return wrong("the refusal names no key");
  const std::vector<Settings> ways = ways_out(refusal);
  if (ways.empty()) return wrong("the refusal offers no setting");
  for (const Settings& way : ways) {
    Settings changed = settings;
    changed.insert(changed.end(), way.begin(), way.end());
    const std::string text = join(way, " ");
    try {
      if (const std::string problem = difference(changed, {}); !problem.empty())
        return wrong(fmt::format("with {}: {}", text, problem));
    } catch (const std::exception& error) {
      return wrong(fmt::format("with {}: {}", text, error.what()));
    }
  }
  return {Verdict::refused, refusal, ""};
}

}  // namespace orthant
