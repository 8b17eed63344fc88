// Reads one text of a JSON object, without building the object.
#pragma once

#include <string>
#include <string_view>

namespace orthant {

/// The text of the object's key. Other members may have any value. Throws DataError, with `source`, if the line is not
/// one JSON object, or the key is missing, repeated or not a text.
std::string read_json_text(std::string_view line, const std::string& key, const std::string& source);

}  // namespace orthant
