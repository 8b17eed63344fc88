#include "base/exact_sum.h"

#include <cmath>
#include <limits>

#include "base/errors.h"

namespace orthant {

void ExactSum::add(double value) {
  ORTHANT_CHECK(!(value < 0), value);
  if (!(value < std::ldexp(1.0, -kLowest))) {  // also for NaN
    above_range_ += std::isnan(value) ? value : std::numeric_limits<double>::infinity();
    return;
  }
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);  // value = fraction 2^exponent
  // value = mantissa 2^(exponent - 53), whose lowest digit is number `first`.
  auto mantissa = static_cast<unsigned __int128>(std::ldexp(fraction, 53));
  int position = exponent - 53 - kLowest;
  if (position < 0) {
    mantissa = position <= -53 ? 0 : mantissa >> -position;
    position = 0;
  }
  mantissa <<= position % kBits;
  for (int digit = position / kBits; mantissa != 0; ++digit, mantissa >>= kBits) {
    digits_[static_cast<size_t>(digit)] += static_cast<int64_t>(mantissa & 0xffffffffu);
  }
  constexpr int64_t kMostAdditions = int64_t{1} << 30;  // each adds less than 2^32 to a digit
  if (++additions_ == kMostAdditions) carry();
}

void ExactSum::carry() {
  additions_ = 0;
  if (carry(digits_.data())) above_range_ = std::numeric_limits<double>::infinity();
}

std::array<double, ExactSum::kNumbers> ExactSum::numbers() const {
  ExactSum carried = *this;
  carried.carry();
  std::array<double, kNumbers> numbers;
  for (size_t i = 0; i < digits_.size(); ++i) numbers[i] = static_cast<double>(carried.digits_[i]);
  numbers.back() = carried.above_range_;
  return numbers;
}

void ExactSum::add(std::span<const double, kNumbers> numbers) {
  for (size_t i = 0; i < digits_.size(); ++i) digits_[i] += static_cast<int64_t>(numbers[i]);
  above_range_ += numbers.back();
  carry();
}

void ExactSum::add_digits(std::span<const int64_t, kDigits> digits, bool above_range) {
  carry();
  for (size_t i = 0; i < digits_.size(); ++i) digits_[i] += digits[i];
  if (above_range) above_range_ = std::numeric_limits<double>::infinity();
  carry();
}

}  // namespace orthant
