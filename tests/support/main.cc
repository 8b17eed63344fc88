// main() of the test programs. Like the real program's main(), it resolves the vector math functions before several
// threads compute.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "comm/vector_math.h"

namespace {

// A plan counts the memory of fused kernels. ATen's operators make a tensor of every intermediate result, so tests of
// planned memory do not apply to them.
void leave_out_planned_memory() {
  constexpr const char* kPlannedMemory = "PipelineMemory.*:*PlannedMemory.*:*TensorMemory.*";
  std::string filter = testing::GTEST_FLAG(filter);
  filter += (filter.find('-') == std::string::npos ? "-" : ":") + std::string(kPlannedMemory);
  testing::GTEST_FLAG(filter) = filter;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const char* const kernels = std::getenv("ORTHANT_KERNELS");
  if (kernels != nullptr && std::string(kernels) == "aten") leave_out_planned_memory();
  orthant::resolve_vector_math();
  return RUN_ALL_TESTS();
}
