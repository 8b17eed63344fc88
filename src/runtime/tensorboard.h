// TensorBoard event files, written by hand: records of length, checksum, protobuf bytes, checksum. The format is small,
// and a second protobuf library beside libtorch's own would crash the process.
// Source: tensorflow/core/lib/io/record_writer, tensorflow/core/util/event.proto, framework/summary.proto.
#pragma once

#include "runtime/metrics.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace orthant {

/// CRC-32C (Castagnoli, reflected); of "123456789": 0xe3069283.
uint32_t crc32c(std::string_view bytes);

/// A record around data: u64 length, masked crc of it, data, masked crc of it; little-endian.
std::string tensorboard_record(std::string_view data);

/// Protobuf bytes of one Event. wall_time_s is seconds since 1970.
std::string tensorboard_version_event(double wall_time_s);
std::string tensorboard_scalars_event(double wall_time_s, int64_t step,
                                      const std::vector<std::pair<std::string, float>>& scalars);
std::string tensorboard_text_event(double wall_time_s, int64_t step, const std::string& tag,
                                   const std::string& markdown);
/// "A run started here": TensorBoard forgets what earlier files of the folder say from this step on.
std::string tensorboard_start_event(double wall_time_s, int64_t step);

/// One event file in a folder (made if missing); one writer per file. Each record is in the file when a call returns.
class TensorBoardWriter {
 public:
  /// resumed_step: steps beyond it, of earlier files in the folder, are withdrawn. Throws DataError.
  explicit TensorBoardWriter(const std::string& folder, std::optional<int64_t> resumed_step = std::nullopt);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  /// The tags are torchtitan's: loss_metrics/global_avg_loss, grad_norm, lr/AdamW, throughput(tps), mfu(%),
  /// time_metrics/..., memory/..., validation_metrics/loss. Values that are not known are left out.
  void write(const StepMetrics& metrics);
  void write(const ValidationMetrics& metrics);
  /// A text that TensorBoard shows under Text, for instance the effective configuration.
  void write_text(const std::string& tag, const std::string& markdown);

  const std::string& path() const { return path_; }

 private:
  void append(std::string_view event);

  std::string path_;
  int file_ = -1;
};

}  // namespace orthant
