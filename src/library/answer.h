// Requests of the C interface as functions: each takes JSON and returns an answer, which has several forms of text.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace orthant {

using Request = nlohmann::ordered_json;

/// A result that never changes, so that several threads may read it.
class Answer {
 public:
  virtual ~Answer() = default;
  /// Returns the result in the form that request["form"] names. Throws LogicError for an unknown form.
  virtual std::string text(const Request& request) const = 0;
};

/// Each implements the function of orthant_c.h with the same name. Throws ConfigError and DataError.
std::unique_ptr<Answer> answer_plan(const Request& request);
std::unique_ptr<Answer> answer_search(const Request& request);
std::unique_ptr<Answer> answer_schedule(const Request& request);

}  // namespace orthant
