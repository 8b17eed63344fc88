// JSON that may come from strangers: refuses duplicate keys, too-large integers and deep nesting, and says where.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace orthant {

/// Parses text strictly. Throws DataError("source: offset N: ...") on a syntax error, a duplicate key, an integer that
/// does not fit 64 bits, or nesting deeper than 64.
nlohmann::ordered_json parse_json(std::string_view text, const std::string& source);

}  // namespace orthant
