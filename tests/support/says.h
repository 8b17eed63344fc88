// Whether a message holds all the parts that it must.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace orthant {

inline testing::AssertionResult says(const std::string& message, const std::vector<std::string>& parts) {
  for (const auto& part : parts) {
    if (message.find(part) == std::string::npos) {
      return testing::AssertionFailure() << "no \"" << part << "\" in: " << message;
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace orthant
