// Draws: which levels a combination has, every pair of levels in turn or triples at random, and the command that
// repeats one by hand.
#pragma once

#include "plan/config.h"
#include "tests/combinations/features.h"

#include <cstdint>
#include <string>
#include <vector>

namespace orthant {

/// Levels of different features, in the order of the features.
using Draw = std::vector<LevelId>;

/// Most ranks that a combination may have: they run as threads of one process.
inline constexpr int kMostRanks = 16;

/// Every pair of levels of two features.
std::vector<Draw> all_pairs();

/// Triples drawn at random, the same for a seed on every machine. Those of more than kMostRanks ranks are left out.
std::vector<Draw> random_triples(uint64_t seed, size_t count);

/// The draw of the levels of these names.
Draw draw_named(const std::vector<std::string>& levels);

/// "ring 2 x tied".
std::string name_of(const Draw& draw);

/// All settings of the levels, run.ranks among them: the product of the degrees.
Settings settings_of(const Draw& draw);

/// Ranks that the degrees of a configuration multiply to.
int64_t ranks_of(const Config& config);

/// The run of those settings, as the command line reads it, from tests/combinations/run.toml.
Config config_of(const Settings& settings);

/// "orthant verify tests/combinations/run.toml --run.ranks=2 ...", for the root of the repository.
std::string command_of(const Settings& settings);

}  // namespace orthant
