// Writes and opens Hugging Face model directories, and compares their tensors with those of a model.
#include "checkpoint/hf_directory.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/errors.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/text.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";

std::string shard_name(std::size_t number, std::size_t count) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", number, count);
}

// Index of the first tensor of each shard. Shards are filled in order. A tensor is never split; one larger than the
// limit gets a shard of its own.
std::vector<std::size_t> shard_starts(std::span<const TensorBytes> weights, int64_t limit_bytes) {
  std::vector<std::size_t> starts{0};
  int64_t filled_bytes = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const int64_t bytes = size_bytes(weights[i]);
    if (filled_bytes > 0 && filled_bytes + bytes > limit_bytes) {
      starts.push_back(i);
      filled_bytes = 0;
    }
    filled_bytes += bytes;
  }
  return starts;
}

// True for model.safetensors, its index, and names in the form of shard_name().
bool is_weights_file(std::string_view name) {
  std::string shape(name);
  std::replace_if(
      shape.begin(), shape.end(), [](char c) { return '0' <= c && c <= '9'; }, '0');
  return name == kSingleFile || name == kHfIndexFile || shape == shard_name(0, 0);
}

void remove_older_weights(const fs::path& directory, const std::map<std::string, WrittenFile>& written) {
  std::vector<fs::path> older;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    if (is_weights_file(name) && !written.contains(name)) older.push_back(entry.path());
  }
  for (const fs::path& path : older) {
    std::error_code error;
    fs::remove(path, error);
    if (error)
      throw DataError(
          fmt::format("{}: cannot remove this file of an older export: {}", path.string(), error.message()));
  }
}

// The path of a file that an index names. It must lie in the directory, or be a link into the blobs of a Hugging Face
// hub cache (snapshots/REVISION/FILE -> ../../blobs/HASH), where downloaded models are stored.
std::string file_inside(const fs::path& directory, const std::string& name, const std::string& index) {
  const fs::path relative(name);
  const bool climbs = std::any_of(relative.begin(), relative.end(), [](const fs::path& part) { return part == ".."; });
  if (name.empty() || name.find('\0') != std::string::npos || relative.is_absolute() || climbs) {
    throw DataError(fmt::format("{}: {} is outside the directory; expected a file in the directory of the index", index,
                                printable(name)));
  }
  const fs::path path = directory / relative;
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error)
    throw DataError(fmt::format("{}: missing, although {} names it ({})", path.string(), index, error.message()));
  const fs::path real_directory = fs::canonical(directory);
  const bool inside = std::mismatch(real_directory.begin(), real_directory.end(), real.begin(), real.end()).first ==
                      real_directory.end();
  if (!inside && real.parent_path() != real_directory.parent_path().parent_path() / "blobs") {
    throw DataError(fmt::format("{}: this link points out of the directory, to {}", path.string(), real.string()));
  }
  return path;
}

TensorSet open_shards(const fs::path& directory) {
  const std::string index_path = directory / kHfIndexFile;
  const auto index = parse_json(read_file(index_path), index_path);
  const auto found = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || found == index.end() || !found->is_object() || found->empty()) {
    throw DataError(fmt::format("{}: expected an object weight_map with tensor names and their files", index_path));
  }
  std::map<std::string, std::set<std::string>> names_of;  // names of tensors, by path
  for (const auto& [name, file] : found->items()) {
    if (!file.is_string())
      throw DataError(fmt::format("{}: weight_map: {}: expected a file name", index_path, printable(name)));
    names_of[file_inside(directory, file.get<std::string>(), index_path)].insert(name);
  }
  std::vector<std::string> paths;
  for (const auto& [path, names] : names_of) paths.push_back(path);
  TensorSet set{paths};
  for (const auto& [path, names] : names_of) {
    for (const std::string& name : names) {
      if (!set.contains(name) || set.entry(name).path != path) {
        throw DataError(
            fmt::format("{}: tensor {} is missing, although {} lists it", path, printable(name), index_path));
      }
    }
  }
  for (const std::string& name : set.names()) {
    const std::string& path = set.entry(name).path;
    if (!names_of.at(path).contains(name)) {
      throw DataError(fmt::format("{}: tensor {} is not in {}", path, printable(name), index_path));
    }
  }
  return set;
}

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace

