// UCX as a Transport: one or two workers per rank, one endpoint per peer in use. Tagged messages are sent and received
// directly in tensor memory. A build without UCX reports here that it has none.
//
// Growth with P ranks: two store requests per rank at the start, and a record in memory for each rank. An endpoint is
// opened at the first message to a peer, whose address is read from the store.
#include "comm/transport.h"

#ifdef ORTHANT_UCX

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "base/descriptors.h"
#include "base/errors.h"
#include "comm/ucx_context.h"
#include "comm/ucx_library.h"

namespace orthant {
namespace {

// The 64 bits of a UCX tag: message tag (32), sender (16) and signature (16). The signature takes no part in matching.
constexpr uint64_t kMatched = ~uint64_t{0} << kSignatureBits;
uint64_t wire_tag(uint32_t tag, int source, uint32_t signature) {
  return uint64_t{tag} << 32 | static_cast<uint64_t>(source) << kSignatureBits | signature;
}

// One descriptor that reports the events of all workers.
struct Events {
  Events() = default;
  ~Events() { close(fd); }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  const int fd = epoll_create1(EPOLL_CLOEXEC);
};

// Held while a thread creates or destroys an object of UCX. UCX itself guards its list of objects with a spin lock: of
// hundreds of ranks that are threads of one process, most would spin while the holder of the lock waits for a core.
std::mutex& objects_mutex() {
  static std::mutex mutex;
  return mutex;
}

// A UCX worker, which carries the messages to and from some of the peers.
struct Worker {
  explicit Worker(ucp_context_h context) {
    const std::lock_guard lock(objects_mutex());
    ucp_worker_params_t params{};
    params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    check_ucx(ucx().ucp_worker_create(context, &params, &handle), "creating a worker");
  }
  ~Worker() {
    const std::lock_guard lock(objects_mutex());
    ucx().ucp_worker_destroy(handle);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  std::string address() const {
    ucp_address_t* text = nullptr;
    size_t length = 0;
    check_ucx(ucx().ucp_worker_get_address(handle, &text, &length), "reading the address of a worker");
    std::string copy(reinterpret_cast<const char*>(text), length);
    ucx().ucp_worker_release_address(handle, text);
    return copy;
  }
  int event_fd() const {
    int fd = -1;
    check_ucx(ucx().ucp_worker_get_efd(handle, &fd), "getting the event of a worker");
    return fd;
  }
  bool flushed() {
    if (flush == nullptr) {
      ucp_request_param_t param{};
      flush = ucx().ucp_worker_flush_nbx(handle, &param);
    }
    if (UCS_PTR_IS_PTR(flush)) {
      if (ucx().ucp_request_check_status(flush) == UCS_INPROGRESS) return false;
      ucx().ucp_request_free(flush);
    }
    flush = nullptr;
    return true;
  }

  ucp_worker_h handle = nullptr;
  void* flush = nullptr;
};

// The context for ranks of one machine, restricted to the loopback if that is usable. If not, shared memory is enough.
ucp_context_h loopback_context(int connections) {
  try {
    return ucx_context("lo", connections);
  } catch (const ConfigError&) {
    return ucx_context("", connections);
  }
}

class UcxTransport : public Transport {
 public:
  UcxTransport(const TransportOptions& options, MessageSink& sink)
      : sink_(sink), rank_(options.rank), wait_for_value_(options.wait_for_value) {
    ORTHANT_CHECK(options.world_size <= 1 << 16, options.world_size);
    // UCX listens on every network that it may use. Ranks of one machine need only the loopback, unless the user has
    // chosen a network.
    const bool one_machine = std::count(options.local.begin(), options.local.end(), false) == 0;
    const bool undecided = options.interface_name.empty() && std::getenv("UCX_TLS") == nullptr;
    const ucp_context_h within = one_machine && undecided
                                     ? loopback_context(options.expected_connections)
                                     : ucx_context(options.interface_name, options.expected_connections);
    workers_.push_back(std::make_unique<Worker>(within));
    if (!one_machine) {
      const ucp_context_h network = ucx_network_context(options.interface_name, options.expected_connections);
      if (network != within) workers_.push_back(std::make_unique<Worker>(network));
    }
    for (const auto& worker : workers_) {
      epoll_event wanted{.events = EPOLLIN, .data = {}};
      if (epoll_ctl(events_.fd, EPOLL_CTL_ADD, worker->event_fd(), &wanted) != 0)
        throw CommError(fmt::format("UCX failed while watching its events: {}", std::strerror(errno)));
    }
    for (int rank = 0; rank < options.world_size; ++rank) {
      peers_.push_back({.owner = this, .rank = rank, .local = options.local[static_cast<size_t>(rank)]});
    }
    options.store.set(fmt::format("ucx/{}/host", rank_), workers_.front()->address());
    options.store.set(fmt::format("ucx/{}/network", rank_), workers_.back()->address());
  }

  std::string name() const override { return "ucx"; }
  int event_fd() const override { return events_.fd; }
  bool progress() override {
    bool some = false;
    for (const auto& worker : workers_) some |= ucx().ucp_worker_progress(worker->handle) != 0;
    return some;
  }
  bool arm() override {
    return std::all_of(workers_.begin(), workers_.end(),
                       [](const auto& worker) { return ucx().ucp_worker_arm(worker->handle) != UCS_ERR_BUSY; });
  }

