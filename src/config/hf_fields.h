// The keys of a JSON object in a Hugging Face directory, read with checked types.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "base/errors.h"

namespace orthant {

/// Largest value of a size or an id. Products of two cannot overflow.
inline constexpr int64_t kHfSizeLimit = int64_t{1} << 31;

/// Reads keys of an object with checked types, and records which keys were read. A value of another type or size is a
/// DataError that names the source, the key and the value. Without a fallback, a key must be there.
class HfFields {
 public:
  using Json = nlohmann::ordered_json;
  HfFields(const Json& object, std::string source) : object_(object), source_(std::move(source)) {}

  /// Returns null for an absent key. A null value counts as absent, as in transformers.
  const Json* find(const std::string& key) {
    taken_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool has_null(const std::string& key) const { return object_.contains(key) && object_.at(key).is_null(); }
  [[noreturn]] void refuse(const std::string& key, const std::string& expectation) const {
    const auto found = object_.find(key);
    throw DataError(fmt::format("{}: {} = {}: {}", source_, key,
                                found == object_.end() ? "(absent)" : found->dump().substr(0, 200), expectation));
  }
  int64_t integer(const std::string& key, std::optional<int64_t> fallback, int64_t minimum = 1) {
    const Json* value = find(key);
    if (value == nullptr && fallback) return *fallback;
    if (value == nullptr || !value->is_number_integer() || value->is_number_float() ||
        (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(kHfSizeLimit)) ||
        value->get<int64_t>() < minimum || value->get<int64_t>() > kHfSizeLimit) {
      refuse(key, fmt::format("expected an integer from {} to {}", minimum, kHfSizeLimit));
    }
    return value->get<int64_t>();
  }
  double positive(const std::string& key, std::optional<double> fallback) {
    const Json* value = find(key);
    if (value == nullptr && fallback) return *fallback;
    if (value == nullptr || !value->is_number() || !(value->get<double>() > 0.0)) {
      refuse(key, "expected a number above 0");
    }
    return value->get<double>();
  }
  double not_negative(const std::string& key, double fallback) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number() || !(value->get<double>() >= 0.0)) refuse(key, "expected a number of at least 0");
    return value->get<double>();
  }
  bool boolean(const std::string& key, bool fallback) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) refuse(key, "expected true or false");
    return value->get<bool>();
  }
  std::optional<std::string> text(const std::string& key) {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) refuse(key, "expected a string");
    return value->get<std::string>();
  }
  /// The keys that were not read.
  Json rest() const {
    Json rest = Json::object();
    for (const auto& [key, value] : object_.items()) {
      if (!taken_.contains(key)) rest[key] = value;
    }
    return rest;
  }

 private:
  const Json& object_;
  std::string source_;
  std::set<std::string> taken_;
};

}  // namespace orthant
