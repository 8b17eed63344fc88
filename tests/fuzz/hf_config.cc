// A config.json of Hugging Face, and the one that Orthant writes for it.
#include "config/hf_config.h"

#include <algorithm>

#include "tests/fuzz/hostile.h"

using namespace orthant;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const bool accepted = fuzz::read_hostile(size, {.base_bytes = 128 << 10, .per_byte = 128}, [&] {
    const HfConfig config = parse_hf_config(text, "config.json");
    fuzz::require(parse_hf_config(config_json(config), "written.json").model == config.model,
                  "a written config.json reads as an equal model");
    fuzz::require(!generation_config_json(config).empty(), "generation_config.json has a text");
  });
  fuzz::require(!accepted || text.find('\0') == std::string::npos, "JSON with a zero byte is refused");
  return 0;
}
