// The pairs and random triples of levels, and the settings, number of ranks and command of a draw.
#include "tests/combinations/draw.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "base/text.h"
#include "tests/support/temp_folder.h"

namespace orthant {
namespace {

constexpr const char* kRunFile = "tests/combinations/run.toml";

const std::string& run_file_text() {
  static const std::string text = slurp(std::string(ORTHANT_SOURCE_DIR "/") + kRunFile);
  return text;
}

}  // namespace

std::vector<Draw> all_pairs() {
  std::vector<Draw> draws;
  for (size_t a = 0; a < features().size(); ++a) {
    for (size_t b = a + 1; b < features().size(); ++b) {
      for (size_t i = 0; i < features()[a].levels.size(); ++i)
        for (size_t j = 0; j < features()[b].levels.size(); ++j) draws.push_back({{a, i}, {b, j}});
    }
  }
  return draws;
}

std::vector<Draw> random_triples(uint64_t seed, size_t count) {
  uint64_t state = mix64(seed);
  const auto below = [&](size_t bound) { return static_cast<size_t>(mix64(++state) % bound); };
  std::vector<Draw> draws;
  while (draws.size() < count) {
    std::vector<size_t> chosen;
    while (chosen.size() < 3) {
      const size_t feature = below(features().size());
      if (std::ranges::find(chosen, feature) == chosen.end()) chosen.push_back(feature);
    }
    std::ranges::sort(chosen);
    Draw draw;
    for (const size_t feature : chosen) draw.push_back({feature, below(features()[feature].levels.size())});
    if (ranks_of(config_of(settings_of(draw))) <= kMostRanks) draws.push_back(draw);
  }
  return draws;
}

Draw draw_named(const std::vector<std::string>& levels) {
  Draw draw;
  for (const std::string& name : levels) draw.push_back(level_named(name));
  std::ranges::sort(draw, {}, &LevelId::feature);
  return draw;
}

std::string name_of(const Draw& draw) {
  std::vector<std::string> names;
  for (const LevelId& id : draw) names.push_back(level_of(id).name);
  return join(names, " x ");
}

Settings settings_of(const Draw& draw) {
  Settings settings;
  for (const LevelId& id : draw) {
    const Settings& more = level_of(id).settings;
    settings.insert(settings.end(), more.begin(), more.end());
  }
  settings.push_back(fmt::format("run.ranks={}", ranks_of(config_of(settings))));
  return settings;
}

int64_t ranks_of(const Config& config) {
  const auto& p = config.parallelism;
  const auto [rows, columns, depth] = p.tensor_parallel_mesh;
  const bool is_grid = p.tensor_parallel_kind == "2d" || p.tensor_parallel_kind == "2.5d";
  return std::max<int64_t>(p.data_parallel_degree, 1) * (is_grid ? rows * columns * depth : p.tensor_parallel_degree) *
         p.context_parallel_ulysses * p.context_parallel_ring * p.pipeline_parallel_degree;
}

Config config_of(const Settings& settings) { return parse_config(run_file_text(), "run.toml", settings); }

std::string command_of(const Settings& settings) {
  std::string command = fmt::format("build/orthant verify {} --steps 2", kRunFile);
  for (const std::string& setting : settings)
    command += setting.find_first_of(" []\"") == std::string::npos ? " " + setting : " '" + setting + "'";
  return command;
}

}  // namespace orthant
