// Runs the matrix of combinations: all pairs of levels, then triples drawn at random. See docs/combinations.md.
#include "base/text.h"
#include "comm/vector_math.h"
#include "tests/combinations/page.h"

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>

namespace orthant {
namespace {

struct Options {
  size_t triples = 3000;
  uint64_t seed = 7;
  size_t first = 0, last = SIZE_MAX;  // numbers of the draws to run
  std::string markdown, check;
};

void print_wrong(size_t number, const Row& row) {
  std::printf("wrong: draw %zu, %s\n    %s\n    %s\n", number, name_of(row.draw).c_str(), row.outcome.problem.c_str(),
              command_of(settings_of(row.draw)).c_str());
  std::fflush(stdout);
}

// Runs the draws, which have the numbers first, first + 1, ..., as far as the options select them.
std::vector<Row> run_all(const std::vector<Draw>& draws, size_t first, const Options& options,
                         CombinationRunner& runner) {
  std::vector<Row> rows;
  for (size_t i = 0; i < draws.size(); ++i) {
    const size_t number = first + i;
    if (number < options.first || number > options.last) continue;
    rows.push_back({draws[i], runner.run(settings_of(draws[i]))});
    if (rows.back().outcome.verdict == Verdict::wrong) print_wrong(number, rows.back());
    if (number % 100 == 99) std::fprintf(stderr, "%zu combinations\n", number + 1);
  }
  return rows;
}

int64_t count(const std::vector<Row>& rows, Verdict verdict) {
  return std::ranges::count(rows, verdict, [](const Row& row) { return row.outcome.verdict; });
}

int run(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  CombinationRunner runner;
  const std::vector<Draw> all = all_pairs();
  const std::vector<Row> pairs = run_all(all, 0, options, runner);
  const std::string page = combinations_page(pairs);
  if (!options.markdown.empty()) spill(options.markdown, page);
  const bool page_differs = !options.check.empty() && slurp(options.check) != page;
  if (page_differs) {
    std::printf("%s differs from the outcome; print it again with --markdown %s\n", options.check.c_str(),
                options.check.c_str());
    std::fflush(stdout);
  }
  const std::vector<Row> triples =
      run_all(random_triples(options.seed, options.triples), all.size(), options, runner);
  const auto both = [&](Verdict verdict) { return count(pairs, verdict) + count(triples, verdict); };
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  std::printf("%zu pairs and %zu triples: %lld work, %lld are refused, %lld are wrong; %zu runs on one device; %s\n",
              pairs.size(), triples.size(), static_cast<long long>(both(Verdict::works)),
              static_cast<long long>(both(Verdict::refused)), static_cast<long long>(both(Verdict::wrong)),
              runner.oracles(), format_seconds(taken.count()).c_str());
  return page_differs || both(Verdict::wrong) > 0 ? 1 : 0;
}

}  // namespace
}  // namespace orthant

int main(int argc, char** argv) {
  orthant::Options options;
  CLI::App app("runs pairs and triples of features against one device");
  app.add_option("--triples", options.triples, "number of triples drawn at random");
  app.add_option("--seed", options.seed, "seed of the triples");
  app.add_option("--first", options.first, "number of the first draw to run, from 0: pairs, then triples");
  app.add_option("--last", options.last, "number of the last draw to run");
  app.add_option("--markdown", options.markdown, "file to print docs/combinations.md to");
  app.add_option("--check", options.check, "file to compare with the page; they must be equal");
  CLI11_PARSE(app, argc, argv);
  orthant::resolve_vector_math();
  return orthant::run(options);
}
