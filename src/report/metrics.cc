// Writes and reads metrics.jsonl. Every line is written by write(2) at once, so that a killed run keeps its history.
#include "report/metrics.h"

#include "base/errors.h"
#include "base/json.h"

#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;

std::string number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

[[noreturn]] void fail_to_write(const std::string& what, const std::string& path) {
  const int error = errno;
  std::string message = fmt::format("{} {}: {}", what, path, std::strerror(error));
  const bool is_full = error == ENOSPC || error == EDQUOT;
  message += fmt::format("; {}, or choose another job.dump_folder", is_full ? "free some space there" : "move it away");
  throw DataError(message);
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw DataError(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  return {std::istreambuf_iterator<char>(in), {}};
}

const Json& field(const Json& line, const char* name, const std::string& where) {
  const auto it = line.find(name);
  if (it == line.end()) throw DataError(fmt::format("{}: no field \"{}\"", where, name));
  return *it;
}

double real(const Json& line, const char* name, const std::string& where) {
  const Json& value = field(line, name, where);
  if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (!value.is_number()) throw DataError(fmt::format("{}: \"{}\" is {}, not a number", where, name, value.dump()));
  return value.get<double>();
}

int64_t integer(const Json& line, const char* name, const std::string& where) {
  const Json& value = field(line, name, where);
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)) {
    throw DataError(fmt::format("{}: \"{}\" is {}, not an integer", where, name, value.dump()));
  }
  return value.get<int64_t>();
}

// A field that only some lines have, because it is written only if true.
bool flag(const Json& line, const char* name, const std::string& where) {
  const auto it = line.find(name);
  if (it == line.end()) return false;
  if (!it->is_boolean()) throw DataError(fmt::format("{}: \"{}\" is {}, not a boolean", where, name, it->dump()));
  return it->get<bool>();
}

StepMetrics to_step(const Json& line, const std::string& where) {
  return {.step = integer(line, "step", where),
          .loss = real(line, "loss", where),
          .grad_norm = real(line, "grad_norm", where),
          .lr = real(line, "lr", where),
          .tokens = integer(line, "tokens", where),
          .step_seconds = real(line, "step_seconds", where),
          .tokens_per_second = real(line, "tokens_per_second", where),
          .mfu = real(line, "mfu", where),
          .peak_memory_bytes = integer(line, "peak_memory_bytes", where),
          .communication_seconds = real(line, "communication_seconds", where),
          .communication_bytes = integer(line, "communication_bytes", where),
          .received_bytes = line.contains("received_bytes") ? integer(line, "received_bytes", where) : 0,
          .communication_calls = integer(line, "communication_calls", where),
          .data_seconds = real(line, "data_seconds", where),
          .skipped = flag(line, "skipped", where)};
}

ValidationMetrics to_validation(const Json& line, const std::string& where) {
  ValidationMetrics metrics{.step = integer(line, "step", where),
                            .validation_loss = real(line, "validation_loss", where),
                            .bits_per_byte = real(line, "bits_per_byte", where)};
  if (!line.contains("sets")) return metrics;
  if (!line["sets"].is_object()) throw DataError(fmt::format("{}: \"sets\" must be an object", where));
  for (const auto& [name, set] : line["sets"].items()) {
    if (!set.is_object()) throw DataError(fmt::format("{}: the set \"{}\" must be an object", where, name));
    metrics.sets.push_back({.name = name,
                            .validation_loss = real(set, "validation_loss", where),
                            .bits_per_byte = real(set, "bits_per_byte", where)});
  }
  return metrics;
}

// Adds a line to metrics. Steps must increase, separately among training lines and among validation lines.
void add_line(const Json& line, const std::string& where, Metrics& metrics) {
  if (!line.is_object()) throw DataError(fmt::format("{}: expected one object", where));
  const auto forward = [&](int64_t step, int64_t last) {
    if (step <= last) throw DataError(fmt::format("{}: step {} comes after step {}", where, step, last));
  };
  if (line.contains("validation_loss")) {
    const auto validation = to_validation(line, where);
    forward(validation.step, metrics.validations.empty() ? -1 : metrics.validations.back().step);
    metrics.validations.push_back(validation);
  } else {
    const auto step = to_step(line, where);
    forward(step.step, metrics.steps.empty() ? 0 : metrics.steps.back().step);
    metrics.steps.push_back(step);
  }
}

