// Metrics of a run, one line a step in DUMP/metrics.jsonl. The writer keeps one consistent history when a run is
// resumed. The reader serves the report, the tests and other programs. No torch here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace orthant {

/// One optimizer step. A value that is not known is not-a-number, and is written as null. Times and bytes are those of
/// the writing rank (rank 0); the memory peak is the largest of all ranks.
struct StepMetrics {
  int64_t step = 0;      // starts at 1
  double loss = 0;       // sum of token losses over valid tokens of the global batch, nats; nan without valid tokens
  double grad_norm = 0;  // norm of all gradients, before clipping
  double lr = 0;         // learning rate of this step
  int64_t tokens = 0;    // tokens of all ranks from step 1 to this step
  double step_seconds = 0;
  double tokens_per_second = 0;      // of all ranks
  double mfu = 0;                    // fraction of the peak FLOP/s, 0..1
  int64_t peak_memory_bytes = 0;     // maximum so far in this run
  double communication_seconds = 0;  // exposed communication: the rank waits for messages and computes nothing
  int64_t communication_bytes = 0;   // sent by this rank in this step
  int64_t received_bytes = 0;        // received by this rank in this step; 0 in files of earlier versions
  int64_t communication_calls = 0;   // operations started by this rank in this step
  double data_seconds = 0;           // spent loading batches
  bool skipped = false;              // loss or norm is not finite, so the update was left out; written only if true
  int64_t skipped_steps = 0;         // of all steps up to this one; not written into metrics.jsonl
};

/// Loss on one of several validation sets.
struct SetMetrics {
  std::string name;
  double validation_loss = 0;  // as in ValidationMetrics
  double bits_per_byte = 0;
};

/// Loss on the validation documents, after the given step. With several sets, over the tokens of all of them.
struct ValidationMetrics {
  int64_t step = 0;
  double validation_loss = 0;  // nats per token
  double bits_per_byte = 0;    // validation_loss in bits over the bytes of the text; nan if the objective masks tokens
  std::vector<SetMetrics> sets = {};  // empty if there is only one
};

/// Content of a metrics.jsonl, in the order of its lines.
struct Metrics {
  std::vector<StepMetrics> steps;
  std::vector<ValidationMetrics> validations;
};

/// One line of metrics.jsonl with its newline. Numbers are printed so that reading them back gives the same bits.
std::string to_json_line(const StepMetrics& metrics);
std::string to_json_line(const ValidationMetrics& metrics);

/// Reads metrics.jsonl. Throws DataError("file:line: ...") if a line is not JSON, lacks a field, or has a step that is
/// not larger than the one before. An incomplete last line is ignored: the run may have been killed while writing it.
Metrics read_metrics(const std::string& path);

/// Appends to metrics.jsonl. A run has one writer (rank 0). Each line is in the file when write() returns.
class MetricsWriter {
 public:
  /// A new run starts an empty file. A resumed run keeps the lines up to resumed_step and removes later ones, an
  /// incomplete last line included. Throws DataError if the file cannot be written or is damaged before that step.
  explicit MetricsWriter(std::string path, std::optional<int64_t> resumed_step = std::nullopt);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  /// Number of steps up to the resumed step that the kept lines lack: lines were incomplete, or the file was moved
  /// away.
  int64_t missing_steps() const { return missing_steps_; }

  /// Throws DataError, for instance on a full disk.
  void write(const StepMetrics& metrics);
  void write(const ValidationMetrics& metrics);

 private:
  void append(const std::string& line);

  std::string path_;
  int64_t missing_steps_ = 0;
  int file_ = -1;
};

}  // namespace orthant
