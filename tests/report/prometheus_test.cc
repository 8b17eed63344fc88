// The text for Prometheus: names, types, order and escapes; its file is replaced atomically. The server: its answers,
// and clients that are slow, silent, greedy or gone. The negative control of the parser is a damaged text.
#include "report/prometheus.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <list>
#include <map>
#include <regex>
#include <thread>

#include "base/clock.h"
#include "base/errors.h"
#include "base/text.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant::prometheus_test {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
const PrometheusRun kRun = {.name = "runs/\"a\\b\"\n", .version = "1.2", .steps = 300};
const StepMetrics kStep = {.step = 7,
                           .loss = 2.5,
                           .grad_norm = 0.75,
                           .lr = 1e-05,
                           .tokens = 7168,
                           .step_seconds = 0.125,
                           .tokens_per_second = 8192,
                           .mfu = kUnknown,
                           .peak_memory_bytes = int64_t{3} << 30,
                           .communication_seconds = 0.5,
                           .communication_bytes = 1024,
                           .communication_calls = 7,
                           .data_seconds = 0,
                           .skipped_steps = 2};

// Parses the text strictly: each sample follows its own HELP and TYPE, names and values have the legal form, and no
// name repeats. Returns the samples, or a single entry "error".
std::map<std::string, double> parse(const std::string& text) {
  const std::regex sample(
      R"re((orthant_[a-z_]+)(\{[a-z]+="(?:[^"\\\n]|\\["\\n])*"(?:,[a-z]+="(?:[^"\\\n]|\\["\\n])*")*\})? (\S+))re");
  std::map<std::string, double> found;
  if (text.empty() || text.back() != '\n') return {{"error", 1}};
  const auto lines = split(text.substr(0, text.size() - 1), '\n');
  for (size_t i = 0; i + 2 < lines.size(); i += 3) {
    std::smatch match;
    if (!std::regex_match(lines[i + 2], match, sample)) return {{"error", 2}};
    const std::string name = match[1], type = name.ends_with("_total") ? "counter" : "gauge";
    if (!lines[i].starts_with("# HELP " + name + " ") || lines[i + 1] != "# TYPE " + name + " " + type) {
      return {{"error", 3}};
    }
    size_t used = 0;
    const double value = std::stod(match[3], &used);
    if (used != std::string(match[3]).size() || !found.emplace(name, value).second) return {{"error", 4}};
  }
  return lines.size() % 3 == 0 ? found : std::map<std::string, double>{{"error", 5}};
}

TEST(Prometheus, TextHasEveryKnownValueInBaseUnits) {
  const std::string text = prometheus_text(kRun, kStep, 1.75e9, ValidationMetrics{5, 2.25, kUnknown});
  EXPECT_TRUE(
      text.starts_with("# HELP orthant_info The run and the version of the program.\n# TYPE orthant_info gauge\n"
                       "orthant_info{run=\"runs/\\\"a\\\\b\\\"\\n\",version=\"1.2\"} 1\n"))
      << text;
  EXPECT_NE(text.find("# HELP orthant_step_seconds Duration of the step on rank 0.\n# TYPE orthant_step_seconds gauge\n"
                      "orthant_step_seconds 0.125\n"),
            std::string::npos);
  EXPECT_NE(text.find("# TYPE orthant_tokens_total counter\northant_tokens_total 7168\n"), std::string::npos);
  const std::map<std::string, double> wanted = {{"orthant_info", 1},
                                                {"orthant_planned_steps", 300},
                                                {"orthant_steps_total", 7},
                                                {"orthant_skipped_steps_total", 2},
                                                {"orthant_tokens_total", 7168},
                                                {"orthant_logged_timestamp_seconds", 1.75e9},
                                                {"orthant_loss", 2.5},
                                                {"orthant_gradient_norm", 0.75},
                                                {"orthant_learning_rate", 1e-5},
                                                {"orthant_step_seconds", 0.125},
                                                {"orthant_tokens_per_second", 8192},
                                                {"orthant_peak_memory_bytes", 3221225472},
                                                {"orthant_exposed_communication_seconds", 0.5},
                                                {"orthant_sent_bytes", 1024},
                                                {"orthant_data_seconds", 0},
                                                {"orthant_validation_step", 5},
                                                {"orthant_validation_loss", 2.25}};
  EXPECT_EQ(parse(text), wanted);
  EXPECT_TRUE(parse(text + "orthant_loss 2.5\n").contains("error"));
  EXPECT_TRUE(parse(std::regex_replace(text, std::regex("TYPE orthant_loss gauge"), "TYPE orthant_loss counter"))
                  .contains("error"));
}

TEST(Prometheus, EachValidationSetHasASample) {
  const ValidationMetrics with_sets{5, 2.25, kUnknown, {{"code", 1.5, 1}, {"a\"b", kUnknown, 1}, {"wiki", 3, 1}}};
  const std::string text = prometheus_text(kRun, kStep, 1.75e9, with_sets);
  EXPECT_TRUE(
      text.ends_with("# TYPE orthant_validation_set_loss gauge\n"
                     "orthant_validation_set_loss{set=\"code\"} 1.5\n"
                     "orthant_validation_set_loss{set=\"wiki\"} 3\n"))
      << text;
}

