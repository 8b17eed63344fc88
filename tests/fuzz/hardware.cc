// A hardware file and its printed form.
#include "hardware/hardware.h"

#include "tests/fuzz/hostile.h"

using namespace orthant;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::read_hostile(size, {.base_bytes = 128 << 10, .per_byte = 96}, [&] {
    const Hardware hardware = parse_hardware(text, "hardware.toml");
    fuzz::require(parse_hardware(to_toml(hardware), "printed.toml") == hardware, "a printed file reads as equal");
    fuzz::require(!origins(hardware).empty() && !for_ranks_of_host(hardware, 3).name.empty(), "a machine has a name");
  });
  return 0;
}