  void send(Message& message) override {
    message.sink = &sink_;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = [](void* request, ucs_status_t status, void* user) {
      end(*static_cast<Message*>(user), status);
      ucx().ucp_request_free(request);
    };
    param.user_data = &message;
    void* const request =
        ucx().ucp_tag_send_nbx(endpoint(message.peer), message.data, static_cast<size_t>(message.bytes),
                               wire_tag(message.tag, rank_, message.signature), &param);
    if (!UCS_PTR_IS_PTR(request)) ended_at_once(message, UCS_PTR_STATUS(request));
  }

  void receive(Message& message) override {
    // Without an endpoint, UCX would not report the loss of a peer on another host.
    if (!peers_[static_cast<size_t>(message.peer)].local) endpoint(message.peer);
    message.sink = &sink_;
    ucp_request_param_t param{};
    // Always with the callback: UCX 1.13 does not report size and signature if a receive completes at once.
    param.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    param.cb.recv = [](void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* user) {
      learn(*static_cast<Message*>(user), status, *info);
      end(*static_cast<Message*>(user), status);
      ucx().ucp_request_free(request);
    };
    param.user_data = &message;
    void* const request =
        ucx().ucp_tag_recv_nbx(worker_for(message.peer).handle, message.data, static_cast<size_t>(message.bytes),
                               wire_tag(message.tag, message.peer, 0), kMatched, &param);
    if (!UCS_PTR_IS_PTR(request)) ended_at_once(message, UCS_PTR_STATUS(request));  // the receive could not be posted
  }

  int num_connections() const override { return num_endpoints_; }

  bool flushed() override {
    return std::all_of(workers_.begin(), workers_.end(), [](const auto& worker) { return worker->flushed(); });
  }

 private:
  static void learn(Message& message, ucs_status_t status, const ucp_tag_recv_info_t& info) {
    if (status != UCS_OK && status != UCS_ERR_MESSAGE_TRUNCATED) return;
    message.bytes = static_cast<int64_t>(info.length);
    message.signature = static_cast<uint32_t>(info.sender_tag & ~kMatched);
  }

  static void end(Message& message, ucs_status_t status) {
    ended_at_once(message, status);
    message.sink->on_ended(message);
  }

  static void ended_at_once(Message& message, ucs_status_t status) {
    if (status != UCS_OK) message.error = fmt::format("rank {}: {}", message.peer, ucx().ucs_status_string(status));
    message.ended = true;
  }

  Worker& worker_for(int rank) {
    return peers_[static_cast<size_t>(rank)].local ? *workers_.front() : *workers_.back();
  }

  // Opens the endpoint at first use. UCX does not detect lost peers over shared memory; the Watch does. Over a network,
  // a lost connection fails the messages in progress.
  ucp_ep_h endpoint(int rank) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (peer.endpoint != nullptr) return peer.endpoint;
    if (peer.address.empty()) {
      peer.address = wait_for_value_(fmt::format("ucx/{}/{}", rank, peer.local ? "host" : "network"), rank);
    }
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(peer.address.data());
    params.err_mode = peer.local ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
    // Messages sent to the lost peer end with an error.
    params.err_handler.cb = [](void* user, ucp_ep_h, ucs_status_t why) {
      const Peer& gone = *static_cast<Peer*>(user);
      const char* reason = ucx().ucs_status_string(why);
      gone.owner->sink_.on_lost(fmt::format("the connection to rank {} is lost: {}", gone.rank, reason));
    };
    params.err_handler.arg = &peer;
    const ucs_status_t status = [&] {
      const std::lock_guard lock(objects_mutex());
      return ucx().ucp_ep_create(worker_for(rank).handle, &params, &peer.endpoint);
    }();
    if (status != UCS_OK) {
      throw CommError(fmt::format("UCX cannot reach rank {}: {}{}{}", rank, ucx().ucs_status_string(status),
                                  ucx_complaints(), descriptor_problem()));
    }
    ++num_endpoints_;
    return peer.endpoint;
  }

  struct Peer {
    UcxTransport* owner;
    int rank;
    std::string address;
    bool local = false;
    ucp_ep_h endpoint = nullptr;
  };

  MessageSink& sink_;
  const int rank_;
  const std::function<std::string(const std::string& key, int rank)> wait_for_value_;
  // Complete before the first endpoint is made, because UCX keeps pointers to its elements. Outlives the workers.
  std::vector<Peer> peers_;
  // The first is for ranks of this host. A second exists if ranks of other hosts need another context.
  std::vector<std::unique_ptr<Worker>> workers_;
  Events events_;
  int num_endpoints_ = 0;
};

}  // namespace

std::string ucx_problem() { return ucx().problem; }

UcxReport examine_ucx() {
  UcxReport report{.problem = ucx().problem};
  if (!report.problem.empty()) return report;
  report.version = ucx().ucp_get_version_string();
  try {
    report.transports = ucx_transports(ucx_context("", 1));
  } catch (const ConfigError& error) {
    report.problem = error.what();
  }
  return report;
}

std::unique_ptr<Transport> ucx_transport(const TransportOptions& options, MessageSink& sink) {
  if (!ucx().problem.empty()) throw CommError("UCX: " + ucx().problem);
  return std::make_unique<UcxTransport>(options, sink);
}

}  // namespace orthant

#else

#include "base/errors.h"

namespace orthant {

std::string ucx_problem() {
  return "this build of Orthant has no UCX; install its headers (libucx-dev) and build again";
}

UcxReport examine_ucx() { return {.problem = ucx_problem()}; }

std::unique_ptr<Transport> ucx_transport(const TransportOptions&, MessageSink&) {
  throw CommError("UCX: " + ucx_problem());
}

}  // namespace orthant

#endif
