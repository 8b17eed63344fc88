// Members of the objects of a tokenizer.json. Each function throws DataError, with `source`, for a member of another
// type.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "data/pattern.h"

namespace orthant {

/// The member, or nullptr if it is missing or null.
const nlohmann::json* optional_member(const nlohmann::json& object, const char* name);
const nlohmann::json& member(const nlohmann::json& object, const char* name, const std::string& source);
bool flag(const nlohmann::json& object, const char* name, bool otherwise, const std::string& source);
std::string text_or(const nlohmann::json& object, const char* name, const std::string& otherwise,
                    const std::string& source);
/// The member "pattern": {"String": "..."} or {"Regex": "..."}.
Pattern pattern_member(const nlohmann::json& object, const std::string& source);

}  // namespace orthant
