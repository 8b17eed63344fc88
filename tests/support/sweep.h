// Tests over many cases: `make test` runs them on a sample of the cases, `make test-full` on all.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <vector>

namespace orthant {

class Sweep {
 public:
  static Sweep over_a_sample() { return Sweep(false); }
  static Sweep over_all() { return Sweep(true); }

  /// All cases, or a sample of num_sampled cases at equal distances. The sample has the first and the last case; a
  /// sample of one has the last.
  template <class Cases>
  auto of(const Cases& cases, size_t num_sampled) const {
    std::vector<std::decay_t<decltype(*std::begin(cases))>> all(std::begin(cases), std::end(cases));
    if (full_ || all.size() <= num_sampled) return all;
    decltype(all) sample;
    for (size_t i = 0; i < num_sampled; ++i)
      sample.push_back(num_sampled == 1 ? all.back() : all[i * (all.size() - 1) / (num_sampled - 1)]);
    return sample;
  }

 private:
  explicit Sweep(bool full) : full_(full) {}
  bool full_;
};

}  // namespace orthant

/// Defines TEST(Suite, Name), which runs a sample of the cases, and TEST(LongSuite, Name), which runs all. The body
/// gets the cases from its parameter `sweep`: for (const Case& c : sweep.of(cases(), 4)).
#define SWEEP_TEST(Suite, Name)                                                      \
  static void Suite##_##Name##_over(const ::orthant::Sweep& sweep);                  \
  TEST(Suite, Name) { Suite##_##Name##_over(::orthant::Sweep::over_a_sample()); }    \
  TEST(Long##Suite, Name) { Suite##_##Name##_over(::orthant::Sweep::over_all()); }   \
  static void Suite##_##Name##_over([[maybe_unused]] const ::orthant::Sweep& sweep)
