// TensorBoard event files, written by hand: records of length, checksum, protobuf bytes, checksum. The format is small,
// and a second protobuf library next to the one inside libtorch would crash the process.
// Source: tensorflow/core/lib/io/record_writer, tensorflow/core/util/event.proto, framework/summary.proto.
#pragma once

#include "report/metrics.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace orthant {

/// CRC-32C (Castagnoli, reflected). The value for "123456789" is 0xe3069283.
uint32_t crc32c(std::string_view bytes);

/// One record, little-endian: length of `data` (u64), masked CRC of the length, data, masked CRC of the data.
std::string tensorboard_record(std::string_view data);

/// Protobuf bytes of one Event. wall_time_s is in seconds since 1970.
std::string tensorboard_version_event(double wall_time_s);
std::string tensorboard_scalars_event(double wall_time_s, int64_t step,
                                      const std::vector<std::pair<std::string, float>>& scalars);
std::string tensorboard_text_event(double wall_time_s, int64_t step, const std::string& tag,
                                   const std::string& markdown);
/// Event that marks the start of a run: TensorBoard discards events of earlier files in the folder from this step on.
std::string tensorboard_start_event(double wall_time_s, int64_t step);

/// One event file in a folder, which is created if missing. A file has one writer. Each record is in the file when a
/// call returns.
class TensorBoardWriter {
 public:
  /// resumed_step: TensorBoard will discard later steps of earlier files in the folder. optimizer: the class in
  /// torch.optim, in the name of the learning rate. Throws DataError if the folder or the file cannot be written.
  explicit TensorBoardWriter(const std::string& folder, std::optional<int64_t> resumed_step = std::nullopt,
                             const std::string& optimizer = "AdamW");
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  /// Writes scalars under torchtitan's names: loss_metrics/global_avg_loss, grad_norm, lr/AdamW, throughput(tps),
  /// mfu(%), time_metrics/..., memory/..., validation_metrics/loss. Values that are not known are left out.
  void write(const StepMetrics& metrics);
  void write(const ValidationMetrics& metrics);
  /// Writes a text that TensorBoard shows under Text, for instance the effective configuration.
  void write_text(const std::string& tag, const std::string& markdown);

  const std::string& path() const { return path_; }

 private:
  void append(std::string_view event);

  std::string path_, learning_rate_name_;
  int file_ = -1;
};

}  // namespace orthant
