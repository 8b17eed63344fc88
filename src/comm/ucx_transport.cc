// UCX: a worker for each rank, an endpoint for each peer that it sends to, tagged messages straight from and into
// tensor memory. A build without UCX says so here.
#include "comm/transport.h"

#ifdef ORTHANT_UCX

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "comm/ucx_library.h"

namespace orthant {
namespace {

// A message's 64 bits of tag: what is matched (tag, sender), and the label, which is not.
constexpr uint64_t kMatched = ~uint64_t{0} << kLabelBits;
uint64_t wire_tag(uint32_t tag, int source, uint32_t label) {
  return uint64_t{tag} << 32 | static_cast<uint64_t>(source) << kLabelBits | label;
}

// It does not start, which is for the user to mend: what UCX says of it names the cause.
void check(ucs_status_t status, const char* what) {
  if (status == UCS_OK) return;
  throw ConfigError(fmt::format("UCX: {}: {}{}", what, ucx().ucs_status_string(status), ucx_complaints()));
}

// One for the process, whose threads may be ranks of their own. Never cleaned up: an abandoned rank may still use it.
ucp_context_h context(const std::string& interface_name) {
  static const ucp_context_h made = [&] {
    ucp_config_t* config = nullptr;
    check(ucx().ucp_config_read(nullptr, nullptr, &config), "reading its settings");
    const std::unique_ptr<ucp_config_t, decltype(ucx().ucp_config_release)> release(config, ucx().ucp_config_release);
    if (!interface_name.empty() && std::getenv("UCX_NET_DEVICES") == nullptr)
      check(ucx().ucp_config_modify(config, "NET_DEVICES", interface_name.c_str()), "choosing the network");
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    params.mt_workers_shared = 1;
    ucp_context_h out = nullptr;
    check(ucx().ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &out), "starting");
    // A device or transport that it was told to use and has not: it would go on with others.
    if (const std::string text = ucx_complaints(); text.find("is not available") != std::string::npos) {
      ucx().ucp_cleanup(out);
      throw ConfigError("UCX: starting: it cannot do as it is told" + text);
    }
    return out;
  }();
  return made;
}

class UcxTransport : public Transport {
 public:
  UcxTransport(const TransportOptions& options, MessageSink& sink) : sink_(sink), rank_(options.rank) {
    ORTHANT_CHECK(options.world_size <= 1 << 16, options.world_size);
    ucp_worker_params_t params{};
    params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    check(ucx().ucp_worker_create(context(options.interface_name), &params, &worker_), "opening this rank's end");
    check(ucx().ucp_worker_get_efd(worker_, &event_fd_), "getting its event");
    meet(options);
  }

  ~UcxTransport() override { ucx().ucp_worker_destroy(worker_); }

