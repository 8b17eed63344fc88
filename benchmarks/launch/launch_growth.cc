// Starts ranks as processes of the launcher, which make steps of a nap and end, and prints what that cost as one line
// of JSON: requests at the store of all ranks and the launcher, and seconds. benchmarks/launch/run.py calls it.
//
//   launch_growth RANKS STEPS STEP_S BOARDS (yes or no) STUB
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/launch/many_ranks.h"

int main(int argc, char** argv) {
  using namespace orthant;
  play_many_ranks_part();
  if (argc != 6) {
    fmt::print(stderr, "usage: launch_growth RANKS STEPS STEP_S BOARDS STUB\n");
    return 2;
  }
  constexpr double kLongest_s = 600;
  const ManyRanksOptions options{.ranks = std::stoi(argv[1]),
                                 .steps = std::stoi(argv[2]),
                                 .step_s = std::stod(argv[3]),
                                 .boards = std::string(argv[4]) == "yes",
                                 .program = std::filesystem::read_symlink("/proc/self/exe"),
                                 .stub_program = argv[5]};
  const ManyRanksCounts counts = run_many_ranks(options, kLongest_s);
  if (counts.exit_code != 0 || counts.ranks != options.ranks) {
    fmt::print(stderr, "the ranks failed:\n{}\n", counts.output.substr(0, 3000));
    return 1;
  }
  fmt::print(
      R"({{"ranks": {}, "requests": {}, "step_requests": {}, "start_s": {:.3f}, "step_s": {:.4f}, "total_s": {:.3f}}})"
      "\n",
      counts.ranks, counts.requests, counts.step_requests, counts.start_s, counts.step_s, counts.total_s);
  return 0;
}
