// Loads a run file and its overrides, and derives the defaults that follow from other values.
#include "config/config.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/errors.h"
#include "config/hf_family.h"
#include "config/table.h"

namespace orthant {
namespace {

std::string origin(const Config& config, std::string_view key) {
  const auto it = config.origins.find(key);
  return it == config.origins.end() ? "default" : it->second;
}

bool is_default(const Config& config, std::string_view key) { return !config.origins.contains(key); }

// Suggests a remedy if the run file does not exist.
std::string way_out(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path + ".toml", ignored)) return fmt::format("did you mean {}.toml?", path);
  return "examples/ holds run files to start from: orthant train examples/jargon.toml";
}

std::string read_run_file(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    const bool is_run = std::filesystem::exists(path + "/config.toml", ignored);
    throw ConfigError(fmt::format("{} is a directory; name a run file (TOML){}", path,
                                  is_run ? fmt::format(", such as {}/config.toml", path) : ""));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.is_open() || file.bad()) {
    const std::string why = std::strerror(errno);
    const bool relative = std::filesystem::path(path).is_relative();
    const std::string from = std::filesystem::current_path(ignored).string();
    throw ConfigError(fmt::format("cannot read the run file {}{}: {}; {}", path,
                                  relative ? fmt::format(" (seen from {})", from) : "", why, way_out(path)));
  }
  return text;
}

}  // namespace

bool Config::is_set(const std::string& key) const {
  const auto origin = origins.find(key);
  return origin != origins.end() && !origin->second.starts_with("default");
}

std::string Config::locate(std::string_view name) const {
  const Key* key = find_key(name);
  ORTHANT_CHECK(key != nullptr, name);
  return fmt::format("{} = {} ({})", key->full_name(), value_text(*key, *this), origin(*this, key->full_name()));
}

bool operator==(const Config& a, const Config& b) {
  // Comparing texts is exact, because floats are printed with all the digits that they need.
  return std::ranges::all_of(config_table(), [&](const Key& key) { return value_text(key, a) == value_text(key, b); });
}

namespace {

// Gives the keys of the blocks the values of the family in model.architecture, unless they are set.
void set_family_defaults(Config& config) {
  if (is_default(config, "model.architecture")) return;
  Config of_family = config;
  set_blocks(*find_family(config.model.architecture), of_family.model);
  for (const Key* key : model_keys()) {
    if (!is_default(config, key->full_name()) || value_text(*key, config) == value_text(*key, of_family)) continue;
    copy_value(*key, of_family, config);
    config.origins[key->full_name()] = fmt::format("default of \"{}\"", config.model.architecture);
  }
}

}  // namespace

void derive_defaults(Config& config, const std::string& run_file) {
  set_family_defaults(config);
  const std::string name = std::filesystem::path(run_file).stem();
  if (is_default(config, "job.dump_folder") && !name.empty()) {
    config.job.dump_folder = "runs/" + name;
    config.origins["job.dump_folder"] = "default, from the name of the run file";
  }
  if (is_default(config, "lr_scheduler.warmup_steps") && config.lr_scheduler.warmup_steps > config.training.steps) {
    config.lr_scheduler.warmup_steps = config.training.steps;
    config.origins["lr_scheduler.warmup_steps"] = "default, no more than training.steps";
  }
  // For a short trial of a long run: if the command line sets fewer steps, the file's warm-up is shortened too.
  const auto steps = config.origins.find("training.steps"), warmup = config.origins.find("lr_scheduler.warmup_steps");
  if (config.lr_scheduler.warmup_steps > config.training.steps && steps != config.origins.end() &&
      steps->second == "command line" && warmup != config.origins.end() && warmup->second != "command line") {
    config.lr_scheduler.warmup_steps = config.training.steps;
    warmup->second += ", no more than training.steps";
  }
  if (is_default(config, "training.local_batch_size") &&
      config.training.local_batch_size > config.training.global_batch_size) {
    config.training.local_batch_size = config.training.global_batch_size;
    config.origins["training.local_batch_size"] = "default, no more than training.global_batch_size";
  }
  if (is_default(config, "lr_scheduler.decay_ratio") && config.lr_scheduler.decay_type == "wsd") {
    config.lr_scheduler.decay_ratio = 0.2;  // with 1.0, the stable phase of wsd would be empty
    config.origins["lr_scheduler.decay_ratio"] = "default for wsd";
  }
  if (is_default(config, "validation.freq") && config.data.validation == HeldOut{0.0, {}}) {
    config.validation.freq = 0;
    config.origins["validation.freq"] = "default where data.validation holds nothing out";
  }
}

Config parse_config(std::string_view text, const std::string& name, std::span<const std::string> overrides) {
  Config config;
  apply_toml(config, text, name);
  apply_overrides(config, overrides);
  derive_defaults(config, name);
  return config;
}

Config load_config(const std::string& path, std::span<const std::string> overrides) {
  return parse_config(path.empty() ? std::string() : read_run_file(path), path, overrides);
}

}  // namespace orthant
