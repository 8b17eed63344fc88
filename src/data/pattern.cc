// Matches a copy of the text in which a known character of the same category and length stands for each character that
// this PCRE2 does not know.
#include "data/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8  // bytes
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/errors.h"
#include "data/newer_characters.h"
#include "data/utf8.h"

namespace orthant {
namespace {

// U+180E is a space for PCRE2, as it was until Unicode 6.3. The zero-width space has its present category.
constexpr uint32_t kFormerSpace = 0x180e;
constexpr std::string_view kFormat = "\xe2\x80\x8b";

struct StandIns {
  std::string_view of_3_bytes, of_4_bytes;
};
// By NewerCategory.
constexpr std::array<StandIns, 9> kStandIns = {{{"\u10a0", "\U00010400"},
                                                {"\u1d00", "\U00010428"},
                                                {"\u1d2c", "\U00016b40"},
                                                {"\u4e00", "\U00020000"},
                                                {"\u1ab0", "\U0001d165"},
                                                {"\u0e50", "\U0001d7ce"},
                                                {"\u2150", "\U00010107"},
                                                {"\u2020", "\U00010100"},
                                                {"\u2190", "\U0001d100"}}};

// The character that stands for a character of 3 or 4 bytes; empty if it stands for itself.
std::string_view stand_in(std::string_view character) {
  const uint32_t code = code_point(character);
  if (code == kFormerSpace) return kFormat;
  const NewerCharacters* range = range_of(kNewerCharacters, code);
  if (range == nullptr) return {};
  const StandIns& known = kStandIns[static_cast<size_t>(range->category)];
  return character.size() == 3 ? known.of_3_bytes : known.of_4_bytes;
}

// Returns the text, or, if it has characters that need one, its copy with stand-ins, which `copy` holds.
std::string_view with_stand_ins(std::string_view text, std::string& copy) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = std::max<size_t>(utf8_length(text.substr(at)), 1);
    if (length >= 3) {
      const std::string_view known = stand_in(text.substr(at, length));
      if (!known.empty()) {
        if (copy.empty()) copy = text;
        copy.replace(at, length, known);
      }
    }
    at += length;
  }
  return copy.empty() ? text : std::string_view(copy);
}

std::string pcre2_message(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// Word characters have other definitions in Oniguruma, and `\h` is a hexadecimal digit there.
void require_same_meaning(const std::string& expression, const std::string& source) {
  for (size_t at = 0; at + 1 < expression.size(); ++at) {
    if (expression[at] != '\\') continue;
    const char letter = expression[++at];
    if (std::string_view("wWbBhHXRyYKO").find(letter) == std::string_view::npos) continue;
    throw DataError(
        fmt::format("{}: the expression \"{}\" contains \\{}, whose meaning differs between regular "
                    "expression libraries; Orthant reads expressions without it",
                    source, expression, letter));
  }
}

constexpr size_t kMostStackBytes = 64 << 20;

// A thread's memory for matches.
struct MatchMemory {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 << 10, kMostStackBytes, nullptr);
  MatchMemory() { pcre2_jit_stack_assign(context, nullptr, stack); }
  ~MatchMemory() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

}  // namespace

struct Pattern::Compiled {
  pcre2_code* code = nullptr;
  ~Compiled() { pcre2_code_free(code); }
};

Pattern::Pattern(const std::string& expression, const std::string& source) : expression_(expression) {
  require_same_meaning(expression, source);
  int error = 0;
  size_t offset = 0;
  auto compiled = std::make_shared<Compiled>();
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &offset, nullptr);
  if (compiled->code == nullptr) {
    throw DataError(fmt::format("{}: the expression \"{}\" cannot be read at offset {}: {}", source, expression, offset,
                                pcre2_message(error)));
  }
  pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);  // without it, matching is slower and otherwise the same
  compiled_ = std::move(compiled);
}

Pattern Pattern::of_text(std::string_view text) {
  Pattern pattern;
  pattern.text_ = text;
  return pattern;
}

std::vector<TextRange> Pattern::find_all(std::string_view text) const {
  std::vector<TextRange> found;
  if (!compiled_) {
    for (size_t at = text_.empty() ? std::string_view::npos : text.find(text_); at != std::string_view::npos;
         at = text.find(text_, at + text_.size())) {
      found.push_back({at, at + text_.size()});
    }
    return found;
  }
  thread_local const MatchMemory memory;
  std::string copy;
  const std::string_view known = with_stand_ins(text, copy);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(known.data());
  for (size_t at = 0; at < known.size();) {
    const int matched = pcre2_match(compiled_->code, subject, known.size(), at, 0, memory.data, memory.context);
    if (matched == PCRE2_ERROR_NOMATCH) break;
    if (matched < 0) {
      throw DataError(fmt::format("the expression \"{}\" of the tokenizer failed at byte {} of a text of {} bytes: {}",
                                  expression_, at, text.size(), pcre2_message(matched)));
    }
    const size_t* ends = pcre2_get_ovector_pointer(memory.data);
    if (ends[1] > ends[0]) found.push_back({ends[0], ends[1]});
    at = ends[1] > at ? ends[1] : at + std::max<size_t>(utf8_length(known.substr(at)), 1);
  }
  return found;
}

}  // namespace orthant
