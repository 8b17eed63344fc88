// Text that a run prints on the terminal: the banner, one line a step, the summary. All functions are pure, from plain
// structs to strings. The caller prints the strings, on one rank.
#pragma once

#include "report/metrics.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

/// How to draw. The default is the plainest: no color, and no box characters beyond ASCII.
struct TerminalStyle {
  bool color = false;
  bool unicode = false;  // as UTF-8
  int columns = 108;
};

/// Color is on if the output is a terminal, NO_COLOR is not set and TERM is not "dumb"; CLICOLOR_FORCE (not 0) forces
/// it. Box characters need UTF-8 in the first of LC_ALL, LC_CTYPE and LANG that is set. `variable` looks up an
/// environment variable; null means not set.
TerminalStyle choose_style(bool is_terminal, const std::function<const char*(const char*)>& variable);
/// The style for a file descriptor of this process, with the width of its terminal, if it is one.
TerminalStyle terminal_style(int file_descriptor);

/// At most four characters: "42s", "1m28", "12m", "2h05", "31h", "3d07"; "-" if not known.
std::string short_duration(double seconds);

/// Seconds until the end: the median of the last 50 step times, times the steps left. Not-a-number without any step.
double eta_seconds(std::span<const double> step_seconds, int64_t steps_left);

/// The middle value, or the mean of the two middle values of an even number. Not-a-number when empty.
double median(std::span<const double> values);

/// One line without its newline, at most style.columns and 108 characters wide. Column positions are fixed for one
/// value of total_steps, which is omitted beyond 9999. On a narrow terminal, fields are omitted in this order: mem,
/// exposed comm, lr, the step's time, gnorm. exposed comm is exposed communication as a fraction of the step's time
/// (metrics.h). mem is the peak of the largest rank, in MiB (M) or GiB (G). A value that is not known is printed as
/// "-".
///  "step   120/1000  loss 2.4637  gnorm 0.82  lr 6.1e-4  7.8k tok/s   98ms  exposed comm  4%  mem 412M  eta 1m28"
std::string step_line(const StepMetrics& metrics, int64_t total_steps, double eta_seconds, const TerminalStyle& style);

/// "skip   120/1000  loss    nan  gnorm    inf  update left out; 2 of at most 10 in a row": the line of a step that was
/// skipped because its loss or gradient norm is not finite. in_row: consecutive skipped steps up to this one.
std::string skipped_line(const StepMetrics& metrics, int64_t total_steps, int64_t in_row, int64_t most_in_row,
                         const TerminalStyle& style);

/// "valid  120/1000  loss 2.5511  bits/byte 1.842", with its columns below those of step_line. bits/byte is omitted if
/// it is not known.
std::string validation_line(const ValidationMetrics& metrics, int64_t total_steps, const TerminalStyle& style);

/// The facts of a run that is about to start. Empty strings and zeros are omitted from the banner.
struct Banner {
  std::string version = {};  // "0.1.0"
  std::string model = {};    // "llama, 6 layers, hidden 256, 8 heads (4 key-value), vocabulary 8000"
  int64_t parameters = 0;
  std::string data = {};  // "jargon.txt.gz, 1.6M training tokens, byte tokenizer"
  int64_t tokens = 0;     // of the whole run
  bool has_padding = false;  // true if they include padding
  double epochs = 0;      // passes over the data in these tokens
  int64_t steps = 0;
  std::string batch = {};  // "32 sequences of 256 tokens, microbatches of 4"
  int64_t ranks = 0;
  std::string mesh = {};       // "data 2, pipeline 4; zb_v"
  std::string device = {};     // "cpu, float32"
  std::string transport = {};  // "ucx"; empty with one rank
  int64_t threads_per_rank = 0;
  int64_t memory_expected_bytes = 0;       // of the largest rank
  std::vector<std::string> warnings = {};  // see run_warnings.h
  std::string output_folder = {};
  std::string resumed_from = {};   // "step 100 of runs/jargon/checkpoints/step-000100"
  std::string learning_rate = {};  // the change, if the run is resumed with settings that change the learning rate
};

/// The banner, one line per fact, each line with a newline.
std::string banner(const Banner& banner, const TerminalStyle& style);

/// The result of a run. Empty strings, zeros and not-a-number values are omitted.
struct Summary {
  int64_t steps = 0;         // of this process, without those before a resumed step
  double seconds = 0;        // of training
  std::string stopped = {};  // "by SIGTERM, after step 12 of 300"
  double first_loss = 0, last_loss = 0;
  double best_validation_loss = 0;
  int64_t best_validation_step = 0;
  double best_bits_per_byte = 0;
  double tokens_per_second_median = 0;
  double step_seconds_median = 0;
  double step_seconds_planned = 0;                           // 0 if the hardware is not known
  double communication_share = 0;                            // exposed communication over step time, 0..1
  int64_t peak_memory_bytes = 0, memory_expected_bytes = 0;  // of the largest rank
  std::string checkpoint = {}, report = {};                  // paths
  std::string resume_command = {}, sample_command = {};
  std::string sample_text = {};  // generated; control characters are not printed
};

/// Text that is safe on a terminal and on a page: valid UTF-8, without control characters except newline and tab. Each
/// invalid byte becomes a replacement character. Generated text may contain anything.
std::string visible_text(std::string_view text);

/// The summary, each line with a newline. Commands stand on lines of their own, ready to be copied.
std::string summary(const Summary& summary, const TerminalStyle& style);

}  // namespace orthant
