// The messages of errors: what was thrown, and whether it says all that it must.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace orthant {

/// The message of the Error that the call throws; "" if it throws none. Other exceptions pass.
template <typename Error, typename Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline testing::AssertionResult says(const std::string& message, const std::vector<std::string>& parts) {
  for (const auto& part : parts) {
    if (message.find(part) == std::string::npos) {
      return testing::AssertionFailure() << "no \"" << part << "\" in: " << message;
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace orthant
