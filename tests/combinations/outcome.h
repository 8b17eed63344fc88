// Runs one combination. It works if it equals one device and sends the planned bytes. It is refused if planning refuses
// it and offers ways out that work. Otherwise it is wrong.
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
  std::string refusal;  // the ConfigError; empty if there was none
  std::string problem;  // why it is wrong; empty otherwise
};

/// Runs combinations, and keeps the data and the one-device runs that they share. Not thread-safe.
class CombinationRunner {
 public:
  /// Plans and runs the settings. A refusal is accepted if it offers a way out and every way out works.
  Outcome run(const Settings& settings);

  /// As run(), for negative controls: `change` alters the Plan and the oracle before the comparison.
  using Change = std::function<void(Plan& plan, OracleTrace& oracle)>;
  Outcome run_changed(const Settings& settings, const Change& change);

  /// Returns the outcome of settings that were refused with this message. It applies and runs every way out offered.
  Outcome follow(const Settings& settings, const std::string& refusal);

  size_t oracles() const { return oracles_.size(); }

 private:
  Config checked(const Settings& settings) const;
  const TrainingData& data_of(const Config& config);
  const OracleTrace& oracle_of(const Config& config);
  /// Returns the first difference from one device; empty if there is none. Throws ConfigError if planning refuses.
  std::string difference(const Settings& settings, const Change& change);

  RunWatch watch_;
  TempFolder folder_;
  std::map<std::string, TrainingData> data_;
  std::map<std::string, OracleTrace> oracles_;
};

}  // namespace orthant
