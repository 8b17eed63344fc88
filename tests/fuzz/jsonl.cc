// A JSONL file, as texts and as conversations.
#include <algorithm>

#include "data/chat_template.h"
#include "data/text_file.h"
#include "tests/fuzz/hostile.h"

using namespace orthant;

namespace {

// Compressed files start other programs, which decompress them; these programs are not under test.
bool is_compressed(const uint8_t* data, size_t size) {
  const auto begins_with = [&](size_t at, std::string_view magic) {
    return size >= at + magic.size() &&
           std::equal(magic.begin(), magic.end(), reinterpret_cast<const char*>(data) + at);
  };
  return begins_with(0, "\x1f\x8b") || begins_with(0, "\x28\xb5\x2f\xfd") || begins_with(1, "\x2a\x4d\x18");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (is_compressed(data, size)) return 0;
  static const fuzz::ScratchFile scratch("texts.jsonl");
  const std::string& path = scratch.write(data, size);
  const bool has_zero = std::find(data, data + size, 0) != data + size;
  const fuzz::MemoryLaw law = {.base_bytes = 512 << 10, .per_byte = 96};
  size_t text_bytes = 0;
  const bool is_text = fuzz::read_hostile(size, law, [&] {
    for_each_piece(scan_text(path, {.documents = DocumentFormat::kJsonl}),
                   [&](std::string&& text, bool) { text_bytes += text.size(); });
  });
  fuzz::require(!is_text || text_bytes <= size, "texts are no longer than their file");
  const bool is_chat = fuzz::read_hostile(size, law, [&] {
    for_each_json_line(scan_text(path, {.documents = DocumentFormat::kChat}),
                       [](std::string_view line, const std::string& source) { read_conversation(line, source); });
  });
  fuzz::require(!has_zero || (!is_text && !is_chat), "JSON with a zero byte is refused");
  return 0;
}
