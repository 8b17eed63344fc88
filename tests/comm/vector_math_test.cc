// MKL detects the CPU once, on one thread (comm/vector_math.h). The function below replaces MKL's detection function
// and takes 50 ms, so that threads which start meanwhile would call it as well.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace {
std::atomic<int> asked = 0;
}

extern "C" int mkl_serv_vml_cpu_detect() {
  ++asked;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  static const auto real = reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, "mkl_serv_vml_cpu_detect"));
  return real();
}

namespace orthant::vector_math_test {
namespace {

TEST(VectorMath, AsksForTheCpuOnce) {
  if (dlsym(RTLD_NEXT, "mkl_serv_vml_cpu_detect") == nullptr) GTEST_SKIP() << "a libtorch without MKL";
  const int before = asked;
  EXPECT_GE(before, 1) << "nobody asked while there was one thread";
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([] { at::exp(at::ones({8}, at::kDouble)); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(asked, before);
}

}  // namespace
}  // namespace orthant::vector_math_test
