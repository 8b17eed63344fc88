// One thread waits in poll(2) for the listening socket, its connections and the end. All sockets are non-blocking.
#include "report/metrics_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <list>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/errors.h"

namespace orthant {
namespace {

constexpr size_t kMostConnections = 16, kMostRequestBytes = 4096;

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }

 private:
  int number_;
};

std::string reply(std::string_view status, std::string_view body) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      status, body.size(), body);
}

// Whether the request, whose headers are complete, is "GET /metrics", with or without a query.
bool asks_for_metrics(std::string_view request) {
  constexpr std::string_view kStart = "GET /metrics";
  return request.starts_with(kStart) && request.size() > kStart.size() &&
         (request[kStart.size()] == ' ' || request[kStart.size()] == '?');
}

// A client: first its request is read, then the answer is written, then everything it still sends is discarded until it
// closes, because closing with unread bytes would discard the answer.
struct Connection {
  Descriptor socket;
  Clock::time_point accepted = Clock::now();
  std::string request = {};
  std::string answer = {};  // the part that is not yet written
  bool is_answered = false;

  bool writes() const { return !answer.empty(); }
};

Descriptor listen_on(int port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int yes = 1;  // a new run may use the port of one that has just ended
  if (socket.number() < 0 || ::setsockopt(socket.number(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.number(), static_cast<int>(kMostConnections)) != 0) {
    throw Error(std::strerror(errno));
  }
  return socket;
}

}  // namespace

struct MetricsServer::State {
  State(int port, double seconds)
      : connection_s(seconds), listener(listen_on(port)), end(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (end.number() < 0) throw Error(std::strerror(errno));
  }

  std::string current_text() {
    const std::lock_guard lock(mutex);
    return text;
  }

  void serve();
  void accept_clients();
  /// Reads and writes as far as possible without waiting. Returns false if the connection has ended.
  bool advance(Connection& connection);
  bool read_request(Connection& connection);

  const double connection_s;
  Descriptor listener, end;
  std::mutex mutex;
  std::string text;
  std::list<Connection> connections;  // of the server's thread
  std::thread thread;
};

void MetricsServer::State::accept_clients() {
  while (connections.size() < kMostConnections) {
    const int client = ::accept4(listener.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (client < 0) {
      // Without free descriptors the listening socket stays ready, and poll(2) would return at once.
      if (errno != EAGAIN) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return;
    }
    connections.push_back({.socket = Descriptor(client)});
  }
}

bool MetricsServer::State::read_request(Connection& connection) {
  std::string& request = connection.request;
  char part[1024];
  const ssize_t size = ::recv(connection.socket.number(), part, sizeof part, 0);
  if (size <= 0) return size < 0 && (errno == EAGAIN || errno == EINTR);
  if (connection.is_answered) return true;  // discarded
  request.append(part, static_cast<size_t>(size));
  const bool is_complete = request.find("\r\n\r\n") != std::string::npos;
  if (!is_complete && request.size() <= kMostRequestBytes) return true;
  connection.is_answered = true;
  connection.answer = !is_complete                ? reply("431 Request Header Fields Too Large", "")
                      : asks_for_metrics(request) ? reply("200 OK", current_text())
                                                  : reply("404 Not Found", "this server has only /metrics\n");
  return true;
}

bool MetricsServer::State::advance(Connection& connection) {
  if (!connection.writes()) {
    if (!read_request(connection)) return false;
    if (!connection.writes()) return true;
  }
  const ssize_t size =
      ::send(connection.socket.number(), connection.answer.data(), connection.answer.size(), MSG_NOSIGNAL);
  if (size < 0) return errno == EAGAIN || errno == EINTR;
  connection.answer.erase(0, static_cast<size_t>(size));
  if (!connection.writes()) ::shutdown(connection.socket.number(), SHUT_WR);
  return true;
}

void MetricsServer::State::serve() {
  for (;;) {
    // A full server leaves further clients in the queue of the listening socket.
    const bool accepts = connections.size() < kMostConnections;
    std::vector<pollfd> waits = {{end.number(), POLLIN, 0}, {accepts ? listener.number() : -1, POLLIN, 0}};
    double shortest_s = connection_s;
    for (const Connection& connection : connections) {
      waits.push_back({connection.socket.number(), static_cast<short>(connection.writes() ? POLLOUT : POLLIN), 0});
      shortest_s = std::min(shortest_s, connection_s - seconds_since(connection.accepted));
    }
    const int wait_ms = connections.empty() ? -1 : std::max(0, static_cast<int>(std::ceil(1e3 * shortest_s)));
    if (::poll(waits.data(), waits.size(), wait_ms) < 0 && errno != EINTR) return;
    if (waits[0].revents != 0) return;
    auto wait = waits.begin() + 2;
    for (auto connection = connections.begin(); connection != connections.end(); ++wait) {
      const bool is_late = seconds_since(connection->accepted) >= connection_s;
      const bool stays = !is_late && (wait->revents == 0 || advance(*connection));
      connection = stays ? std::next(connection) : connections.erase(connection);
    }
    if (waits[1].revents != 0) accept_clients();
  }
}

MetricsServer::MetricsServer(int port, double connection_s) : state_(std::make_unique<State>(port, connection_s)) {
  sigset_t all, before;  // signals go to the other threads
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  state_->thread = std::thread([state = state_.get()] { state->serve(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

MetricsServer::~MetricsServer() {
  const uint64_t one = 1;
  (void)!::write(state_->end.number(), &one, sizeof one);
  state_->thread.join();
}

int MetricsServer::port() const {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ::getsockname(state_->listener.number(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

void MetricsServer::set_text(std::string text) {
  const std::lock_guard lock(state_->mutex);
  state_->text = std::move(text);
}

}  // namespace orthant