std::map<std::string, WrittenFile> write_hf_config(const std::string& directory, const HfConfig& config) {
  const fs::path path(directory);
  return {{"config.json", {write_file(path / "config.json", config_json(config))}},
          {"generation_config.json", {write_file(path / "generation_config.json", generation_config_json(config))}}};
}

std::string hf_index_json(const std::map<std::string, WrittenFile>& files) {
  int64_t total_bytes = 0, total_parameters = 0;
  std::map<std::string, std::string> weight_map;
  for (const auto& [file, written] : files) {
    for (const auto& [name, tensor] : written.tensors) {
      const int64_t bytes = size_bytes({.name = name, .dtype = tensor.dtype, .shape = tensor.shape});
      total_bytes += bytes;
      total_parameters += bytes * 8 / dtype_bits(tensor.dtype);
      const bool is_new = weight_map.emplace(name, file).second;
      ORTHANT_CHECK(is_new, name);
    }
  }
  const nlohmann::ordered_json index = {
      {"metadata", {{"total_parameters", total_parameters}, {"total_size", total_bytes}}}, {"weight_map", weight_map}};
  return index.dump(2) + "\n";
}

std::map<std::string, WrittenFile> write_hf_directory(const std::string& directory, const HfConfig& config,
                                                      std::span<const TensorBytes> weights, int64_t shard_limit_bytes) {
  const fs::path path(directory);
  const auto starts = shard_starts(weights, shard_limit_bytes);
  std::map<std::string, WrittenFile> shards;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::size_t end = i + 1 < starts.size() ? starts[i + 1] : weights.size();
    const std::string name = starts.size() == 1 ? kSingleFile : shard_name(i + 1, starts.size());
    shards[name] = write_safetensors(path / name, weights.subspan(starts[i], end - starts[i]));
  }
  std::map<std::string, WrittenFile> written = write_hf_config(directory, config);
  if (starts.size() > 1) written[kHfIndexFile] = {write_file(path / kHfIndexFile, hf_index_json(shards))};
  written.merge(shards);
  remove_older_weights(path, written);
  return written;
}

TensorSet open_hf_weights(const std::string& directory) {
  const fs::path path(directory);
  if (fs::exists(path / kSingleFile)) {
    const std::vector<std::string> single{file_inside(path, kSingleFile, directory)};
    return TensorSet{single};
  }
  if (fs::exists(path / kHfIndexFile)) return open_shards(path);
  throw DataError(
      fmt::format("{}: this directory has no weights; expected {} or {}", directory, kSingleFile, kHfIndexFile));
}

namespace {
// Constants that older files of Llama and GPT-2 store.
bool is_stored_constant(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}
}  // namespace

TensorDifferences compare_tensors(const TensorSet& found, std::span<const ExpectedTensor> expected,
                                  std::span<const std::string> optional) {
  TensorDifferences differences;
  std::set<std::string_view> known(optional.begin(), optional.end());
  for (const ExpectedTensor& tensor_spec : expected) {
    known.insert(tensor_spec.name);
    if (!found.contains(tensor_spec.name)) {
      differences.missing.push_back(tensor_spec.name);
      continue;
    }
    const std::vector<int64_t>& shape = found.entry(tensor_spec.name).shape;
    if (shape == tensor_spec.shape) continue;
    differences.clashes.push_back(
        fmt::format("{}: shape {}, expected {}", tensor_spec.name, shape_text(shape), shape_text(tensor_spec.shape)));
  }
  for (const std::string& name : found.names()) {
    if (!known.contains(name) && !is_stored_constant(name)) differences.unexpected.push_back(name);
  }
  std::sort(differences.missing.begin(), differences.missing.end());
  std::sort(differences.clashes.begin(), differences.clashes.end());
  return differences;
}

void check_tensors(const TensorSet& found, std::span<const ExpectedTensor> expected, const std::string& source,
                   std::span<const std::string> optional) {
  const TensorDifferences differences = compare_tensors(found, expected, optional);
  if (differences.none()) return;
  std::string message = fmt::format(
      "{}: the tensors must be those that the sizes of the model in config.json or [model] require; name another "
      "directory, or take the sizes from this one with model.from",
      source);
  const auto list = [&](const char* title, const std::vector<std::string>& lines) {
    if (!lines.empty()) message += fmt::format("\n  {} ({}): {}", title, lines.size(), join(lines, "; "));
  };
  list("shapes", differences.clashes);
  list("missing", differences.missing);
  list("unexpected", differences.unexpected);
  throw DataError(message);
}

}  // namespace orthant
