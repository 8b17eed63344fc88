// A tokenizer.json, and texts that it encodes and decodes.
#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "base/errors.h"
#include "data/huggingface_tokenizer.h"
#include "tests/fuzz/hostile.h"

using namespace orthant;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static constexpr std::array<std::string_view, 4> kTexts = {
      "It's 2 + 2 = 4, isn't it?\n\n\tYes.  ", "a b ab aab \u2581ab<s></s>",
      "\u00e9e\u0301\ufb01\u2126\uac00\U0001f600", std::string_view("\xff\0 \xc3", 4)};
  static const fuzz::ScratchFile scratch("tokenizer.json");
  const std::string& path = scratch.write(data, size);
  const bool accepted = fuzz::read_hostile(size, {.base_bytes = 8 << 20, .per_byte = 192}, [&] {
    const std::unique_ptr<Tokenizer> tokenizer = load_huggingface_tokenizer(path);
    for (const std::string_view text : kTexts) {
      try {
        tokenizer->decode(tokenizer->encode(text));
      } catch (const Error&) {  // a text without tokens must not hide the next ones
      }
    }
    std::vector<int32_t> ids(static_cast<size_t>(tokenizer->vocab_size()));
    std::iota(ids.begin(), ids.end(), 0);
    const std::string text = tokenizer->decode(ids);
    fuzz::require(tokenizer->end_of_text() < tokenizer->vocab_size(), "the end-of-text token is in the vocabulary");
    fuzz::require(!tokenizer->name().empty() && tokenizer->fingerprint() != 0, "a tokenizer has a name");
  });
  fuzz::require(!accepted || std::find(data, data + size, 0) == data + size, "JSON with a zero byte is refused");
  return 0;
}
