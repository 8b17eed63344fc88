#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/errors.h"
#include "data/seal.h"

namespace orthant {

namespace fs = std::filesystem;

namespace {

std::string seal_of(const std::string& path) { return path + ".xxh3"; }

std::string checksum_of(const std::string& path, FileReadings& readings) {
  return fmt::format("{:016x}", readings.checksum(path));
}

enum class State { missing, intact, damaged };

/// A file without a checksum counts as missing, because its writer died before it was complete.
State state_of(const std::string& path, FileReadings& readings) {
  std::ifstream file(seal_of(path));
  std::string sealed;
  if (!file || !fs::exists(path)) return State::missing;
  file >> sealed;
  try {
    return sealed == checksum_of(path, readings) ? State::intact : State::damaged;
  } catch (const DataError&) {  // unreadable, or being replaced by another process
    return State::damaged;
  }
}

}  // namespace

void write_checksums(std::span<const std::string> paths, FileReadings& readings) {
  for (const std::string& path : paths) {
    const std::string temporary = fmt::format("{}.tmp{}", seal_of(path), ::getpid());
    std::ofstream file(temporary);
    file << checksum_of(path, readings) << "\n" << std::flush;
    if (!file || std::rename(temporary.c_str(), seal_of(path).c_str()) != 0)
      throw DataError(fmt::format("{}: cannot be written; is the disk full?", seal_of(path)));
  }
}

void remove_checksums(std::span<const std::string> paths) {
  for (const std::string& path : paths) fs::remove(seal_of(path));
}

bool checksums_match(std::span<const std::string> paths, FileReadings& readings) {
  return std::ranges::all_of(paths, [&](const std::string& path) { return state_of(path, readings) == State::intact; });
}

void report_damaged(std::span<const std::string> paths, FileReadings& readings) {
  for (const std::string& path : paths)
    if (state_of(path, readings) == State::damaged)
      fmt::print(stderr,
                 "note: {} is damaged, because its checksum differs from {}; it is created again from the text\n", path,
                 seal_of(path));
}

}  // namespace orthant
