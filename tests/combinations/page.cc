// Formats docs/combinations.md: the table of pairs, the laws by which pairs are refused, and the levels.
#include "tests/combinations/page.h"

#include "base/text.h"
#include "tests/support/ways_out.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace orthant {
namespace {

// The laws by which combinations are refused, numbered in the order of their first refusal.
class Laws {
 public:
  void add(const Row& row) {
    if (row.outcome.refusal.empty()) return;
    const std::string law = law_of(row.outcome.refusal);
    const auto known = std::ranges::find(laws_, law, &Law::text);
    if (known != laws_.end()) {
      ++known->refusals;
    } else {
      laws_.push_back({law, row.outcome.refusal, name_of(row.draw), 1});
    }
  }

  size_t number_of(const std::string& refusal) const {
    return static_cast<size_t>(std::ranges::find(laws_, law_of(refusal), &Law::text) - laws_.begin()) + 1;
  }

  std::string table() const {
    std::string text = "| law | key | refusals | example | message |\n|---|---|---|---|---|\n";
    for (size_t i = 0; i < laws_.size(); ++i) {
      const Law& law = laws_[i];
      text += fmt::format("| {} | `{}` | {} | {} | {} |\n", i + 1, first_key(law.example), law.refusals, law.draw,
                          escaped(law.example));
    }
    return text;
  }

 private:
  struct Law {
    std::string text, example, draw;
    int64_t refusals = 0;
  };

  // The message for a cell of a table, without the origins of its values.
  static std::string escaped(const std::string& message) {
    std::string text;
    for (const char c : without_origins(message)) text += c == '|' ? "\\|" : std::string(1, c);
    return text;
  }

  std::vector<Law> laws_;
};

struct Cell {
  int64_t works = 0, wrong = 0;
  std::set<size_t> laws;

  std::string text() const {
    std::vector<std::string> words;
    if (wrong > 0) words.push_back("WRONG");
    if (works > 0) words.push_back("✓");
    std::vector<std::string> numbers;
    for (const size_t law : laws) numbers.push_back(fmt::format("{}", law));
    if (!numbers.empty()) words.push_back(join(numbers, ","));
    return join(words, " ");
  }
};

std::string pair_table(const std::vector<Row>& pairs, const Laws& laws) {
  std::map<std::pair<size_t, size_t>, Cell> cells;
  for (const Row& row : pairs) {
    Cell& cell = cells[{row.draw[1].feature, row.draw[0].feature}];
    cell.works += row.outcome.verdict == Verdict::works;
    cell.wrong += row.outcome.verdict == Verdict::wrong;
    if (!row.outcome.refusal.empty()) cell.laws.insert(laws.number_of(row.outcome.refusal));
  }
  std::string head = "| |", line = "|---|", body;
  for (size_t column = 0; column + 1 < features().size(); ++column) {
    head += " " + features()[column].name + " |";
    line += "---|";
  }
  for (size_t row = 1; row < features().size(); ++row) {
    body += "| " + features()[row].name + " |";
    for (size_t column = 0; column + 1 < features().size(); ++column)
      body += column < row ? " " + cells[{row, column}].text() + " |" : " |";
    body += "\n";
  }
  return head + "\n" + line + "\n" + body;
}

std::string level_table() {
  std::string text = "| feature | level | settings |\n|---|---|---|\n";
  for (const Feature& feature : features()) {
    for (const Level& level : feature.levels)
      text += fmt::format("| {} | {} | `{}` |\n", feature.name, level.name, join(level.settings, " "));
  }
  return text;
}

std::string counts(const std::vector<Row>& rows) {
  const auto count = [&](Verdict verdict) {
    return grouped(std::ranges::count(rows, verdict, [](const Row& row) { return row.outcome.verdict; }));
  };
  return fmt::format("{} | {} | {} | {}", grouped(static_cast<int64_t>(rows.size())), count(Verdict::works),
                     count(Verdict::refused), count(Verdict::wrong));
}

std::string wrong_rows(const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) {
    if (row.outcome.verdict != Verdict::wrong) continue;
    text += fmt::format("- {}: {}\n  `{}`\n", name_of(row.draw), without_origins(row.outcome.problem),
                        command_of(settings_of(row.draw)));
  }
  return text.empty() ? "" : "\n## Wrong\n\n" + text;
}

constexpr const char* kIntroduction = R"(# Which features combine

This page says which features of a run file work together and which are refused. Read it before you combine features
that no example combines. It is printed by the program that runs the combinations, so every entry is the outcome of a
run.

A combination **works** if all its ranks, after each of {} steps, have the loss, the gradient norm, every gradient and
every updated weight of one device, and send the calls and bytes of every collective that the plan states. The bound is
1e-10 in float64; docs/numerics.md has the bounds in float32 and bfloat16. A combination is **refused** if planning
ends with a ConfigError that names a key and offers settings. Every offered setting is applied and must then work. All
else is **wrong**.

Features have levels, such as a ring of 2 ranks or of 4. Every pair of levels of two features is run:

| pairs | work | refused | wrong |
|---|---|---|---|
| {} |

`make test-full` also runs thousands of triples, drawn at random, and fails if one of them is wrong.
)";

constexpr const char* kTable = R"(
## Pairs

A check mark says that at least one pair of levels works. Numbers are the laws that refuse the other pairs of levels.

{}
## Laws

Each law with the first combination that it refuses, and the message for that combination.

{}
## Levels

Every combination starts from `tests/combinations/run.toml` and adds the settings of its levels. Where two levels set
one key, the later row of this table holds.

{}
## Run it

`make test` runs a fixed sample. `make test-full` runs all combinations and compares this page with the outcome.
`build/tests/combinations --triples 0 --markdown docs/combinations.md` prints the page anew. To repeat one
combination, add its settings and `run.ranks` to `build/orthant verify tests/combinations/run.toml --steps 2`; the
program prints this command for every wrong combination.
)";

}  // namespace

std::string combinations_page(const std::vector<Row>& pairs) {
  Laws laws;
  for (const Row& row : pairs) laws.add(row);
  return fmt::format(fmt::runtime(kIntroduction), kSteps, counts(pairs)) + wrong_rows(pairs) +
         fmt::format(fmt::runtime(kTable), pair_table(pairs, laws), laws.table(), level_table());
}

}  // namespace orthant
