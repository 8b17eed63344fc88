// Files of safetensors: their header, and the bytes of each tensor that it names.
#include "checkpoint/safetensors.h"

#include "tests/fuzz/hostile.h"

using namespace orthant;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::ScratchFile scratch("model.safetensors");
  const std::string& path = scratch.write(data, size);
  fuzz::read_hostile(size, {.base_bytes = 64 << 10, .per_byte = 32}, [&] {
    const SafetensorsFile file(path);
    size_t sum = 0;
    for (const TensorInfo& info : file.tensors()) {
      const TensorBytes tensor = file.tensor(info.name);
      fuzz::require(static_cast<size_t>(size_bytes(tensor)) == tensor.bytes.size(),
                    "a tensor has the bytes of its shape");
      for (const std::byte byte : tensor.bytes) sum += static_cast<size_t>(byte);
    }
    fuzz::require(sum <= 255 * size, "tensors are disjoint parts of the file");
  });
  return 0;
}
