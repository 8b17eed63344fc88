// Members of the objects of a tokenizer.json. Functions with `source` throw DataError, which begins with it, for a
// member of another type.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "data/pattern.h"

namespace orthant {

/// Ids of tokens must be below this number.
inline constexpr uint64_t kMostTokens = uint64_t{1} << 28;

/// The member, or nullptr if it is missing or null.
const nlohmann::json* optional_member(const nlohmann::json& object, const char* name);
/// The member, or null if it is missing.
const nlohmann::json& member_or_null(const nlohmann::json& object, const char* name);
/// The member; an error if it is missing or null.
const nlohmann::json& member(const nlohmann::json& object, const char* name, const std::string& source);
/// The member, or `fallback` if it is missing or null.
bool bool_or(const nlohmann::json& object, const char* name, bool fallback, const std::string& source);
std::string text_or(const nlohmann::json& object, const char* name, const std::string& fallback,
                    const std::string& source);
/// The member "pattern": {"String": "..."} or {"Regex": "..."}.
Pattern pattern_member(const nlohmann::json& object, const std::string& source);

}  // namespace orthant