  std::string name() const override { return "ucx"; }
  int event_fd() const override { return event_fd_; }
  bool progress() override { return ucx().ucp_worker_progress(worker_) != 0; }
  bool arm() override { return ucx().ucp_worker_arm(worker_) != UCS_ERR_BUSY; }

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
                               wire_tag(message.tag, rank_, message.label), &param);
    if (!UCS_PTR_IS_PTR(request)) ended_at_once(message, UCS_PTR_STATUS(request));
  }

  void receive(Message& message) override {
    if (!peers_[static_cast<size_t>(message.peer)].local) endpoint(message.peer);  // or nobody hears that it is lost
    message.sink = &sink_;
    ucp_request_param_t param{};
    // Never without the callback: UCX 1.13 does not say what came where a receive ends at once.
    param.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    param.cb.recv = [](void* request, ucs_status_t status, const ucp_tag_recv_info_t* came, void* user) {
      learn(*static_cast<Message*>(user), status, *came);
      end(*static_cast<Message*>(user), status);
      ucx().ucp_request_free(request);
    };
    param.user_data = &message;
    void* const request = ucx().ucp_tag_recv_nbx(worker_, message.data, static_cast<size_t>(message.bytes),
                                                 wire_tag(message.tag, message.peer, 0), kMatched, &param);
    if (!UCS_PTR_IS_PTR(request)) ended_at_once(message, UCS_PTR_STATUS(request));  // it could not be posted
  }

  std::string lost() const override { return lost_; }

  bool flushed() override {
    if (flush_ == nullptr) {
      ucp_request_param_t param{};
      flush_ = ucx().ucp_worker_flush_nbx(worker_, &param);
    }
    if (UCS_PTR_IS_PTR(flush_)) {
      if (ucx().ucp_request_check_status(flush_) == UCS_INPROGRESS) return false;
      ucx().ucp_request_free(flush_);
    }
    flush_ = nullptr;
    return true;
  }

 private:
  static void learn(Message& message, ucs_status_t status, const ucp_tag_recv_info_t& came) {
    if (status != UCS_OK && status != UCS_ERR_MESSAGE_TRUNCATED) return;
    message.bytes = static_cast<int64_t>(came.length);
    message.label = static_cast<uint32_t>(came.sender_tag & ~kMatched);
  }

  static void end(Message& message, ucs_status_t status) {
    ended_at_once(message, status);
    message.sink->on_ended(message);
  }

  static void ended_at_once(Message& message, ucs_status_t status) {
    if (status != UCS_OK) message.error = fmt::format("rank {}: {}", message.peer, ucx().ucs_status_string(status));
    message.ended = true;
  }

  void meet(const TransportOptions& options) {
    ucp_address_t* address = nullptr;
    size_t length = 0;
    check(ucx().ucp_worker_get_address(worker_, &address, &length), "reading this rank's address");
    options.store.set(fmt::format("ucx/{}", rank_), std::string(reinterpret_cast<const char*>(address), length));
    ucx().ucp_worker_release_address(worker_, address);
    for (int rank = 0; rank < options.world_size; ++rank) {
      peers_.push_back({.owner = this, .rank = rank, .address = options.hear(fmt::format("ucx/{}", rank), rank),
                        .local = options.local[static_cast<size_t>(rank)]});
    }
  }

  // Made when first needed. Shared memory knows nothing of lost peers in UCX (the Watch does); a network connection
  // then fails what is under way.
  ucp_ep_h endpoint(int rank) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (peer.endpoint != nullptr) return peer.endpoint;
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(peer.address.data());
    params.err_mode = peer.local ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = [](void* user, ucp_ep_h, ucs_status_t why) {  // what is sent to it ends with the error
      const Peer& gone = *static_cast<Peer*>(user);
      gone.owner->lost_ = fmt::format("rank {} is lost: {}", gone.rank, ucx().ucs_status_string(why));
    };
    params.err_handler.arg = &peer;
    const ucs_status_t status = ucx().ucp_ep_create(worker_, &params, &peer.endpoint);
    if (status != UCS_OK) {
      throw CommError(fmt::format("UCX finds no way to rank {}: {}{}", rank, ucx().ucs_status_string(status),
                                  ucx_complaints()));
    }
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
  int event_fd_ = -1;
  ucp_worker_h worker_ = nullptr;
  void* flush_ = nullptr;
  std::vector<Peer> peers_;  // all there before the first endpoint is made
  std::string lost_;
};

}  // namespace

std::string ucx_problem() { return ucx().problem; }

UcxReport examine_ucx() {
  UcxReport report{.problem = ucx().problem};
  if (!report.problem.empty()) return report;
  report.version = ucx().ucp_get_version_string();
  char* text = nullptr;
  size_t size = 0;
  try {
    const ucp_context_h made = context("");
    FILE* const stream = open_memstream(&text, &size);
    ucx().ucp_context_print_info(made, stream);
    std::fclose(stream);
  } catch (const ConfigError& error) {
    report.problem = error.what();
    return report;
  }
  // "#      resource 1  :  md 1  dev 1  flags -- tcp/eth0"
  for (const std::string& line : split(text, '\n')) {
    const size_t flags = line.find("flags "), slash = line.find('/');
    if (flags == std::string::npos || slash == std::string::npos) continue;
    const size_t space = line.rfind(' ', slash);
    const std::string name = line.substr(space + 1, slash - space - 1);
    if (std::find(report.transports.begin(), report.transports.end(), name) == report.transports.end())
      report.transports.push_back(name);
  }
  std::free(text);
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
