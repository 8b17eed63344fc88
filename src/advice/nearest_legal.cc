// Tries values of the keys of the refusal, first alone and then together with keys of the laws that they break.
#include "advice/nearest_legal.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "advice/candidates.h"
#include "base/text.h"
#include "config/table.h"

namespace orthant {
namespace {

constexpr size_t kMostRemedies = 3, kMostOfFirstKey = 2;
constexpr size_t kMostSettings = 12;        // of one remedy; no run file breaks that many laws
constexpr size_t kMostCompleted = 6;        // values of a key for which further settings are searched
constexpr size_t kMostFurtherValues = 128;  // tried for each key of a further law
constexpr int64_t kReach = 16, kFurtherReach = 2;

// True if the user can change the key: its value is neither the launcher's nor that of a model to continue.
bool can_change(const Config& config, const std::string& key) {
  const auto origin = config.origins.find(key);
  return origin == config.origins.end() || (origin->second != "launcher" && !origin->second.ends_with(".json"));
}

// True if both values are numbers on the same side of the key's present one, so that the second adds nothing.
bool on_same_side(const Config& config, const std::string& key, const std::string& first, const std::string& second) {
  const auto is_number = [](const std::string& text) { return text.find_first_not_of("-0123456789") == text.npos; };
  const std::string now = value_text(*find_key(key), config);
  if (!is_number(now) || !is_number(first) || !is_number(second)) return false;
  const auto below = [&](const std::string& text) { return std::stod(text) < std::stod(now); };
  return below(first) == below(second);
}

// Returns the law that the configuration breaks; nullopt if it is legal. A Refusal without keys is any other error.
std::optional<Refusal> refusal_of(const Config& config, const std::function<void(const Config&)>& check) {
  try {
    check(config);
  } catch (const Refusal& refusal) {
    return refusal;
  } catch (const ConfigError& error) {
    return Refusal(error.what(), {});
  }
  return {};
}

class Search {
 public:
  Search(const Config& config, const Refusal& refusal, const std::function<void(const Config&)>& check)
      : config_(config), refusal_(refusal), check_(check) {}

  // Returns at most `most` remedies of the refusal that begin with the key, all with as few settings as possible.
  std::vector<Remedy> remedies(const std::string& key, size_t most) const {
    std::vector<Remedy> legal, incomplete, same_key_incomplete;
    for (const std::string& value : candidates(config_, key, refusal_.numbers, kReach)) {
      if (legal.size() == most) break;
      if (!legal.empty() && on_same_side(config_, key, legal[0][0].value, value)) continue;
      const Remedy remedy = {{key, value}};
      const State state = state_of(remedy, refusal_);
      if (state == State::legal) legal.push_back(remedy);
      if (state == State::other_law) incomplete.push_back(remedy);
      if (state == State::law_of_same_key) same_key_incomplete.push_back(remedy);
    }
    if (!legal.empty()) return legal;
    incomplete.insert(incomplete.end(), same_key_incomplete.begin(), same_key_incomplete.end());
    for (size_t i = 0; i < incomplete.size(); ++i) {
      const bool is_near = i < kMostCompleted;
      if (!is_near && !legal.empty()) break;
      std::optional<Remedy> complete = is_near ? completed(incomplete[i]) : std::nullopt;
      if (!complete) complete = completed_by_defaults(incomplete[i]);
      if (complete) legal.push_back(std::move(*complete));
    }
    std::ranges::stable_sort(legal, {}, &Remedy::size);
    const auto longer = [&](const Remedy& remedy) { return remedy.size() > legal.front().size(); };
    legal.erase(std::ranges::find_if(legal, longer), legal.end());
    if (legal.size() > most) legal.resize(most);
    return legal;
  }

 private:
  enum class State { legal, same_law, other_law, law_of_same_key };

  // Tells whether the last setting of the remedy fulfils the broken law, and all others too. If it breaks another law,
  // that law must leave a key to change. It is better if that law does not involve the same key.
  State state_of(const Remedy& remedy, const Refusal& law) const {
    const std::optional<Config> other = with_settings(config_, remedy);
    if (!other) return State::same_law;
    const std::optional<Refusal> next = refusal_of(*other, check_);
    if (!next) return State::legal;
    const bool is_open = std::ranges::any_of(next->keys, [&](const std::string& key) { return is_free(remedy, key); });
    if (!is_open || next->keys == law.keys) return State::same_law;
    return std::ranges::count(next->keys, remedy.back().key) > 0 ? State::law_of_same_key : State::other_law;
  }

  // True if a further setting may change the key. The key refused first has remedies of its own.
  bool is_free(const Remedy& remedy, const std::string& key) const {
    return key != refusal_.keys.front() && std::ranges::find(remedy, key, &Setting::key) == remedy.end() &&
           can_change(config_, key);
  }

