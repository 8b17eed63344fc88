#include "data/json_text.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/errors.h"
#include "base/terminal_text.h"

namespace orthant {
namespace {

using Json = nlohmann::json;

constexpr const char* kLaw =
    "must be one JSON object, because data.format = \"jsonl\"; for plain text, set it to \"text\"";

// Receives the events of the parser. Each returns true, so that parsing goes on.
class TextOfKey final : public nlohmann::json_sax<Json> {
 public:
  TextOfKey(const std::string& key, const std::string& source) : key_(key), source_(source) {}

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("true or false"); }
  bool number_integer(number_integer_t) override { return other("a number"); }
  bool number_unsigned(number_unsigned_t) override { return other("a number"); }
  bool number_float(number_float_t, const string_t&) override { return other("a number"); }
  bool binary(binary_t&) override { return other("bytes"); }
  bool string(string_t& value) override {
    if (depth_ == 0) refuse(kLaw);
    if (std::exchange(is_wanted_, false)) text_ = std::move(value);
    return true;
  }
  bool start_object(std::size_t) override { return enter(false); }
  bool start_array(std::size_t) override { return enter(true); }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool key(string_t& name) override {
    is_wanted_ = depth_ == 1 && name == key_;
    if (is_wanted_ && text_) refuse(fmt::format("has the key \"{}\" twice", key_));
    return true;
  }
  bool parse_error(std::size_t offset, const std::string& token, const nlohmann::detail::exception&) override {
    refuse(fmt::format("must be one valid JSON object, and is not at offset {}, near \"{}\"; repair or remove the line",
                       offset, escape_for_terminal(token, 40)));
  }

  std::string take() {
    if (!text_) {
      refuse(fmt::format(
          "has no key \"{}\"; set data.text_key to the key of the text (with orthant tokenize: --text-key)", key_));
    }
    return std::move(*text_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const { throw DataError(source_ + " " + what); }
  bool other(const char* type) {
    if (depth_ == 0) refuse(kLaw);
    if (is_wanted_) refuse(fmt::format("the value of \"{}\" must be a text, and is {}", key_, type));
    return true;
  }
  bool enter(bool array) {
    if (depth_ == 0 && array) refuse(kLaw);
    if (is_wanted_) other(array ? "an array" : "an object");
    ++depth_;
    return true;
  }

  const std::string& key_;
  const std::string& source_;
  std::optional<std::string> text_;
  int64_t depth_ = 0;
  bool is_wanted_ = false;
};

}  // namespace

std::string read_json_text(std::string_view line, const std::string& key, const std::string& source) {
  // The parser takes a zero byte for the end of its input, and would ignore the text after it.
  if (const size_t zero = line.find('\0'); zero != std::string_view::npos) {
    throw DataError(
        fmt::format("{} must not contain a zero byte, and does at offset {}; repair or remove the line", source, zero));
  }
  TextOfKey reader(key, source);
  Json::sax_parse(line.begin(), line.end(), &reader);
  return reader.take();
}

}  // namespace orthant
