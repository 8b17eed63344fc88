// Runs a thousand ranks as processes of our own launcher on a small machine, and counts their requests at the store. A
// process that loads libtorch takes 0.3 s of CPU time before main(). Therefore the launcher starts small programs
// (rank_stub.cc), and for each of them a fork server, which has loaded libtorch and has no threads, forks the process
// that is the rank. Everything else is what ranks of orthant train do, without a model and a transport.
#pragma once

#include <cstdint>
#include <string>

namespace orthant {

/// Runs the part of this process if the environment gives it one (fork server or launcher), and then ends the process.
/// Call it at the start of main.
void play_many_ranks_part();

struct ManyRanksOptions {
  int ranks = 64;
  int steps = 20;
  double step_s = 0.05;
  bool boards = true;        // false: every rank asks the store for itself
  std::string program;       // that calls play_many_ranks_part()
  std::string stub_program;  // of rank_stub.cc
};

struct ManyRanksCounts {
  int exit_code = -1;
  int ranks = 0;              // that have reported their end
  int64_t requests = 0;       // of all ranks and the launcher, from start to end
  int64_t step_requests = 0;  // of all ranks during the steps
  double start_s = 0;         // until the last rank has met all others
  double step_s = 0;          // the mean duration of the steps of a rank
  double total_s = 0;         // until the launcher has ended
  std::string output;
};

/// Starts the ranks and waits for their end, at most limit_s.
ManyRanksCounts run_many_ranks(const ManyRanksOptions& options, double limit_s);

}  // namespace orthant
