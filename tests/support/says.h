// Error messages: obtain the message of a thrown error, and check that it contains all required parts.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace orthant {

/// Returns the message of the Error that the call throws, or "" if it throws none. Other exceptions propagate.
template <typename Error, typename Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Succeeds if the message contains every part.
inline testing::AssertionResult says(const std::string& message, const std::vector<std::string>& parts) {
  for (const auto& part : parts) {
    if (message.find(part) == std::string::npos) {
      return testing::AssertionFailure() << "no \"" << part << "\" in: " << message;
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace orthant
