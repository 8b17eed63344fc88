// Implements the strict parser on the event interface of nlohmann::json.
#include "base/json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/errors.h"
#include "base/terminal_text.h"

namespace orthant {
namespace {

// Builds the document from parser events, as Json::parse does, and rejects three inputs that Json::parse accepts:
// duplicate keys, integers beyond 64 bits and deep nesting.
template <typename Json>
class StrictBuilder : public nlohmann::detail::json_sax_dom_parser<Json> {
  using Base = nlohmann::detail::json_sax_dom_parser<Json>;

 public:
  StrictBuilder(Json& result, const std::string& source, LargeIntegers large)
      : Base(result, true), source_(source), large_(large) {}

  bool start_object(std::size_t elements) { return enter(), Base::start_object(elements); }
  bool end_object() { return keys_.pop_back(), Base::end_object(); }
  bool start_array(std::size_t elements) { return enter(), Base::start_array(elements); }
  bool end_array() { return keys_.pop_back(), Base::end_array(); }
  bool key(std::string& name) {
    if (!keys_.back().insert(name).second) throw DataError(fmt::format("{}: duplicate key \"{}\"", source_, name));
    return Base::key(name);
  }
  bool number_float(double value, const std::string& text) {
    if (large_ == LargeIntegers::kRefuse && text.find_first_of(".eE") == std::string::npos) {
      throw DataError(fmt::format("{}: integer {} does not fit 64 bits", source_, text));
    }
    return Base::number_float(value, text);
  }
  bool parse_error(std::size_t offset, const std::string& token, const nlohmann::detail::exception&) {
    throw DataError(
        fmt::format("{}: offset {}: not valid JSON near \"{}\"", source_, offset, escape_for_terminal(token, 40)));
  }

 private:
  void enter() {
    if (keys_.size() >= 64) throw DataError(fmt::format("{}: JSON is nested deeper than 64 levels", source_));
    keys_.emplace_back();
  }

  const std::string& source_;
  const LargeIntegers large_;
  std::vector<std::set<std::string>> keys_;
};

template <typename Json>
Json parse(std::string_view text, const std::string& source, LargeIntegers large) {
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
