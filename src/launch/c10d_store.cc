// Implements Store on c10d's TCPStore, FileStore and HashStore, with error messages that name the host and the cause.
#include "launch/c10d_store.h"

#include <c10/util/Logging.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/descriptors.h"
#include "base/errors.h"
#include "launch/address.h"
#include "launch/store.h"

// c10d asks for the name of the peer's address at each new connection, for its logs. For the loopback and in most
// clusters that is a request to a name server, which may be slow or drop the requests of a thousand ranks. This
// function takes the place of the C library's in a program that links this room. It answers calls from libtorch with
// the address itself, and leaves all others as they are.
extern "C" int getnameinfo(const sockaddr* address, socklen_t length, char* host, socklen_t host_length, char* service,
                           socklen_t service_length, int flags) {
  static const auto original = reinterpret_cast<decltype(&getnameinfo)>(dlsym(RTLD_NEXT, "getnameinfo"));
  Dl_info caller{};
  const bool from_torch = dladdr(__builtin_return_address(0), &caller) != 0 && caller.dli_fname != nullptr &&
                          std::strstr(caller.dli_fname, "libtorch") != nullptr;
  const bool needs_name = (flags & NI_NAMEREQD) != 0;
  return original(address, length, host, host_length, service, service_length,
                  from_torch && !needs_name ? flags | NI_NUMERICHOST : flags);
}

namespace orthant {
namespace {

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::shared_ptr<StoreHandle> hold(c10::intrusive_ptr<c10d::Store> store) {
  return std::make_shared<StoreHandle>(StoreHandle{std::move(store)});
}

// Silences c10d, which logs every retried or lost connection with a stack trace, on all ranks. Our messages contain the
// relevant part. TORCH_CPP_LOG_LEVEL restores the rest.
void quiet_c10d() {
  constexpr int kFatalOnly = 3;
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = kFatalOnly;
}

// Runs one operation on a store; an error names the store.
template <typename Operation>
auto ask(const std::string& name, const Operation& operation) -> decltype(operation()) {
  try {
    return operation();
  } catch (const ForgedValue&) {
    throw;
  } catch (const std::exception& error) {
    throw CommError(fmt::format("{} does not answer: {}", name, brief(error)));
  }
}

c10d::TCPStoreOptions tcp_options(int port, bool serve, double timeout_s) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = serve;
  options.waitWorkers = false;
  options.timeout = milliseconds(timeout_s);
  return options;
}

// Returns why no connection to this port is possible now, by one attempt of our own, because c10d does not report the
// reason. Empty if a connection is accepted. Linux repeats a lost request for a connection after 1, 3 and 7 s.
std::string why_unreachable(const std::string& host, int port, int timeout_ms) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int unknown = getaddrinfo(host.c_str(), fmt::format("{}", port).c_str(), &hints, &found);
  if (unknown != 0) {
    return fmt::format("the name cannot be resolved: {}",
                       unknown == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(unknown));
  }
  std::string reason = "the name has no address";
  for (const addrinfo* at = found; at != nullptr && !reason.empty(); at = at->ai_next) {
    const int fd = socket(at->ai_family, at->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, at->ai_protocol);
    int error = fd < 0 || (::connect(fd, at->ai_addr, at->ai_addrlen) != 0 && errno != EINPROGRESS) ? errno : 0;
    pollfd ready{fd, POLLOUT, 0};
    socklen_t size = sizeof error;
    if (error == 0 && poll(&ready, 1, timeout_ms) == 0) error = ETIMEDOUT;
    if (error == 0) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    reason = error == 0 ? "" : std::strerror(error);
    if (fd >= 0) close(fd);
  }
  freeaddrinfo(found);
  return reason;
}

// Without enough descriptors, c10d's errors look like network errors. The server holds three connections to each rank:
// its main one, and those of its transport and of the roll calls of its Comm. For a short time it holds one more, for
// the status of a rank in a hang or the report of a failure. One rank of each host has another, for its Watch.
void require_descriptors_of_store(int ranks = 1) {
  require_descriptors(std::max(64, 16 + 5 * ranks), fmt::format("the store's connections to {} ranks", ranks));
}

// c10d waits without limit for the first answer of a program that accepts a connection but sends nothing. A separate
// thread therefore connects. It is abandoned if no answer comes in time.
c10::intrusive_ptr<c10d::Store> tcp_client(const std::string& host, int port, double timeout_s) {
  constexpr double kAnswer_s = 0.5;  // added to the time after which c10d itself gives up
  std::packaged_task<c10::intrusive_ptr<c10d::Store>()> connect(
      [host, options = tcp_options(port, false, timeout_s)]() -> c10::intrusive_ptr<c10d::Store> {
        return c10::make_intrusive<c10d::TCPStore>(host, options);
      });
  auto connected = connect.get_future();
  std::thread(std::move(connect)).detach();
  if (connected.wait_for(milliseconds(timeout_s + kAnswer_s)) != std::future_status::ready)
    throw CommError("connections are accepted there, but no store answers");
  return connected.get();
}

}  // namespace

std::string brief(const std::exception& error) {
  if (dynamic_cast<const Error*>(&error) != nullptr) return error.what();
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  text.resize(std::min(text.size(), text.find('\n')));
  // Gloo's messages begin with "[/path/of/its/source.cc:78] ".
  if (const size_t end = text.find("] "); text.starts_with("[/") && end != std::string::npos) text.erase(0, end + 2);
  return text;
}

Store::Store(std::shared_ptr<StoreHandle> handle, std::string name, const std::string& host, int port)
    : handle_(std::move(handle)), name_(std::move(name)), host_(host), port_(port) {}

Store Store::in_process() { return {hold(c10::make_intrusive<c10d::HashStore>()), "store of this process"}; }

