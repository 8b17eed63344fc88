// An HTTP server of one text, on the loopback, for Prometheus. It answers `GET /metrics` and nothing else.
#pragma once

#include <memory>
#include <string>

namespace orthant {

/// Serves http://127.0.0.1:PORT/metrics on one thread of its own. Clients cannot delay the other threads: the server
/// holds at most 16 connections, each for connection_s at most and with a request of at most 4 KiB. Every other request
/// is answered with 404.
class MetricsServer {
 public:
  /// Throws Error with the system's reason if the port cannot be opened. port 0: any free port.
  explicit MetricsServer(int port, double connection_s = 5);
  /// Closes all connections.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const;
  /// Replaces the text for later requests; empty at the start. Waits for no client.
  void set_text(std::string text);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace orthant
