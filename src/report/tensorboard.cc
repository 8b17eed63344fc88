// Encodes TensorBoard events in protobuf's wire format, and writes them as records.
#include "report/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/errors.h"
#include "base/host_name.h"

namespace orthant {
namespace {

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? (crc >> 1) ^ 0x82f63b78u : crc >> 1;
    table[byte] = crc;
  }
  return table;
}();

template <typename Unsigned>
std::string little_endian(Unsigned value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>((value >> 8 * i) & 0xff);
  return bytes;
}

std::string masked_crc(std::string_view bytes) { return little_endian(std::rotr(crc32c(bytes), 15) + 0xa282ead8u); }

// Protobuf's wire format: a tag of field number and wire type, then the value.
enum Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes += static_cast<char>(value);
}

std::string tag(uint64_t field, Wire wire) { return varint((field << 3) | wire); }
std::string integer(uint64_t field, int64_t value) {
  return tag(field, kVarint) + varint(static_cast<uint64_t>(value));
}
std::string fixed(uint64_t field, double value) {
  return tag(field, kFixed64) + little_endian(std::bit_cast<uint64_t>(value));
}
std::string fixed(uint64_t field, float value) {
  return tag(field, kFixed32) + little_endian(std::bit_cast<uint32_t>(value));
}
std::string bytes(uint64_t field, std::string_view value) {
  return tag(field, kBytes) + varint(value.size()) + std::string(value);
}

std::string event_head(double wall_time_s, int64_t step) { return fixed(1, wall_time_s) + integer(2, step); }

double unix_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

[[noreturn]] void fail(const std::string& path) {
  const int error = errno;
  throw DataError(fmt::format("cannot write {}: {}{}", path, std::strerror(error),
                              error == ENOSPC ? "; free some space there, or set metrics.enable_tensorboard = false"
                                              : ""));
}

}  // namespace

uint32_t crc32c(std::string_view data) {
  uint32_t crc = ~0u;
  for (const char c : data) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

std::string tensorboard_record(std::string_view data) {
  const std::string length = little_endian(static_cast<uint64_t>(data.size()));
  return length + masked_crc(length) + std::string(data) + masked_crc(data);
}

std::string tensorboard_version_event(double wall_time_s) { return fixed(1, wall_time_s) + bytes(3, "brain.Event:2"); }

std::string tensorboard_scalars_event(double wall_time_s, int64_t step,
                                      const std::vector<std::pair<std::string, float>>& scalars) {
  std::string summary;
  for (const auto& [name, value] : scalars) summary += bytes(1, bytes(1, name) + fixed(2, value));
  return event_head(wall_time_s, step) + bytes(5, summary);
}

std::string tensorboard_text_event(double wall_time_s, int64_t step, const std::string& name,
                                   const std::string& markdown) {
  // TensorProto: 1 dtype (7: string), 2 shape {2 dim {1 size}}, 8 string_val. Metadata: 1 plugin {1 name}, 4 data class
  // (2: tensor).
  const std::string shape = bytes(2, integer(1, 1));
  const std::string tensor = integer(1, 7) + bytes(2, shape) + bytes(8, markdown);
  const std::string metadata = bytes(1, bytes(1, "text")) + integer(4, 2);
  const std::string value = bytes(1, name) + bytes(8, tensor) + bytes(9, metadata);
  return event_head(wall_time_s, step) + bytes(5, bytes(1, value));
}

std::string tensorboard_start_event(double wall_time_s, int64_t step) {
  constexpr int64_t kStart = 1;  // value of SessionLog.SessionStatus
  return event_head(wall_time_s, step) + bytes(7, integer(1, kStart));
}

TensorBoardWriter::TensorBoardWriter(const std::string& folder, std::optional<int64_t> resumed_step,
                                     const std::string& optimizer)
    : learning_rate_name_("lr/" + optimizer) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw DataError(fmt::format("cannot create the folder {}: {}", folder, error.message()));
  const double now = unix_time_s();
  for (int n = 0; file_ < 0; ++n) {
    path_ = fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}", folder, static_cast<int64_t>(now), host_name(),
                        ::getpid(), n);
    file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (file_ < 0 && errno != EEXIST) fail(path_);
  }
  append(tensorboard_version_event(now));
  if (resumed_step) append(tensorboard_start_event(now, *resumed_step + 1));
}

TensorBoardWriter::~TensorBoardWriter() { ::close(file_); }

void TensorBoardWriter::append(std::string_view event) {
  const std::string record = tensorboard_record(event);
  for (size_t done = 0; done < record.size();) {
    const ssize_t count = ::write(file_, record.data() + done, record.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path_);
    done += static_cast<size_t>(count);
  }
}

void TensorBoardWriter::write(const StepMetrics& m) {
  constexpr double kGiB = 1 << 30;
  std::vector<std::pair<std::string, float>> scalars;
  const auto add = [&](const std::string& name, double value) {
    if (std::isfinite(value)) scalars.emplace_back(name, static_cast<float>(value));
  };
  add("loss_metrics/global_avg_loss", m.loss);
  add("grad_norm", m.grad_norm);
  add(learning_rate_name_, m.lr);
  add("throughput(tps)", m.tokens_per_second);
  add("mfu(%)", 100 * m.mfu);
  add("time_metrics/end_to_end(s)", m.step_seconds);
  add("time_metrics/data_loading(s)", m.data_seconds);
  add("time_metrics/data_loading(%)", 100 * m.data_seconds / m.step_seconds);
  add("time_metrics/communication(s)", m.communication_seconds);
  add("time_metrics/communication(%)", 100 * m.communication_seconds / m.step_seconds);
  add("communication/bytes", static_cast<double>(m.communication_bytes));
  add("communication/calls", static_cast<double>(m.communication_calls));
  add("memory/max_active(GiB)", static_cast<double>(m.peak_memory_bytes) / kGiB);
  append(tensorboard_scalars_event(unix_time_s(), m.step, scalars));
}

void TensorBoardWriter::write(const ValidationMetrics& m) {
  std::vector<std::pair<std::string, float>> scalars;
  const auto add = [&](const std::string& name, double value) {
    if (std::isfinite(value)) scalars.emplace_back("validation_metrics/" + name, static_cast<float>(value));
  };
  add("loss", m.validation_loss);
  add("bits_per_byte", m.bits_per_byte);
  for (const SetMetrics& set : m.sets) {
    add("loss/" + set.name, set.validation_loss);
    add("bits_per_byte/" + set.name, set.bits_per_byte);
  }
  append(tensorboard_scalars_event(unix_time_s(), m.step, scalars));
}

void TensorBoardWriter::write_text(const std::string& name, const std::string& markdown) {
  append(tensorboard_text_event(unix_time_s(), 0, name, markdown));
}

}  // namespace orthant
