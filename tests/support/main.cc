// main() of the test programs. Like the real program's main(), it resolves the vector math functions before several
// threads compute.
#include <gtest/gtest.h>

#include "comm/vector_math.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  orthant::resolve_vector_math();
  return RUN_ALL_TESTS();
}