TEST(Prometheus, FileIsReplacedAtEachStep) {
  const TempFolder folder;
  PrometheusExport output(kRun, folder / "metrics.prom", 0);
  output.publish(ValidationMetrics{1, 2, 3});  // without a step there is no text
  EXPECT_FALSE(std::filesystem::exists(folder / "metrics.prom"));
  output.publish(kStep);
  const std::string before = slurp(folder / "metrics.prom");
  EXPECT_EQ(parse(before).at("orthant_validation_loss"), 2);
  std::ifstream reader(folder / "metrics.prom");  // has the old file open, and reads all of it
  StepMetrics next = kStep;
  next.step = 8;
  output.publish(next);
  EXPECT_EQ((std::string{std::istreambuf_iterator<char>(reader), {}}), before);
  EXPECT_EQ(parse(slurp(folder / "metrics.prom")).at("orthant_steps_total"), 8);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "no temporary file stays";
  PrometheusExport nowhere(kRun, folder / "missing/metrics.prom", 0);
  const auto said_by = [&] {
    testing::internal::CaptureStderr();
    nowhere.publish(kStep);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_TRUE(says(said_by(), {"warning: cannot write", "missing/metrics.prom: No such file", "the run goes on"}));
  EXPECT_EQ(said_by(), "");  // once
  std::filesystem::create_directory(folder / "missing");
  EXPECT_EQ(said_by(), "");
  EXPECT_EQ(parse(slurp(folder / "missing/metrics.prom")).at("orthant_steps_total"), kStep.step);
}

// A client on a blocking socket that gives up after 10 s.
class Client {
 public:
  explicit Client(const MetricsServer& server, int receive_buffer = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval limit{10, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (receive_buffer > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server.port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      ADD_FAILURE() << "connect";
  }
  ~Client() { ::close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(const std::string& text) const { ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL); }
  /// Reads until the server closes.
  std::string rest() const {
    std::string text;
    char part[4096];
    for (ssize_t size; (size = ::recv(socket_, part, sizeof part, 0)) > 0;)
      text.append(part, static_cast<size_t>(size));
    return text;
  }

 private:
  int socket_;
};

std::string ask(const MetricsServer& server, const std::string& request) {
  const Client client(server);
  client.send(request);
  return client.rest();
}

const std::string kGet = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";

TEST(MetricsServer, AnswersOnlyGetMetrics) {
  MetricsServer server(0);
  server.set_text("orthant_loss 1\n");
  EXPECT_EQ(ask(server, kGet),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: 15\r\n"
            "Connection: close\r\n\r\northant_loss 1\n");
  server.set_text("orthant_loss 2\n");
  EXPECT_TRUE(ask(server, "GET /metrics?name=x HTTP/1.0\r\n\r\n").ends_with("\r\n\r\northant_loss 2\n"));
  for (const char* other :
       {"GET / HTTP/1.1", "GET /metrics2 HTTP/1.1", "POST /metrics HTTP/1.1", "GET  /metrics HTTP/1.1",
        "get /metrics HTTP/1.1", "GET http://127.0.0.1/metrics HTTP/1.1", "GET /metrics", ""}) {
    EXPECT_TRUE(ask(server, std::string(other) + "\r\n\r\n").starts_with("HTTP/1.1 404 Not Found\r\n")) << other;
  }
}

TEST(MetricsServer, RequestsInPiecesAndTooLargeOnes) {
  MetricsServer server(0);
  server.set_text("x 1\n");
  const Client client(server);
  for (const char c : kGet) client.send({c});
  EXPECT_TRUE(client.rest().ends_with("x 1\n"));
  EXPECT_TRUE(ask(server, "GET /metrics HTTP/1.1\r\nX: " + std::string(3000, 'x') + "\r\n\r\n").ends_with("x 1\n"));
  // The client still sends when the answer is written, and must get it nevertheless.
  EXPECT_TRUE(ask(server, "GET /metrics HTTP/1.1\r\nX: " + std::string(100'000, 'x')).starts_with("HTTP/1.1 431 "));
}

// Twelve clients that send nothing, one that never reads its answer, and one that is gone delay no other client, and
// neither does the server delay the thread that sets the text.
TEST(MetricsServer, SlowClientsDelayNobody) {
  MetricsServer server(0);
  server.set_text(std::string(16 << 20, 'x'));
  const Client greedy(server, 4096);
  greedy.send(kGet);
  std::list<Client> silent;
  for (int i = 0; i < 12; ++i) silent.emplace_back(server);
  silent.back().send("GET /met");
  {
    Client(server).send(kGet);
  }
  const auto start = Clock::now();
  for (int i = 0; i < 100; ++i) {
    server.set_text(fmt::format("orthant_steps_total {}\n", i));
    ASSERT_TRUE(ask(server, kGet).ends_with(fmt::format("\northant_steps_total {}\n", i)));
  }
  EXPECT_LT(seconds_since(start), 3);
}

// A full server makes further clients wait until the silent ones have had their half second. Its end does not wait for
// them.
TEST(MetricsServer, SilentClientsAreClosed) {
  auto server = std::make_unique<MetricsServer>(0, 0.5);
  server->set_text("x 1\n");
  std::list<Client> silent;
  for (int i = 0; i < 16; ++i) silent.emplace_back(*server);
  const auto start = Clock::now();
  EXPECT_TRUE(ask(*server, kGet).ends_with("x 1\n"));
  EXPECT_GT(seconds_since(start), 0.3);
  EXPECT_LT(seconds_since(start), 5);
  EXPECT_EQ(silent.front().rest(), "");
  const Client last(*server);
  const auto end = Clock::now();
  server.reset();
  EXPECT_LT(seconds_since(end), 0.4);
}

TEST(MetricsServer, UsedPortIsAnErrorHereAndAWarningInARun) {
  const MetricsServer first(0);
  EXPECT_EQ(message_of<Error>([&] { MetricsServer second(first.port()); }), "Address already in use");
  testing::internal::CaptureStderr();
  PrometheusExport output(kRun, "", first.port());
  output.publish(kStep);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            fmt::format("warning: metrics.port = {}: Address already in use; the run goes on without a server of "
                        "metrics\n",
                        first.port()));
}

}  // namespace
}  // namespace orthant::prometheus_test
