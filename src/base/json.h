// A strict JSON parser for untrusted files. It rejects duplicate keys, deep nesting and, by default, integers beyond 64
// bits.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace orthant {

/// Whether an integer that does not fit 64 bits is an error or becomes a float. transformers writes one of 31 digits as
/// the default of model_max_length.
enum class LargeIntegers { kRefuse, kToFloat };

/// Parses the text. `source` names its origin in error messages. Throws DataError on a syntax error or a zero byte
/// (with the offset in bytes), a duplicate key, a large integer unless it becomes a float, or nesting deeper than 64
/// levels.
nlohmann::ordered_json parse_json(std::string_view text, const std::string& source,
                                  LargeIntegers large = LargeIntegers::kRefuse);
/// The same, into objects with sorted keys, for objects of many keys: find() takes logarithmic time. In an
/// ordered_json, which keeps the order of the file, it takes linear time.
nlohmann::json parse_sorted_json(std::string_view text, const std::string& source,
                                 LargeIntegers large = LargeIntegers::kRefuse);

}  // namespace orthant
