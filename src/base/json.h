// A strict JSON parser for untrusted files. It rejects duplicate keys, integers beyond 64 bits and deep nesting.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace orthant {

/// Parses the text. `source` names its origin in error messages. Throws DataError on a syntax error (with its offset in
/// bytes), a duplicate key, an integer that does not fit 64 bits, or nesting deeper than 64 levels.
nlohmann::ordered_json parse_json(std::string_view text, const std::string& source);
/// The same, into objects with sorted keys, for objects of many keys: find() takes logarithmic time. In an
/// ordered_json, which keeps the order of the file, it takes linear time.
nlohmann::json parse_sorted_json(std::string_view text, const std::string& source);

}  // namespace orthant
