// The .idx file of a tokenized dataset, beside a .bin file of 64 bytes with the values 0 to 63.
#include "data/indexed_dataset.h"

#include <array>
#include <numeric>
#include <vector>

#include "tests/fuzz/hostile.h"

using namespace orthant;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TempFolder folder;
  static const std::string prefix = [] {
    std::array<char, 64> bytes;
    std::iota(bytes.begin(), bytes.end(), 0);
    folder.write("tokens.bin", {bytes.data(), bytes.size()});
    return folder / "tokens";
  }();
  folder.write("tokens.idx", {reinterpret_cast<const char*>(data), size});
  fuzz::read_hostile(size, {.base_bytes = 16 << 10, .per_byte = 0}, [&] {
    const IndexedDataset dataset = IndexedDataset::open(prefix, 1 << 30);
    int64_t tokens = 0;
    for (int64_t document = 0; document < dataset.num_documents(); ++document) {
      std::vector<int32_t> out(static_cast<size_t>(dataset.document_length(document)));
      dataset.read(document, 0, out);
      tokens += dataset.document_length(document);
    }
    fuzz::require(tokens == dataset.num_tokens(), "documents have all tokens");
  });
  return 0;
}
