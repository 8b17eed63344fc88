// Results of reading whole files. One process of a host reads the files of a run; the others take its results for the
// files that have not changed since.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "data/text_file.h"

namespace orthant {

class FileReadings {
 public:
  /// Returns the known result, or else that of scan_text(), and throws as scan_text() does.
  TextFile scan(const std::string& path, const TextFormat& format);
  /// Returns the XXH3 hash of the file's bytes. Throws DataError if the file cannot be read.
  uint64_t checksum(const std::string& path);

  /// Writes all results, for from_json() in another process of this host. A result holds for a file of the same device,
  /// inode, size and times. from_json() throws DataError for any other text.
  std::string to_json() const;
  static FileReadings from_json(const std::string& text);

  /// How often scan() and checksum() had to read a file.
  int64_t num_read() const { return num_read_; }

 private:
  struct State {
    int64_t device = 0, inode = 0, bytes = 0, modified_ns = 0, changed_ns = 0;
    bool operator==(const State&) const = default;
  };
  struct Reading {
    State state;
    int64_t text_bytes = 0;
    uint64_t hash = 0;
    bool has_separators = false;
  };
  static State state_of(const std::string& path);
  template <class Read>
  Reading known_or(const std::string& what, const std::string& path, const Read& read);

  std::map<std::string, Reading> known_;  // by what was read, and the path
  int64_t num_read_ = 0;
};

}  // namespace orthant
