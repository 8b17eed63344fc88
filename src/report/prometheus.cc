#include "report/prometheus.h"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>

#include "base/errors.h"

namespace orthant {
namespace {

// Escapes the value of a label.
std::string label_value(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? "\\n" : std::string(1, c);
  }
  return out;
}

class Text {
 public:
  void gauge(const char* name, const char* help, double value) { family(name, "gauge", help, "", value); }
  void counter(const char* name, const char* help, int64_t value) {
    family(name, "counter", help, "", static_cast<double>(value));
  }
  void info(const char* name, const char* help, const std::string& labels) { family(name, "gauge", help, labels, 1); }
  /// A family with one sample for each known loss.
  void losses_of_sets(const char* name, const char* help, std::span<const SetMetrics> sets) {
    std::string samples;
    for (const SetMetrics& set : sets) {
      if (std::isnan(set.validation_loss)) continue;
      samples += fmt::format("orthant_{}{{set=\"{}\"}} {}\n", name, label_value(set.name), set.validation_loss);
    }
    if (!samples.empty()) head(name, "gauge", help), text_ += samples;
  }
  const std::string& text() const { return text_; }

 private:
  void head(const char* name, const char* type, const char* help) {
    text_ += fmt::format("# HELP orthant_{0} {1}\n# TYPE orthant_{0} {2}\n", name, help, type);
  }
  void family(const char* name, const char* type, const char* help, const std::string& labels, double value) {
    if (std::isnan(value)) return;
    head(name, type, help);
    text_ += fmt::format("orthant_{}{} {}\n", name, labels, value);
  }

  std::string text_;
};

}  // namespace

std::string prometheus_text(const PrometheusRun& run, const StepMetrics& step, double logged_unix_s,
                            const std::optional<ValidationMetrics>& validation) {
  Text text;
  text.info("info", "The run and the version of the program.",
            fmt::format("{{run=\"{}\",version=\"{}\"}}", label_value(run.name), label_value(run.version)));
  text.gauge("planned_steps", "Steps of the complete run.", static_cast<double>(run.steps));
  text.counter("steps_total", "Optimizer steps so far.", step.step);
  text.counter("skipped_steps_total",
               "Steps without an update so far: a value was not finite, or the gradient norm too large.",
               step.skipped_steps);
  text.counter("tokens_total", "Tokens of all ranks so far.", step.tokens);
  text.gauge("logged_timestamp_seconds", "Unix time at which the newest step was logged.", logged_unix_s);
  text.gauge("loss", "Training loss of the step, in nats per token.", step.loss);
  text.gauge("gradient_norm", "Norm of all gradients before clipping.", step.grad_norm);
  text.gauge("learning_rate", "Learning rate of the step.", step.lr);
  text.gauge("step_seconds", "Duration of the step on rank 0.", step.step_seconds);
  text.gauge("tokens_per_second", "Tokens per second of all ranks.", step.tokens_per_second);
  text.gauge("mfu_ratio", "Model FLOPs utilization, from 0 to 1.", step.mfu);
  text.gauge("peak_memory_bytes", "Peak of the tensors of the rank that needs most.",
             static_cast<double>(step.peak_memory_bytes));
  text.gauge("exposed_communication_seconds", "Time of the step in which rank 0 waits for messages.",
             step.communication_seconds);
  text.gauge("sent_bytes", "Bytes that rank 0 sends in the step.", static_cast<double>(step.communication_bytes));
  text.gauge("data_seconds", "Time of the step in which rank 0 waits for data.", step.data_seconds);
  if (validation) {
    text.gauge("validation_step", "Step of the newest validation.", static_cast<double>(validation->step));
    text.gauge("validation_loss", "Loss on held-out documents, in nats per token.", validation->validation_loss);
    text.gauge("validation_bits_per_byte", "Loss on held-out documents, in bits per byte of their text.",
               validation->bits_per_byte);
    text.losses_of_sets("validation_set_loss", "Loss on each of several validation sets, in nats per token.",
                        validation->sets);
  }
  return text.text();
}

PrometheusExport::PrometheusExport(PrometheusRun run, std::string file, int port)
    : run_(std::move(run)), file_(std::move(file)) {
  if (port == 0) return;
  try {
    server_ = std::make_unique<MetricsServer>(port);
  } catch (const Error& error) {
    fmt::print(stderr, "warning: metrics.port = {}: {}; the run goes on without a server of metrics\n", port,
               error.what());
  }
}

void PrometheusExport::publish(const StepMetrics& step) {
  step_ = step;
  logged_unix_s_ = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  publish();
}

void PrometheusExport::publish(const ValidationMetrics& validation) {
  validation_ = validation;
  publish();
}

void PrometheusExport::publish() {
  if (!step_) return;
  const std::string text = prometheus_text(run_, *step_, logged_unix_s_, validation_);
  if (server_) server_->set_text(text);
  if (file_.empty()) return;
  // The temporary name does not end in .prom, so that no collector reads it.
  const std::filesystem::path path(file_);
  const std::string temporary = path.parent_path() / ("." + path.filename().string() + ".tmp");
  std::ofstream out(temporary, std::ios::binary);
  out << text;
  out.close();
  const bool is_written = out && std::rename(temporary.c_str(), file_.c_str()) == 0;
  if (!is_written && !has_warned_) {
    fmt::print(stderr, "warning: cannot write {}: {}; the run goes on without it\n", file_, std::strerror(errno));
  }
  has_warned_ = !is_written;
}

}  // namespace orthant
