// A run file, its laws, and its printed form.
#include "config/config.h"
#include "tests/fuzz/hostile.h"

using namespace orthant;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::read_hostile(size, {.base_bytes = 256 << 10, .per_byte = 96}, [&] {
    const Config config = parse_config(text, "run.toml", {});
    fuzz::require(parse_config(print_config(config), "printed.toml", {}) == config,
                  "a printed run file reads as equal");
    check_config(config);
  });
  return 0;
}
