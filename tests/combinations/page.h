// Prints docs/combinations.md from the outcomes of the matrix.
#pragma once

#include "tests/combinations/outcome.h"

#include <string>
#include <vector>

namespace orthant {

struct Row {
  Draw draw;
  Outcome outcome;
};

/// The page of all pairs.
std::string combinations_page(const std::vector<Row>& pairs);

}  // namespace orthant