Store Store::file(const std::string& path) {
  constexpr int kNeverRemove = -1;
  const std::string name = fmt::format("store {}", path);
  return ask(name, [&] { return Store(hold(c10::make_intrusive<c10d::FileStore>(path, kNeverRemove)), name); });
}

Store Store::serve(int port, double timeout_s, int ranks, Reach reach) {
  quiet_c10d();
  require_descriptors_of_store(ranks);
  const auto refuse = [&](const std::string& why, bool in_use) {
    if (!in_use) throw CommError(fmt::format("cannot serve the store of the ranks on port {}: {}", port, why));
    throw PortInUse(
        fmt::format("port {0} of this machine is in use, so the ranks cannot connect through it: choose another "
                    "MASTER_PORT (the same for all ranks), or end the program that uses it "
                    "(ss -ltnp 'sport = :{0}' shows it)",
                    port));
  };
  c10d::TCPStoreOptions options = tcp_options(port, true, timeout_s);
  if (reach == Reach::kThisMachine) {
    const int fd = listen_on_loopback(port), error = errno;
    if (fd < 0) refuse(std::strerror(error), error == EADDRINUSE);
    options.port = static_cast<uint16_t>(port_of_listener(fd));
    options.masterListenFd = fd;
  }
  try {
    const std::string loopback = loopback_address();
    auto store = c10::make_intrusive<c10d::TCPStore>(loopback, options);
    const int bound = store->getPort();
    return {hold(std::move(store)), "store " + host_and_port(loopback, bound), loopback, bound};
  } catch (const std::exception& error) {
    const std::string text = brief(error);
    refuse(text, text.find("EADDRINUSE") != std::string::npos || text.find("in use") != std::string::npos);
    throw;
  }
}

Store Store::join(const std::string& host, int port, double timeout_s) {
  constexpr double kQuiet_s = 2;
  quiet_c10d();
  require_descriptors_of_store();
  const std::string name = "store " + host_and_port(host, port);
  std::string reason;
  const auto explain = [&](const std::exception& error) {
    reason = why_unreachable(host, port, 1000);
    if (reason.empty()) reason = brief(error);
  };
  try {
    auto store = tcp_client(host, port, std::min(timeout_s, kQuiet_s));
    store->setTimeout(milliseconds(timeout_s));
    return {hold(std::move(store)), name, host, port};
  } catch (const std::exception& error) {
    explain(error);
  }
  if (timeout_s > kQuiet_s) {
    fmt::print(stderr, "waiting for the store at {}, for at most {:.0f} s: {}\n", host_and_port(host, port), timeout_s,
               reason);
    try {
      return {hold(tcp_client(host, port, timeout_s - kQuiet_s)), name, host, port};
    } catch (const std::exception& error) {
      explain(error);
    }
  }
  throw CommError(
      fmt::format("no store answered at {} for {:.0f} s ({}): check that MASTER_ADDR and MASTER_PORT are the same "
                  "on all ranks, that rank 0 or its launcher runs there, and that no firewall blocks the connection",
                  host_and_port(host, port), timeout_s, reason));
}

Store Store::with(std::shared_ptr<StoreHandle> handle) const {
  Store other = *this;
  other.handle_ = std::move(handle);
  return other;
}

void Store::set(const std::string& key, const std::string& value) const {
  count(1);
  ask(name_, [&] { handle_->store->set(key, value); });
}

std::string Store::get(const std::string& key, double timeout_s) const {
  count(2);
  return ask(name_, [&] {
    handle_->store->wait({key}, milliseconds(timeout_s));
    if (port_ == 0) return handle_->store->get_to_str(key);
    // get() of a TCPStore would wait a second time. A comparison with another value returns the value and changes
    // nothing.
    const std::vector<uint8_t> other = {'-'};
    const auto bytes = handle_->store->compareSet(key, other, other);
    return std::string(bytes.begin(), bytes.end());
  });
}

std::vector<std::string> Store::get_all(const std::vector<std::string>& keys) const {
  count(2);
  return ask(name_, [&] {
    std::vector<std::string> values;
    if (handle_->store->hasExtendedApi()) {
      for (const auto& value : handle_->store->multiGet(keys)) values.emplace_back(value.begin(), value.end());
    } else {
      for (const auto& key : keys) values.push_back(handle_->store->get_to_str(key));
    }
    return values;
  });
}

int64_t Store::add(const std::string& key, int64_t delta) const {
  count(1);
  return ask(name_, [&] { return handle_->store->add(key, delta); });
}

std::string Store::set_if_new(const std::string& key, const std::string& value) const {
  count(1);
  return ask(name_, [&] {
    const auto bytes = handle_->store->compareSet(key, {}, std::vector<uint8_t>(value.begin(), value.end()));
    return std::string(bytes.begin(), bytes.end());
  });
}

bool Store::has(const std::string& key) const {
  count(1);
  return ask(name_, [&] { return handle_->store->check({key}); });
}

void Store::remove(const std::string& key) const {
  count(1);
  ask(name_, [&] { return handle_->store->deleteKey(key); });
}

Store Store::under(const std::string& prefix) const {
  return with(hold(c10::make_intrusive<c10d::PrefixStore>(prefix, handle_->store)));
}

Store Store::named(const std::string& name) const {
  Store other = *this;
  other.name_ = name;
  return other;
}

Store Store::clone() const {
  // c10d would try for a minute to reach a store whose process is gone.
  const std::string why = port_ == 0 ? "" : why_unreachable(host_, port_, 8000);
  if (!why.empty()) throw CommError(fmt::format("{} does not answer: {}", name_, why));
  return ask(name_, [&] { return with(hold(handle_->store->clone())); });
}

}  // namespace orthant
