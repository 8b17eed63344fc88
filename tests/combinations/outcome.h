// Runs one combination: it equals one device and sends what was planned, or it is refused with ways out that work.
#pragma once

#include "plan/plan.h"
#include "runtime/verify.h"
#include "tests/combinations/draw.h"
#include "tests/combinations/run_watch.h"
#include "tests/support/temp_folder.h"

#include <functional>
#include <map>
#include <memory>
#include <string>

namespace orthant {

/// Steps that every combination runs.
inline constexpr int64_t kSteps = 2;

enum class Verdict { works, refused, wrong };

struct Outcome {
  Verdict verdict = Verdict::wrong;
  std::string refusal;  // the ConfigError; empty where it works
  std::string problem;  // why it is wrong; empty otherwise
};

/// Keeps the data and the one-device runs that combinations share. Used by one thread.
class CombinationRunner {
 public:
  /// Plans and runs the settings. A refusal is accepted if it offers a way out and every way out works.
  Outcome run(const Settings& settings);

  /// As run(), where the comparison is of a Plan and an oracle that a negative control has changed.
  using Change = std::function<void(Plan& plan, OracleTrace& oracle)>;
  Outcome run_changed(const Settings& settings, const Change& change);

  /// The outcome of settings that were refused with this message: every way out that it offers is applied and run.
  Outcome follow(const Settings& settings, const std::string& refusal);

  size_t oracles() const { return oracles_.size(); }

 private:
  Config checked(const Settings& settings) const;
  const TrainingData& data_of(const Config& config);
  const OracleTrace& oracle_of(const Config& config);
  /// Empty where the run equals one device; ConfigError where it is refused.
  std::string difference(const Settings& settings, const Change& change);

  RunWatch watch_;
  TempFolder folder_;
  std::map<std::string, TrainingData> data_;
  std::map<std::string, OracleTrace> oracles_;
};

}  // namespace orthant
