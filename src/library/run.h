// Determines what a run is before its data are opened: from its run file and the model that this names, or from a model
// of Hugging Face. Links no torch.
#pragma once

#include <span>
#include <string>

#include "config/config.h"
#include "plan/plan.h"

namespace orthant {

/// Completes a parsed run file for training: takes the sizes and the tokenizer of the model that model.from names, and
/// checks the laws of the run. By default the run must need neither CUDA nor UCX. Throws ConfigError, also if the run
/// contradicts model.from.
Config complete_run(Config config, const BuildFeatures& features = {});

/// A run that is planned and not carried out, and the facts for its plan.
struct RunToPlan {
  Config config;
  RunFacts facts;
};

/// Completes a parsed run file for planning, with the facts from its tokenizer and its hardware profile. The run may
/// need devices and libraries that this machine lacks. Throws ConfigError.
RunToPlan run_to_plan(Config parsed);

/// The run that --hf and settings on the command line describe: a model of Hugging Face in bfloat16 on CUDA devices, by
/// default with sequences of at most 4,096 tokens, one for each rank. `path` is a config.json, or the directory that
/// contains it. Throws ConfigError, also if run.ranks is not set, and DataError for a config.json that is missing or
/// not supported.
RunToPlan model_to_plan(const std::string& path, std::span<const std::string> overrides);

/// The facts that planning needs, with the hardware that the run file names, without training a tokenizer or
/// tokenizing: "train:N" will have N pieces. Training and `orthant plan` have the same facts, so they make the same
/// choices. ConfigError if data.path names no file.
RunFacts facts_before_data(const Config& config, int ranks);

/// The same if model.vocab_size is 0. Otherwise the data need not exist, and the tokenizer's file may be missing.
RunFacts facts_without_data(const Config& config, int ranks);

/// The planned schedule as SVG, titled with its name, with the memory of the rank that needs most.
std::string planned_svg(const Plan& plan);

}  // namespace orthant
