#include "data/json_fields.h"

#include <nlohmann/json.hpp>

#include "base/errors.h"

namespace orthant {

using Json = nlohmann::json;

const Json* optional_member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const Json& member_or_null(const Json& object, const char* name) {
  static const Json null;
  const Json* found = optional_member(object, name);
  return found == nullptr ? null : *found;
}

const Json& member(const Json& object, const char* name, const std::string& source) {
  const Json* found = optional_member(object, name);
  if (found == nullptr) throw DataError(fmt::format("{}: \"{}\" is missing", source, name));
  return *found;
}

bool bool_or(const Json& object, const char* name, bool fallback, const std::string& source) {
  const Json* found = optional_member(object, name);
  if (found == nullptr) return fallback;
  if (!found->is_boolean()) throw DataError(fmt::format("{}: \"{}\" must be true or false", source, name));
  return found->get<bool>();
}

std::string text_or(const Json& object, const char* name, const std::string& fallback, const std::string& source) {
  const Json* found = optional_member(object, name);
  if (found == nullptr) return fallback;
  if (!found->is_string()) throw DataError(fmt::format("{}: \"{}\" must be a text", source, name));
  return found->get<std::string>();
}

Pattern pattern_member(const Json& object, const std::string& source) {
  const Json& pattern = member(object, "pattern", source);
  const std::string text = text_or(pattern, "String", "", source);
  if (!text.empty()) return Pattern::of_text(text);
  const std::string expression = text_or(pattern, "Regex", "", source);
  if (!expression.empty()) return Pattern(expression, source);
  throw DataError(fmt::format("{}: \"pattern\" must be {{\"String\": \"...\"}} or {{\"Regex\": \"...\"}}", source));
}

}  // namespace orthant
