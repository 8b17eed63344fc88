// The results of the search of layouts as a run, as text and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "advice/fit.h"
#include "advice/layout_search.h"
#include "advice/plan_json.h"
#include "base/errors.h"
#include "base/terminal_text.h"
#include "base/text.h"
#include "base/text_table.h"
#include "config/table.h"

namespace orthant {
namespace {

// The part of the step that grows most from the best layout to this one.
std::string reason(const FoundLayout& best, const FoundLayout& other) {
  const auto before = best.time.named_parts();
  std::string name;
  double most = 0;
  for (const auto& [part, seconds] : other.time.named_parts()) {
    const auto same = std::ranges::find(before, part, [](const auto& entry) { return entry.first; });
    const double more = seconds - (same == before.end() ? 0 : same->second);
    if (more > most) name = part, most = more;
  }
  return name.empty() ? "" : fmt::format("{} +{:.2g} s", name, most);
}

// The keys that the search could choose, but that the user has set.
std::vector<std::string> given_keys(const FoundLayout& found) {
  std::vector<std::string> given;
  for (const std::string& key : searched_keys()) {
    if (found.config.is_set(key) && found.config.origins.at(key) != kChosenByAuto) given.push_back(key);
  }
  return given;
}

}  // namespace

std::string row_of(const FoundLayout& found) {
  std::string text = fmt::format("{} {}", found.time.seconds, found.memory_bytes);
  Config config = found.config;
  for (const std::string& key : searched_keys()) {
    if (key != "parallelism.zero_reshard") text += " " + value_text(*find_key(key), config);
  }
  return text;
}

std::string smallest_text(const FoundLayout& smallest, const Hardware& hardware) {
  const double limit = smallest.config.run.memory_gib_per_rank;
  const auto bytes = static_cast<double>(smallest.memory_bytes);
  std::string text = fmt::format("the smallest needs {} on a rank: {}; use more ranks", gib_text(smallest.memory_bytes),
                                 smallest.name);
  if (limit > 0 && bytes > limit * 0x1p30 && smallest.fits_device) {
    text += fmt::format(", or set run.memory_gib_per_rank to {} or more", gib_number(smallest.memory_bytes));
  }
  if (!smallest.fits_device) {
    text += fmt::format(", or devices with more than the {} of {}", format_bytes(hardware.device.memory_bytes),
                        escape_line(hardware.name));
  }
  if (const std::vector<std::string> given = given_keys(smallest); !given.empty()) {
    constexpr size_t kListed = 4;
    text += given.size() > kListed
                ? fmt::format("; or remove some of the {} keys that are set and that a search may choose", given.size())
                : fmt::format("; or remove keys that a search may choose: {}", join(given, ", "));
  }
  return text;
}

std::string explain_search(const SearchResult& result, const Hardware& hardware) {
  std::string text = fmt::format("search on {}: {} planned in full, of which {} fit\n", escape_line(hardware.name),
                                 counted(result.planned, "layout"), result.fitting.size());
  if (result.fitting.empty()) {
    if (!result.smallest) return text + "  no layout of these ranks is legal\n";
    return text +
           fmt::format("  no layout fits: {}\n  Offloading is not tried.\n", smallest_text(*result.smallest, hardware));
  }
  const FoundLayout& best = result.fitting.front();
  std::vector<std::vector<std::string>> rows = {{"step", "MFU", "memory", "microbatch", "longer in", "layout"}};
  std::set<std::string> kinds, shown;
  for (size_t i = 0; i < result.fitting.size(); ++i) {
    const FoundLayout& found = result.fitting[i];
    const bool is_first_of_kind = kinds.insert(found.kind).second;
    const bool is_near = found.time.seconds < kNearBest * best.time.seconds;
    if (shown.size() >= kShown && !(is_first_of_kind && is_near)) continue;
    if (!shown.insert(row_of(found)).second) continue;
    rows.push_back({precise_seconds(found.time.seconds), fmt::format("{:.1f} %", 100 * found.mfu_causal),
                    format_bytes(static_cast<double>(found.memory_bytes)),
                    fmt::format("{}", found.config.training.local_batch_size), i == 0 ? "" : reason(best, found),
                    found.name});
  }
  text += text_table(rows);
  if (shown.size() > kShown) {
    text += fmt::format(
        "  The first {} rows are the best; each row after them is the best of another combination of\n"
        "  tensor, sequence, data and pipeline ranks, if its step is less than {:g} times the first.\n",
        kShown, kNearBest);
  }
  text +=
      "  \"longer in\" names the part of the step that grows most from the first row to this one; other parts\n"
      "  may shrink. Memory counts a rank's tensors, and microbatches are in sequences.\n";
  text += "  To keep a margin, set run.memory_gib_per_rank to less than the memory of the first row.\n";
  text += "  Offloading is not tried, because no profile has the rate of copies to the host.\n";
  const std::vector<std::string> given = given_keys(best);
  if (given.size() + 1 >= searched_keys().size()) {  // all but parallelism.layout
    text += "  The run file sets all keys that a search chooses; remove those that it may choose.\n";
  } else if (!given.empty()) {
    text += fmt::format("  Keys that stay as they are set: {}.\n", join(given, ", "));
  }
  if (result.left_out == 0) return text;
  return text +
         fmt::format(
             "  Of {} meshes and microbatch sizes, {} were left out, because lower bounds show that their steps are\n"
             "  too long to be among these.\n",
             result.meshes, result.left_out);
}

std::string search_json(const SearchResult& result, const RunFacts& facts, const Sections& sections) {
  using Json = nlohmann::ordered_json;
  Json out = {{"version", kPlanJsonVersion}};
  const FoundLayout* shown = result.fitting.empty() ? nullptr : &result.fitting.front();
  if (!shown && result.smallest) shown = &*result.smallest;
  if (shown) out = Json::parse(plan_json(make_plan(shown->config, facts), sections));
  out["searched"] = {{"planned", result.planned},
                     {"refused", result.refused},
                     {"meshes", result.meshes},
                     {"left_out", result.left_out}};
  out["search"] = Json::array();
  for (const FoundLayout& found : result.fitting) {
    Json settings = Json::object();
    Config config = found.config;
    for (const std::string& name : searched_keys()) settings[name] = Json::parse(value_text(*find_key(name), config));
    out["search"].push_back({{"settings", settings},
                             {"step_seconds", found.time.seconds},
                             {"step_parts_seconds", step_parts_json(found.time)},
                             {"memory_bytes", found.memory_bytes},
                             {"mfu", found.mfu},
                             {"mfu_causal", found.mfu_causal}});
  }
  return out.dump(2) + "\n";
}

}  // namespace orthant
