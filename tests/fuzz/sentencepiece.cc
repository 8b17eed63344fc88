// A .model file of sentencepiece: the texts of its pieces, and its export as a tokenizer.json.
#include "data/sentencepiece.h"

#include <numeric>
#include <vector>

#include "data/huggingface.h"
#include "data/sentencepiece_model.h"
#include "tests/fuzz/hostile.h"

using namespace orthant;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::ScratchFile scratch("tokenizer.model");
  const std::string& path = scratch.write(data, size);
  fuzz::read_hostile(size, {.base_bytes = 64 << 10, .per_byte = 384}, [&] {
    const std::unique_ptr<Tokenizer> tokenizer = load_sentencepiece(path);
    std::vector<int32_t> ids(static_cast<size_t>(tokenizer->vocab_size()));
    std::iota(ids.begin(), ids.end(), 0);
    tokenizer->decode(ids);
    fuzz::require(!tokenizer->name().empty() && tokenizer->caveat() != "?", "a tokenizer has a name");
    fuzz::require(tokenizer->fingerprint() != 0, "a tokenizer has a fingerprint");
    const SentencePieceModel model =
        parse_sentencepiece_model({reinterpret_cast<const char*>(data), size}, "tokenizer.model");
    if (is_plain_bpe(model)) bpe_tokenizer_json(model, tokenizer->end_of_text());
  });
  return 0;
}