  // Returns the remedy with the settings that the further laws require; nullopt if there are none. For each law it
  // takes a setting that makes the run legal, or else the best one that fulfils the law.
  std::optional<Remedy> completed(Remedy remedy) const {
    while (remedy.size() < kMostSettings) {
      const std::optional<Refusal> law = refusal_of(*with_settings(config_, remedy), check_);
      if (!law) return remedy;
      std::optional<Remedy> progress, same_key_incomplete;
      for (const std::string& key : law->keys) {
        if (!is_free(remedy, key)) continue;
        size_t tried = 0;
        for (const std::string& value : candidates(*with_settings(config_, remedy), key, law->numbers, kFurtherReach)) {
          if (tried++ == kMostFurtherValues) break;
          Remedy longer = remedy;
          longer.push_back({key, value});
          const State state = state_of(longer, *law);
          if (state == State::legal) return longer;
          if (state == State::other_law && !progress) progress = longer;
          if (state == State::law_of_same_key && !same_key_incomplete) same_key_incomplete = longer;
        }
      }
      if (!progress && !same_key_incomplete) return {};
      remedy = progress ? std::move(*progress) : std::move(*same_key_incomplete);
    }
    return {};
  }

  // Like completed(), but sets the keys of the further laws to their defaults, which are legal together.
  std::optional<Remedy> completed_by_defaults(Remedy remedy) const {
    static const Config defaults;
    while (remedy.size() < kMostSettings) {
      const Config config = *with_settings(config_, remedy);
      const std::optional<Refusal> law = refusal_of(config, check_);
      if (!law) return remedy;
      const size_t before = remedy.size();
      for (const std::string& key : law->keys) {
        if (is_free(remedy, key) && !has_default(config, key))
          remedy.push_back({key, value_text(*find_key(key), defaults)});
      }
      if (remedy.size() == before) return {};
    }
    return {};
  }

  const Config& config_;
  const Refusal& refusal_;
  const std::function<void(const Config&)>& check_;
};

// True if the remedy has all settings of the other one.
bool includes(const Remedy& remedy, const Remedy& other) {
  return std::ranges::all_of(other, [&](const Setting& setting) {
    return std::ranges::find(remedy, setting) != remedy.end();
  });
}

std::string text_of(const std::string& it, const Remedy& remedy) {
  std::vector<std::string> words;
  for (const Setting& setting : remedy)
    words.push_back(fmt::format("{} to {}", setting.key == it ? "it" : setting.key, setting.value));
  return join(words, " and ");
}

}  // namespace

std::optional<Config> with_settings(Config config, const Remedy& remedy) {
  for (const Setting& setting : remedy) {
    const Key* key = find_key(setting.key);
    const bool is_text = setting.value.starts_with('"');
    const std::string word = is_text ? setting.value.substr(1, setting.value.size() - 2) : setting.value;
    if (set_from_word(*key, config, word) || illegal(*key, config)) return {};
    config.origins[setting.key] = "a way out";
  }
  return config;
}

std::vector<Remedy> nearest_legal(const Config& config, const Refusal& refusal,
                                  const std::function<void(const Config&)>& check) {
  const Search search(config, refusal, check);
  std::vector<Remedy> found;
  for (const std::string& key : refusal.keys) {
    if (found.size() == kMostRemedies) break;
    if (!can_change(config, key)) continue;
    const size_t most = found.empty() ? kMostOfFirstKey : 1;
    for (Remedy& remedy : search.remedies(key, most)) found.push_back(std::move(remedy));
  }
  // Remedies with the fewest settings come first. One with more settings is offered only for the refused key itself.
  size_t fewest = kMostSettings;
  for (const Remedy& remedy : found) fewest = std::min(fewest, remedy.size());
  const std::string refused = found.empty() ? "" : found.front().front().key;
  bool has_longer = false;
  std::erase_if(found, [&](const Remedy& remedy) {
    return remedy.size() > fewest && (remedy.front().key != refused || std::exchange(has_longer, true));
  });
  std::ranges::stable_sort(found, {}, &Remedy::size);
  for (size_t i = 0; i < found.size(); ++i) {
    const auto needs_less = [&](const Remedy& shorter) { return includes(found[i], shorter); };
    if (std::any_of(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(i), needs_less))
      found.erase(found.begin() + static_cast<std::ptrdiff_t>(i--));
  }
  return found;
}

ConfigError with_remedies(const Refusal& refusal, const std::vector<Remedy>& remedies) {
  const std::string law = refusal.what();
  if (remedies.empty()) return ConfigError(law);
  const std::string it = law.starts_with(refusal.keys.front() + " = ") ? refusal.keys.front() : "";
  std::vector<std::string> words;
  for (size_t begin = 0; begin < remedies.size();) {
    const Remedy& first = remedies[begin];
    const auto same = [&](const Remedy& other) { return other.size() == 1 && other[0].key == first[0].key; };
    size_t end = begin;
    std::vector<std::string> values;
    for (; end < remedies.size() && same(remedies[end]); ++end) values.push_back(remedies[end][0].value);
    const std::string called_it = begin == 0 ? it : "";
    words.push_back(text_of(called_it, values.empty() ? first : Remedy{{first[0].key, join_or(values)}}));
    begin = std::max(end, begin + 1);
  }
  return ConfigError(law + "; set " + join(words, ", or "));
}

}  // namespace orthant
