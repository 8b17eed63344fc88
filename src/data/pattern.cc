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

// Finds what means something else in Oniguruma than in PCRE2: letters after a backslash such as \w, whose sets differ;
// nested classes and intersections; quantifiers; options; and letters that fold to several letters without case.
class MeaningCheck {
 public:
  explicit MeaningCheck(std::string_view expression) : text_(expression) {}

  // The part whose meaning differs; empty if there is none.
  std::string find() {
    for (at_ = 0; at_ < text_.size(); ++at_) {
      std::string differs = text_[at_] == '\\' ? after_backslash() : class_begin_ != 0 ? in_class() : outside();
      if (!differs.empty()) return differs;
    }
    return ignores_case_ ? folded_pair() : "";
  }

 private:
  bool next_is(std::string_view text) const { return text_.substr(at_).starts_with(text); }

  std::string after_backslash() {
    if (++at_ >= text_.size()) return "";
    const char letter = text_[at_];
    if (letter != 'p' && letter != 'P') {
      const bool differs = std::string_view("wWbBhHvVXRyYKOGQEC").find(letter) != std::string_view::npos;
      return differs ? std::string("\\") + letter : "";
    }
    const size_t end = text_.find('}', at_);
    const std::string_view name = end == std::string_view::npos ? "" : text_.substr(at_ + 1, end - at_ - 1);
    if (!name.starts_with('{') || name.find_first_of("=:") != std::string_view::npos) return "\\p without {NAME}";
    at_ = end;
    return "";
  }
  std::string in_class() {
    if (next_is("&&")) return "&&";
    if (next_is("[")) return "[ inside a class";
    if (next_is("]") && at_ > class_begin_) class_begin_ = 0;
    return "";
  }
  std::string outside() {
    for (const std::string_view differs : {"}+", "{,", "(*"}) {
      if (next_is(differs)) return std::string(differs);
    }
    if (next_is("[")) class_begin_ = at_ + (text_.substr(at_ + 1).starts_with('^') ? 2 : 1);
    if (!next_is("(?")) return "";
    for (const std::string_view known : {"(?i:", "(?i)"}) ignores_case_ |= next_is(known);
    for (const std::string_view known : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?i)"}) {
      if (next_is(known)) return "";
    }
    return std::string(text_.substr(at_, 4));
  }
  // Oniguruma matches the ligature U+FB06 for "st" without case, for instance.
  std::string folded_pair() const {
    for (const std::string_view pair : {"ss", "st", "ff", "fi", "fl", "SS", "ST", "FF", "FI", "FL", "\u00df"}) {
      if (text_.find(pair) != std::string_view::npos) return fmt::format("(?i) with \"{}\"", pair);
    }
    return "";
  }

  const std::string_view text_;
  size_t at_ = 0;
  size_t class_begin_ = 0;  // where the present class begins, after [ and ^; 0 outside of classes
  bool ignores_case_ = false;
};

void require_same_meaning(const std::string& expression, const std::string& source) {
  const std::string differs = MeaningCheck(expression).find();
  if (differs.empty()) return;
  throw DataError(
      fmt::format("{}: the expression \"{}\" contains {}, whose meaning differs between regular expression "
                  "libraries; Orthant reads expressions without it",
                  source, expression, differs));
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

Pattern::Pattern(const std::string& expression, const std::string& source) : expression_(expression), source_(source) {
  require_same_meaning(expression, source);
  int error = 0;
  size_t offset = 0;
  auto compiled = std::make_shared<Compiled>();
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  compiled->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_MULTILINE, &error, &offset, context.get());
  if (compiled->code == nullptr) {
    throw DataError(fmt::format("{}: the expression \"{}\" cannot be read at offset {}: {}", source, expression, offset,
                                pcre2_message(error)));
  }
  uint32_t matches_empty_text = 0;
  pcre2_pattern_info(compiled->code, PCRE2_INFO_MATCHEMPTY, &matches_empty_text);
  if (matches_empty_text != 0) {
    throw DataError(
        fmt::format("{}: the expression \"{}\" must not match the empty text; Orthant cannot use this "
                    "tokenizer",
                    source, expression));
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
      throw DataError(
          fmt::format("{}: the expression \"{}\" failed at byte {} of a text of {} bytes: {}; shorten or "
                      "remove this text, or use another tokenizer",
                      source_, expression_, at, text.size(), pcre2_message(matched)));
    }
    const size_t* ends = pcre2_get_ovector_pointer(memory.data);
    found.push_back({ends[0], ends[1]});
    at = ends[1];
  }
  return found;
}

}  // namespace orthant
