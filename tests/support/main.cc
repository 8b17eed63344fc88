// As the program's own main: before any test computes on several threads.
#include <gtest/gtest.h>

#include "comm/vector_math.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  orthant::resolve_vector_math();
  return RUN_ALL_TESTS();
}
