// Formats the result of `orthant verify` as text and as JSON.
#pragma once

#include "runtime/reference.h"
#include "runtime/verify.h"

#include <string>

namespace orthant {

std::string verify_text(const VerifyReport& report, const Plan& plan);
/// The comparison with another engine, whose steps are in `file`.
std::string reference_text(const ReferenceReport& report, const std::string& file);
/// Fields as documented in docs/verify.md; `reference` may be null.
std::string verify_json(const VerifyReport& report, const ReferenceReport* reference, const Plan& plan);

}  // namespace orthant
