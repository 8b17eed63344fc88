// What a run says on the terminal: the opening box, one line a step, the closing summary. Pure functions from plain
// structs to strings; the caller prints them, on one rank.
#pragma once

#include "runtime/metrics.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

/// How to draw. The default is the plainest: no color, no box characters beyond ASCII, lines as long as they like to
/// be.
struct TerminalStyle {
  bool color = false;
  bool unicode = false;
  int columns = 108;
};

/// Color on a terminal, unless NO_COLOR is set or TERM is dumb; CLICOLOR_FORCE (not 0) forces it. Box characters when
/// LC_ALL, LC_CTYPE or LANG (the first that is set) names UTF-8. `variable` looks up the environment (null: not set).
TerminalStyle choose_style(bool is_terminal, const std::function<const char*(const char*)>& variable);
/// The style for a file descriptor of this process; on a terminal, with its width.
TerminalStyle terminal_style(int file_descriptor);

/// "42s", "1m28", "12m", "2h05", "31h", "3d07", "-" when not known: at most four columns.
std::string short_duration(double seconds);

/// Seconds until the end: the median of the last 50 step times, times the steps left. Not a number without any step.
double eta_seconds(std::span<const double> step_seconds, int64_t steps_left);

/// The middle value; the mean of the two in the middle of an even number; not a number when empty.
double median(std::span<const double> values);

/// One line without its newline, at most style.columns and 108 wide, columns fixed for one value of total_steps (which
/// is itself left out beyond 9999). Where a terminal is narrower, mem goes first, then exposed comm, lr, the step's
/// time and gnorm. exposed comm: exposed communication over the step's time (metrics.h defines it).
/// "-" stands for what is not known. mem is the largest rank's peak in MiB (M) or GiB (G):
/// "step   120/1000  loss 2.4637  gnorm 0.82  lr 6.1e-4  7.8k tok/s   98ms  exposed comm  4%  mem 412M  eta 1m28"
std::string step_line(const StepMetrics& metrics, int64_t total_steps, double eta_seconds, const TerminalStyle& style);

/// "valid  120/1000  loss 2.5511  bits/byte 1.842", its columns under those of step_line; bits/byte only
/// where they are known.
std::string validation_line(const ValidationMetrics& metrics, int64_t total_steps, const TerminalStyle& style);

/// What a run is about to do. Empty strings and zeros are left out of the box.
struct Banner {
  std::string version = {};  // "0.1.0"
  std::string model = {};    // "llama, 6 layers, hidden 256, 8 heads (4 key-value), vocabulary 8000"
  int64_t parameters = 0;
  std::string data = {};  // "jargon.txt.gz, 1.6M training tokens, byte tokenizer"
  int64_t tokens = 0;     // this run will see
  double epochs = 0;      // passes over the data these tokens are
  int64_t steps = 0;
  std::string batch = {};  // "32 sequences of 256 tokens, microbatches of 4"
  int64_t ranks = 0;
  std::string mesh = {};       // "data 2, pipeline 4; zb_v"
  std::string device = {};     // "cpu, float32"
  std::string transport = {};  // "ucx"; empty: not known yet, or nobody to talk to
  int64_t threads_per_rank = 0;
  int64_t memory_expected_bytes = 0;  // of the largest rank
  std::vector<std::string> warnings = {};  // see run_warnings.h
  std::string output_folder = {};
  std::string resumed_from = {};   // "step 100 of runs/jargon/checkpoints/step-000100"
  std::string learning_rate = {};  // where resuming with other settings changes it
};

/// The opening box, lines ended by newlines.
std::string banner(const Banner& banner, const TerminalStyle& style);

/// How a run went. Empty strings, zeros and not-a-numbers are left out.
struct Summary {
  int64_t steps = 0;   // done by this process, resumed ones not counted
  double seconds = 0;  // of training
  std::string stopped = {};  // "by SIGTERM, after step 12 of 300"
  double first_loss = 0, last_loss = 0;
  double best_validation_loss = 0;
  int64_t best_validation_step = 0;
  double best_bits_per_byte = 0;
  double tokens_per_second_median = 0;
  double step_seconds_median = 0;
  double communication_share = 0;                            // exposed communication over step time, 0..1
  int64_t peak_memory_bytes = 0, memory_expected_bytes = 0;  // of the largest rank
  std::string checkpoint = {}, report = {};                  // paths
  std::string resume_command = {}, sample_command = {};
  std::string sample_text = {};  // generated; control characters are not printed
};

/// The text as something a terminal or a page can show: valid UTF-8 (a replacement character for each byte that is
/// not), no control characters but newline and tab. Generated text may hold anything.
std::string visible_text(std::string_view text);

/// The closing summary, lines ended by newlines. The commands stand alone on their lines, ready to be copied.
std::string summary(const Summary& summary, const TerminalStyle& style);

}  // namespace orthant
