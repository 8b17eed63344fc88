// Finds a hardware profile: a shipped one by name, or a file.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

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
    const auto near = nearest(name_or_file, names);
    throw ConfigError(fmt::format("hardware {}: no profile and no file has this name; {}", name_or_file,
                                  near ? fmt::format("did you mean {}?", *near)
                                       : fmt::format("the profiles are {}", join(names, ", "))));
  });
}

}  // namespace orthant
