// A target with faults, for the negative controls of replay.cc: the first word of the file selects one.
#include <stdexcept>
#include <string>
#include <vector>

#include "base/errors.h"
#include "tests/fuzz/hostile.h"

using namespace orthant;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string word(reinterpret_cast<const char*>(data), size);
  fuzz::read_hostile(size, {.base_bytes = 1 << 10, .per_byte = 4}, [&] {
    if (word == "out_of_range") (void)word.substr(size + 1);
    if (word == "logic_error") throw LogicError("a bug");
    if (word == "memory") std::vector<char>(1 << 20, 'x').swap(*std::make_unique<std::vector<char>>());
    if (word == "data_error") throw DataError("damaged");
    if (word == "config_error") throw ConfigError("impossible");
  });
  return 0;
}