// Reads lines until a step after last_step, an incomplete last line, or the end of the text. Returns the number of
// bytes before that place.
size_t read_lines(const std::string& text, const std::string& path, int64_t last_step, Metrics& metrics) {
  int64_t number_of_line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t newline = text.find('\n', begin);
    if (newline == std::string::npos) return begin;  // write() ends each line with a newline, so this one is incomplete
    const std::string where = fmt::format("{}:{}", path, ++number_of_line);
    const Json line = parse_json(std::string_view(text).substr(begin, newline - begin), where);
    if (line.is_object() && integer(line, "step", where) > last_step) return begin;
    add_line(line, where, metrics);
    begin = newline + 1;
  }
  return text.size();
}

}  // namespace

std::string to_json_line(const StepMetrics& m) {
  return fmt::format(R"({{"step": {}, "loss": {}, "grad_norm": {}, "lr": {}, "tokens": {}, "step_seconds": {}, )"
                     R"("tokens_per_second": {}, "mfu": {}, "peak_memory_bytes": {}, "communication_seconds": {}, )"
                     R"("communication_bytes": {}, "received_bytes": {}, "communication_calls": {}, )"
                     R"("data_seconds": {}{}}})"
                     "\n",
                     m.step, number(m.loss), number(m.grad_norm), number(m.lr), m.tokens, number(m.step_seconds),
                     number(m.tokens_per_second), number(m.mfu), m.peak_memory_bytes, number(m.communication_seconds),
                     m.communication_bytes, m.received_bytes, m.communication_calls, number(m.data_seconds),
                     m.skipped ? ", \"skipped\": true" : "");
}

std::string to_json_line(const ValidationMetrics& m) {
  std::string sets;
  for (const SetMetrics& set : m.sets) {
    sets += fmt::format(R"({}{}: {{"validation_loss": {}, "bits_per_byte": {}}})", sets.empty() ? "" : ", ",
                        Json(set.name).dump(), number(set.validation_loss), number(set.bits_per_byte));
  }
  return fmt::format(R"({{"step": {}, "validation_loss": {}, "bits_per_byte": {}{}}})"
                     "\n",
                     m.step, number(m.validation_loss), number(m.bits_per_byte),
                     sets.empty() ? "" : fmt::format(R"(, "sets": {{{}}})", sets));
}

Metrics read_metrics(const std::string& path) {
  Metrics metrics;
  read_lines(read_text(path), path, INT64_MAX, metrics);
  return metrics;
}

MetricsWriter::MetricsWriter(std::string path, std::optional<int64_t> resumed_step) : path_(std::move(path)) {
  size_t saved_bytes = 0;
  Metrics kept;
  if (resumed_step && ::access(path_.c_str(), F_OK) == 0) {
    try {
      saved_bytes = read_lines(read_text(path_), path_, *resumed_step, kept);
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}; the checkpoints are unchanged: move {} away to resume without its history",
                                  error.what(), path_));
    }
  }
  if (resumed_step) missing_steps_ = *resumed_step - static_cast<int64_t>(kept.steps.size());
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (saved_bytes == 0 ? O_TRUNC : 0), 0644);
  if (file_ < 0) fail_to_write("cannot write", path_);
  if (saved_bytes > 0 && ::ftruncate(file_, static_cast<off_t>(saved_bytes)) != 0) {
    ::close(file_);
    fail_to_write("cannot shorten", path_);
  }
}

MetricsWriter::~MetricsWriter() { ::close(file_); }

void MetricsWriter::append(const std::string& line) {
  for (size_t done = 0; done < line.size();) {
    const ssize_t count = ::write(file_, line.data() + done, line.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_to_write("cannot write", path_);
    done += static_cast<size_t>(count);
  }
}

void MetricsWriter::write(const StepMetrics& metrics) { append(to_json_line(metrics)); }
void MetricsWriter::write(const ValidationMetrics& metrics) { append(to_json_line(metrics)); }

}  // namespace orthant
