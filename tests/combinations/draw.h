// A draw is the choice of levels that makes one combination. This header lists all pairs of levels, draws triples at
// random, and gives the settings and the command of a draw.
#pragma once

#include "config/config.h"
#include "tests/combinations/features.h"

#include <cstdint>
#include <string>
#include <vector>

namespace orthant {

/// Levels of different features, in the order of the features.
using Draw = std::vector<LevelId>;

/// Largest number of ranks of a random triple. All ranks run as threads of one process.
inline constexpr int kMostRanks = 16;

/// Every pair of levels of two features.
std::vector<Draw> all_pairs();

/// `count` triples drawn at random, equal for equal seeds on every machine. None has more than kMostRanks ranks.
std::vector<Draw> random_triples(uint64_t seed, size_t count);

/// The draw of the levels of these names.
Draw draw_named(const std::vector<std::string>& levels);

/// "ring 2 x tied".
std::string name_of(const Draw& draw);

/// All settings of the levels, run.ranks among them: the product of the degrees.
Settings settings_of(const Draw& draw);

/// Number of ranks of a configuration: the product of its degrees.
int64_t ranks_of(const Config& config);

/// The configuration of tests/combinations/run.toml with the settings, read as the command line reads it.
Config config_of(const Settings& settings);

/// The command that runs the settings from the root of the repository: "build/orthant verify ... run.ranks=2".
std::string command_of(const Settings& settings);

}  // namespace orthant
