// The newest metrics of a run in Prometheus's text format, as a file and over HTTP.
// Source: https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "report/metrics.h"
#include "report/metrics_server.h"

namespace orthant {

/// The run as the text describes it; constant during the run.
struct PrometheusRun {
  std::string name;     // label `run`: the run folder
  std::string version;  // label `version`: of the program
  int64_t steps = 0;    // steps of the complete run
};

/// The text: for each known value HELP, TYPE and the sample, in base units (seconds, bytes, ratios). Values that are
/// not known are left out. logged_unix_s: when the step was logged, in seconds since 1970.
std::string prometheus_text(const PrometheusRun& run, const StepMetrics& step, double logged_unix_s,
                            const std::optional<ValidationMetrics>& validation);

/// Publishes the newest metrics to a file, to HTTP clients, or to both.
class PrometheusExport {
 public:
  /// file: path; empty: no file. port: of the server; 0: no server. A port that cannot be opened is a warning on
  /// stderr, and the run goes on.
  PrometheusExport(PrometheusRun run, std::string file, int port);

  /// Replaces the file atomically, and the server's text. A file that cannot be written is a warning on stderr, once
  /// until it is written again, and the run goes on.
  void publish(const StepMetrics& step);
  /// Adds a validation to the text, and publishes it with the last step.
  void publish(const ValidationMetrics& validation);

 private:
  void publish();

  PrometheusRun run_;
  std::string file_;
  bool has_warned_ = false;  // the last attempt to write the file failed
  std::unique_ptr<MetricsServer> server_;
  std::optional<StepMetrics> step_;
  double logged_unix_s_ = 0;
  std::optional<ValidationMetrics> validation_;
};

}  // namespace orthant
