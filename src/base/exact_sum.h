// Sums of non-negative numbers in fixed point: the same bits in every order and for every assignment to ranks.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>

namespace orthant {

/// Number of elements in a block of a parameter's shard. Squares inside a block are summed in double, and the sums of
/// blocks are added to an ExactSum. Equal gradients have the same norm in all layouts that do not cut a block.
inline constexpr int64_t kNormBlockElements = 256;

/// A sum of non-negative doubles in fixed point, from 2^-320 to 2^320. Digits below that range are dropped from each
/// addend. An addend above it, an infinity or a NaN makes the sum infinite or NaN. Partial sums of several ranks are
/// added as numbers(), element by element, in float64: this is exact for up to 2^20 ranks.
class ExactSum {
 public:
  /// Number of elements of numbers(): the digits, and one for sums above the range.
  static constexpr int kNumbers = 21, kDigits = kNumbers - 1;

  /// A digit has kBits bits; the lowest one of digit 0 stands for 2^kLowest.
  static constexpr int kBits = 32, kLowest = -320;

  /// Adds the value. It must not be negative.
  void add(double value);
  /// The 20 digits of the sum to the base 2^32, the lowest first; then infinity or NaN if the range was exceeded, else
  /// 0.
  std::array<double, kNumbers> numbers() const;
  /// Adds sums of numbers().
  void add(std::span<const double, kNumbers> numbers);
  /// Adds digits to the base 2^32, each at most 2^62. `above_range`: an addend was above the range.
  void add_digits(std::span<const int64_t, kDigits> digits, bool above_range);
  /// The sum, rounded to within two units in the last place. Equal sums give equal bits.
  double value() const { return value_of(numbers().data()); }

  /// value() of the sum that has these numbers, or of several sums whose numbers were added. Device code may call it.
  static constexpr double value_of(const double* numbers);
  /// Reduces each digit to kBits bits, and adds the rest to the next digit. Returns true if the sum is above the range.
  /// Device code may call it.
  static constexpr bool carry(int64_t* digits);

 private:
  void carry();

  std::array<int64_t, kDigits> digits_ = {};
  int64_t additions_ = 0;  // since the last carry
  double above_range_ = 0;
};

constexpr bool ExactSum::carry(int64_t* digits) {
  constexpr int64_t kLowBits = (int64_t{1} << kBits) - 1;
  for (int i = 0; i + 1 < kDigits; ++i) {
    digits[i + 1] += digits[i] >> kBits;
    digits[i] &= kLowBits;
  }
  const bool is_above = digits[kDigits - 1] >> kBits != 0;
  digits[kDigits - 1] &= kLowBits;
  return is_above;
}

constexpr double ExactSum::value_of(const double* numbers) {
  constexpr double kHighest = 0x1p288, kNext = 0x1p-32;  // values of a 1 in the last digit, and in the one before it
  static_assert(kLowest + kBits * (kDigits - 1) == 288 && kBits == 32);
  int64_t digits[kDigits] = {};
  for (int i = 0; i < kDigits; ++i) digits[i] = static_cast<int64_t>(numbers[i]);
  const bool is_above = carry(digits);
  double sum = 0, one = kHighest;
  for (int i = kDigits; i-- > 0; one *= kNext) sum += static_cast<double>(digits[i]) * one;
  return sum + (is_above ? std::numeric_limits<double>::infinity() : numbers[kDigits]);
}

}  // namespace orthant
