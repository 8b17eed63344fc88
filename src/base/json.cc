// Implements the strict parser on the event interface of nlohmann::json.
#include "base/json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/terminal_text.h"

namespace orthant {
namespace {

// Builds the document from parser events, as Json::parse does, and rejects three inputs that Json::parse accepts:
// duplicate keys, integers beyond 64 bits and deep nesting. A key takes logarithmic time, also in an ordered_json,
// whose own insertion compares it with all others.
template <typename Json>
class StrictBuilder {
 public:
  StrictBuilder(Json& root, const std::string& source, LargeIntegers large)
      : root_(root), source_(source), large_(large) {}

  bool null() { return add(nullptr), true; }
  bool boolean(bool value) { return add(value), true; }
  bool number_integer(int64_t value) { return add(value), true; }
  bool number_unsigned(uint64_t value) { return add(value), true; }
  bool number_float(double value, const std::string& text) {
    if (large_ == LargeIntegers::kRefuse && text.find_first_of(".eE") == std::string::npos) {
      throw DataError(fmt::format("{}: integer {} does not fit 64 bits", source_, escape_for_terminal(text, 80)));
    }
    return add(value), true;
  }
  bool string(std::string& value) { return add(std::move(value)), true; }
  bool binary(typename Json::binary_t& value) { return add(std::move(value)), true; }
  bool start_object(std::size_t) { return enter(Json::object()); }
  bool start_array(std::size_t) { return enter(Json::array()); }
  bool end_object() { return open_.pop_back(), true; }
  bool end_array() { return open_.pop_back(), true; }
  bool key(std::string& name) {
    if (!open_.back().keys.insert(name).second) {
      throw DataError(fmt::format("{}: duplicate key \"{}\"", source_, escape_for_terminal(name, 80)));
    }
    name_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t offset, const std::string& token, const nlohmann::detail::exception& error) {
    constexpr int kNumberOverflow = 406;  // of nlohmann::json
    if (std::string_view(error.what()).find("unexpected end of input") != std::string_view::npos) {
      throw DataError(offset <= 1 ? fmt::format("{}: is empty, but must be JSON", source_)
                                  : fmt::format("{}: offset {}: the JSON ends too early", source_, offset));
    }
    throw DataError(fmt::format("{}: offset {}: {} near \"{}\"", source_, offset,
                                error.id == kNumberOverflow ? "a number beyond the range of float64" : "not valid JSON",
                                escape_for_terminal(token, 40)));
  }

 private:
  struct Open {
    Json* value;
    std::set<std::string> keys;  // of an object
  };

  // Puts the value into the innermost open object or array, and returns where it is. It stays there while it is open.
  Json& add(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    Json& parent = *open_.back().value;
    if (parent.is_array()) {
      auto& items = parent.template get_ref<typename Json::array_t&>();
      return items.emplace_back(std::move(value));
    }
    auto& members = parent.template get_ref<typename Json::object_t&>();
    if constexpr (std::is_same_v<Json, nlohmann::ordered_json>) {
      return members.emplace_back(std::move(name_), std::move(value)).second;
    } else {
      return members.emplace(std::move(name_), std::move(value)).first->second;
    }
  }

  bool enter(Json value) {
    if (open_.size() >= 64) throw DataError(fmt::format("{}: JSON is nested deeper than 64 levels", source_));
    open_.push_back({&add(std::move(value)), {}});
    return true;
  }

  Json& root_;
  const std::string& source_;
  const LargeIntegers large_;
  std::vector<Open> open_;  // the objects and arrays that contain the next value, outermost first
  std::string name_;        // the key of the next value
};

template <typename Json>
Json parse(std::string_view text, const std::string& source, LargeIntegers large) {
  // The parser takes a zero byte for the end of its input, and would ignore the text after it.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    throw DataError(
        fmt::format("{}: offset {}: JSON must not contain a zero byte; write \\u0000 inside a text", source, zero));
  }
  Json root;
  StrictBuilder<Json> builder(root, source, large);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return root;
}

}  // namespace

nlohmann::ordered_json parse_json(std::string_view text, const std::string& source, LargeIntegers large) {
  return parse<nlohmann::ordered_json>(text, source, large);
}

nlohmann::json parse_sorted_json(std::string_view text, const std::string& source, LargeIntegers large) {
  return parse<nlohmann::json>(text, source, large);
}

}  // namespace orthant
