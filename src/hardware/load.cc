// Finds a hardware profile: a shipped one by name, or a file.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/errors.h"
#include "base/file_errors.h"
#include "base/text.h"
#include "hardware/hardware.h"
#include "hardware/shipped.h"

namespace orthant {
namespace {

constexpr size_t kMostBytes = 64 * 1024;

std::string read_small_file(const std::string& path) {
  const std::filesystem::file_status status = std::filesystem::status(path);
  if (!std::filesystem::is_regular_file(status)) {
    throw DataError(fmt::format("{}: a hardware file must be a regular file", path));
  }
  std::ifstream stream(path, std::ios::binary);
  std::string text(kMostBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!stream.is_open() || stream.bad()) throw DataError(fmt::format("{}: cannot read the hardware file", path));
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > kMostBytes) {
    throw DataError(fmt::format("{}: a hardware file must have at most {} bytes", path, kMostBytes));
  }
  return text;
}

}  // namespace

std::vector<std::string> shipped_hardware() {
  std::vector<std::string> names;
  for (const ShippedProfile& profile : shipped_profiles()) names.emplace_back(profile.name);
  return names;
}

Hardware load_hardware(const std::string& name_or_file) {
  const auto profiles = shipped_profiles();
  const auto found = std::ranges::find(profiles, std::string_view(name_or_file), &ShippedProfile::name);
  if (found != profiles.end()) return parse_hardware(found->text, fmt::format("profile {}", found->name));
  return explained([&] {
    if (std::filesystem::exists(name_or_file)) return parse_hardware(read_small_file(name_or_file), name_or_file);
    const std::vector<std::string> names = shipped_hardware();
    const std::string lower = to_lower(name_or_file);
    const auto is_of = [&](const std::string& name) { return name == lower || name.starts_with(lower + "-"); };
    if (std::ranges::count_if(names, is_of) == 1) return load_hardware(*std::ranges::find_if(names, is_of));
    const auto near = nearest(lower, names);
    throw ConfigError(fmt::format("hardware {}: no profile and no file has this name; {}", name_or_file,
                                  near ? fmt::format("did you mean {}?", *near)
                                       : fmt::format("the profiles are {}", join(names, ", "))));
  });
}

Hardware for_ranks_of_host(const Hardware& hardware, int64_t ranks) {
  ORTHANT_CHECK(ranks >= 1, ranks);
  Hardware own = hardware;
  if (hardware.device.shared_cores == 0) return own;
  const int64_t of_host = std::min(ranks, hardware.device.per_host);
  if (of_host > hardware.device.shared_cores) {
    // The ranks of smaller groups take turns with all other ranks, as those of the largest group do.
    for (auto* entries : {&own.same_host.all_reduce, &own.same_host.all_gather, &own.same_host.reduce_scatter,
                          &own.same_host.all_to_all}) {
      std::erase_if(*entries, [&](const CollectiveTable& entry) { return entry.ranks != 0 && entry.ranks < of_host; });
    }
  }
  const auto threads = static_cast<double>(std::max<int64_t>(1, hardware.device.shared_cores / of_host));
  own.device.memory_bytes /= static_cast<double>(of_host);
  own.memory.bytes_per_s *= threads;
  for (double* peak : {&own.peak_flop_per_s.bfloat16, &own.peak_flop_per_s.float32, &own.peak_flop_per_s.float64}) {
    *peak *= threads;
  }
  return own;
}

}  // namespace orthant
