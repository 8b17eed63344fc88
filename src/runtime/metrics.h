// What a run measures, one line a step in DUMP/metrics.jsonl: the writer that keeps the file one true history across
// resumptions, and the reader for the report, the tests and whoever computes with it. No torch here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace orthant {

/// One optimizer step. Not-a-number means "not known" and is written as null. Times and
/// bytes are of the rank that writes (rank 0), the memory peak is of the largest rank.
struct StepMetrics {
  int64_t step = 0;      // 1 is the first
  double loss = 0;       // sum of token losses over valid tokens of the whole batch, nats; nan where none is valid
  double grad_norm = 0;  // global, before clipping
  double lr = 0;         // the one this step used
  int64_t tokens = 0;    // seen since step 1, this step included, all ranks together
  double step_seconds = 0;
  double tokens_per_second = 0;      // all ranks together
  double mfu = 0;                    // share of the device's peak, 0..1
  int64_t peak_memory_bytes = 0;     // so far in this run
  double communication_seconds = 0;  // exposed communication: the rank waits for messages and computes nothing
  int64_t communication_bytes = 0;   // sent by a rank in this step
  int64_t communication_calls = 0;   // started by a rank in this step
  double data_seconds = 0;           // waiting for the next batch
};

/// The held-out documents, judged after the given step.
struct ValidationMetrics {
  int64_t step = 0;
  double validation_loss = 0;  // nats a token
  double bits_per_byte = 0;    // validation_loss in bits, over the bytes of the text; not known where tokens are masked
};

/// All of a metrics.jsonl, in order.
struct Metrics {
  std::vector<StepMetrics> steps;
  std::vector<ValidationMetrics> validations;
};

/// One line of metrics.jsonl, with its newline. Numbers are printed so that they read back bit-equal.
std::string to_json_line(const StepMetrics& metrics);
std::string to_json_line(const ValidationMetrics& metrics);

/// Reads metrics.jsonl. Throws DataError("file:line: ...") on a line that is not JSON, lacks a field or goes back in
/// steps. A last line that breaks off is ignored: the run may have been killed while writing it.
Metrics read_metrics(const std::string& path);

/// Appends to metrics.jsonl; one writer per run (rank 0). Each line is in the file when write() returns.
class MetricsWriter {
 public:
  /// A fresh run starts an empty file. A resumed one keeps the lines up to resumed_step and cuts off what came after,
  /// a torn last line included. Throws DataError when the file cannot be written or is damaged before that step.
  explicit MetricsWriter(std::string path, std::optional<int64_t> resumed_step = std::nullopt);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  /// Of the steps before the one resumed from, how many the kept lines lack: torn lines, or a file moved away.
  int64_t missing_steps() const { return missing_steps_; }

  /// Throws DataError (for instance on a full disk).
  void write(const StepMetrics& metrics);
  void write(const ValidationMetrics& metrics);

 private:
  void append(const std::string& line);

  std::string path_;
  int64_t missing_steps_ = 0;
  int file_ = -1;
};

}  // namespace orthant
