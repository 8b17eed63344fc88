// The "normalizer" of a tokenizer.json: changes text before it is cut into pieces.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/growth_limit.h"

namespace orthant {

class Normalizer {
 public:
  /// `json` may be null: no changes. Throws DataError, with `source`, for a type that Orthant does not know.
  Normalizer(const nlohmann::json& json, const std::string& source);

  bool changes_text() const { return !steps_.empty(); }
  /// Bytes that are not valid UTF-8 stay as they are. Throws DataError if the result is too long, by GrowthLimit.
  std::string apply(std::string_view text) const;

 private:
  using Step = std::function<std::string(std::string, const GrowthLimit&)>;
  void add(const nlohmann::json& json, const std::string& source);

  std::string source_;
  std::vector<Step> steps_;
};

}  // namespace orthant
