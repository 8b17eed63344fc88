// Formats the result of `orthant verify` as text and as JSON.
#pragma once

#include "runtime/verify.h"

#include <string>

namespace orthant {

std::string verify_text(const VerifyReport& report, const Plan& plan);
/// Fields as documented for `orthant verify --json`.
std::string verify_json(const VerifyReport& report, const Plan& plan);

}  // namespace orthant
