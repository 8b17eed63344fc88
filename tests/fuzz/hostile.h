// The laws that every reader of files of unknown origin must keep: it returns, or it throws ConfigError or DataError,
// and it takes no more memory than a linear function of the size of the file. The targets of this folder call readers
// through read_hostile(), which checks both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

#include "tests/support/temp_folder.h"

namespace orthant::fuzz {

/// A reader or its result breaks a law. It passes through the target, so that libFuzzer, or replay.cc, reports it.
struct BrokenLaw : std::logic_error {
  using std::logic_error::logic_error;
};

/// Throws BrokenLaw with this text if the law does not hold.
void require(bool holds, const std::string& law);

/// The most bytes that a reader may hold at a time: base + per_byte x the bytes of the file.
struct MemoryLaw {
  size_t base_bytes;
  size_t per_byte;
};

/// Calls `read`, and returns whether it accepted the file: false if it threw ConfigError or DataError. Other exceptions
/// pass. Throws BrokenLaw if it held more memory than the law allows. Counted is memory from operator new, by all
/// threads.
bool read_hostile(size_t file_bytes, const MemoryLaw& law, const std::function<void()>& read);

/// A file, in a temporary folder of its own, for a reader that takes a path.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& name) : path_(folder_ / name) {}
  /// Replaces the file's content, and returns its path.
  const std::string& write(const uint8_t* data, size_t size) const;

 private:
  TempFolder folder_;
  std::string path_;
};

}  // namespace orthant::fuzz

/// The function that each target defines. It returns 0.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
