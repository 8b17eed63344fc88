#include "data/file_readings.h"

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mapped_file.h"

namespace orthant {

FileReadings::State FileReadings::state_of(const std::string& path) {
  struct stat found = {};
  if (::stat(path.c_str(), &found) != 0) return {};
  const auto ns = [](const timespec& time) { return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec; };
  return {static_cast<int64_t>(found.st_dev), static_cast<int64_t>(found.st_ino), found.st_size, ns(found.st_mtim),
          ns(found.st_ctim)};
}

template <class Read>
FileReadings::Reading FileReadings::known_or(const std::string& what, const std::string& path, const Read& read) {
  const std::string key = what + " " + path;
  const State state = state_of(path);  // taken first, so that a change during the reading is seen later
  if (const auto known = known_.find(key); known != known_.end() && known->second.state == state) return known->second;
  ++num_read_;
  Reading reading = read();
  reading.state = state;
  return known_[key] = reading;
}

TextFile FileReadings::scan(const std::string& path, const TextFormat& format) {
  const std::string what = format.documents == DocumentFormat::kPlain  ? "text"
                           : format.documents == DocumentFormat::kChat ? "chat"
                                                                       : "jsonl " + format.key;
  const Reading reading = known_or(what, path, [&] {
    const TextFile file = scan_text(path, format);
    return Reading{.text_bytes = file.bytes, .hash = file.hash, .has_separators = file.has_separators};
  });
  return {.path = path,
          .format = format,
          .bytes = reading.text_bytes,
          .hash = reading.hash,
          .has_separators = reading.has_separators};
}

uint64_t FileReadings::checksum(const std::string& path) {
  return known_or(
             "bytes", path,
             [&] {
               const MappedFile file(path);
               return Reading{.hash = xxh3({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()})};
             })
      .hash;
}

std::string FileReadings::to_json() const {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& [key, reading] : known_) {
    const State& state = reading.state;
    rows.push_back({key,
                    {state.device, state.inode, state.bytes, state.modified_ns, state.changed_ns},
                    {reading.text_bytes, reading.hash, reading.has_separators}});
  }
  // A path need not be UTF-8. The replacement of its bytes leaves it unknown to others, who then read the file.
  return rows.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

FileReadings FileReadings::from_json(const std::string& text) {
  FileReadings readings;
  try {
    for (const auto& row : parse_json(text, "readings of files")) {
      const auto& state = row.at(1);
      const auto& result = row.at(2);
      readings.known_[row.at(0)] = {.state = {state.at(0), state.at(1), state.at(2), state.at(3), state.at(4)},
                                    .text_bytes = result.at(0),
                                    .hash = result.at(1),
                                    .has_separators = result.at(2)};
    }
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("readings of files of another rank: {}", error.what()));
  }
  return readings;
}

}  // namespace orthant
