// Enumerates values by the type of the key.
#include "advice/candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "config/table.h"

namespace orthant {
namespace {

using Texts = std::vector<std::string>;

double log_distance(int64_t a, int64_t b) {
  const auto at_least_1 = [](int64_t value) { return static_cast<double>(std::max<int64_t>(value, 1)); };
  return std::abs(std::log(at_least_1(a)) - std::log(at_least_1(b)));
}

// Degrees: the divisors of the ranks, by the ratio to the present degree; then the rest of the ranks.
Texts degrees(const Config& config, int64_t now) {
  std::vector<int64_t> values = divisors_of(config.run.ranks);
  std::ranges::stable_sort(values, {}, [&](int64_t value) { return log_distance(value, now); });
  values.push_back(-1);
  Texts texts;
  for (const int64_t value : values) {
    if (value != now) texts.push_back(fmt::format("{}", value));
  }
  return texts;
}

// Tensor meshes whose number of ranks divides run.ranks, by the ratios of the extents and of the number of ranks.
Texts meshes(const Config& config, const std::array<int64_t, 3>& now) {
  using Mesh3 = std::array<int64_t, 3>;
  double ranks_now = 0;
  for (const int64_t extent : now) ranks_now += std::log(static_cast<double>(extent));
  const auto distance = [&](const Mesh3& mesh) {
    double sum = 0, ranks = 0;
    for (size_t i = 0; i < 3; ++i) {
      sum += log_distance(mesh[i], now[i]);
      ranks += std::log(static_cast<double>(mesh[i]));
    }
    return sum + 1.01 * std::abs(ranks - ranks_now);  // of meshes at equal distance, the one with as many ranks
  };
  std::vector<std::pair<double, Mesh3>> values;
  for (const int64_t rows : divisors_of(config.run.ranks)) {
    for (const int64_t columns : divisors_of(config.run.ranks / rows)) {
      for (const int64_t depth : divisors_of(config.run.ranks / rows / columns)) {
        const Mesh3 mesh = {rows, columns, depth};
        if (mesh != now) values.emplace_back(distance(mesh), mesh);
      }
    }
  }
  std::ranges::stable_sort(values, {}, &std::pair<double, Mesh3>::first);
  Texts texts;
  for (const auto& [apart, mesh] : values) texts.push_back(fmt::format("[{}, {}, {}]", mesh[0], mesh[1], mesh[2]));
  return texts;
}

// Appends the number, its multiples next to `now`, and its divisors next to `now`.
void add_relatives(std::vector<int64_t>& values, int64_t number, int64_t now) {
  constexpr int64_t kMostFactored = int64_t{1} << 40;
  values.push_back(number);
  if (number <= 0) return;
  const int64_t below = now / number * number;
  for (const int64_t multiple : {below, below + number, below + 2 * number}) values.push_back(multiple);
  if (number > kMostFactored) return;
  const std::vector<int64_t> divisors = divisors_of(number);
  const auto above = std::ranges::upper_bound(divisors, now);
  for (auto at = above; at != divisors.end() && at - above < 2; ++at) values.push_back(*at);
  for (auto at = above; at != divisors.begin() && above - at < 3; --at) values.push_back(*(at - 1));
}

Texts integers(int64_t now, int64_t by_default, const std::vector<double>& numbers, int64_t reach) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 4;
  std::vector<int64_t> values = {by_default};
  for (const double number : numbers) {
    if (number == std::floor(number) && number >= 0 && number < 0x1p60)
      add_relatives(values, static_cast<int64_t>(number), std::clamp<int64_t>(now, 0, kMost));
  }
  for (int64_t apart = 1; apart <= reach; ++apart) {
    values.push_back(now - apart);
    if (now <= kMost) values.push_back(now + apart);
  }
  for (int64_t half = now / 2; half > 0; half /= 2) values.push_back(half);
  for (int64_t twice = now; twice > 0 && twice <= kMost; twice *= 2) values.push_back(2 * twice);
  const auto distance = [&](int64_t value) { return std::abs(static_cast<double>(value) - static_cast<double>(now)); };
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  std::ranges::stable_sort(values, {}, distance);
  Texts texts;
  for (const int64_t value : values) {
    if (value != now) texts.push_back(fmt::format("{}", value));
  }
  return texts;
}

// The default, then the numbers of the law.
Texts numbers_of(const Key& key, const std::vector<double>& numbers) {
  Texts texts = {default_text(key)};
  for (const double number : numbers) texts.push_back(fmt::format("{}", number));
  return texts;
}

struct Enumerate {
  const Config& config;
  const Key& key;
  const std::vector<double>& numbers;
  int64_t reach;

  Texts operator()(bool* now) const { return {*now ? "false" : "true"}; }
  Texts operator()(int64_t* now) const {
    if (key.legal.or_minus_one) return degrees(config, *now);
    Config defaults;
    return integers(*now, *std::get<int64_t*>(key.field(defaults)), numbers, reach);
  }
  Texts operator()(double*) const { return numbers_of(key, numbers); }
  Texts operator()(std::vector<double>*) const { return {"[]"}; }
  Texts operator()(HeldOut*) const { return numbers_of(key, numbers); }
  Texts operator()(std::string* now) const {
    Texts texts;
    for (const std::string& choice : key.legal.choices) {
      if (choice != *now) texts.push_back(toml_quoted(choice));
    }
    std::ranges::stable_partition(texts, [&](const std::string& text) { return text == default_text(key); });
    return texts;
  }
  Texts operator()(std::vector<std::string>* now) const {
    Texts texts;
    if (!now->empty() && default_text(key) == "[]") texts.emplace_back("[]");
    for (const std::string& choice : key.legal.choices) {
      const std::vector<std::string> only = {choice};
      if (*now != only) texts.push_back("[" + toml_quoted(choice) + "]");
    }
    return texts;
  }
  Texts operator()(std::vector<int64_t>*) const { return {"[]", "[-1]"}; }
  Texts operator()(std::array<int64_t, 3>* now) const { return meshes(config, *now); }
};

}  // namespace

std::vector<int64_t> divisors_of(int64_t number) {
  std::vector<int64_t> low, high;
  for (int64_t i = 1; i * i <= number; ++i) {
    if (number % i != 0) continue;
    low.push_back(i);
    if (i * i != number) high.push_back(number / i);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

std::vector<std::string> candidates(const Config& config, const std::string& key, const std::vector<double>& numbers,
                                    int64_t reach) {
  const Key* entry = find_key(key);
  ORTHANT_CHECK(entry != nullptr, key);
  return std::visit(Enumerate{config, *entry, numbers, reach}, entry->field(const_cast<Config&>(config)));
}

}  // namespace orthant
