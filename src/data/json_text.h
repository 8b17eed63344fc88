// Returns the string under one key of a JSON object, and skips the other members.
#pragma once

#include <string>
#include <string_view>

namespace orthant {

/// The text of the object's key. Other members may have any value. Throws DataError, with `source`, if the line is not
/// one JSON object, or the key is missing, repeated or not a text.
std::string read_json_text(std::string_view line, const std::string& key, const std::string& source);

}  // namespace orthant
