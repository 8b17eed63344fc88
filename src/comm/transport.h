// Transport: tagged messages between the ranks of a run, in host memory. UCX and c10d's Gloo implement this small
// interface. The collectives (collectives.h) use it, and an Engine advances it.
//
// Growth with P ranks: both connect to a peer at the first message with it, and only then ask the store for its
// address. So a rank has a connection to each of its neighbors (collectives.h). It holds O(P) memory: a record for each
// rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launch/store.h"

namespace orthant {

/// A message to send or to receive. The transport keeps pointers to it and to its memory until it has ended.
struct Message {
  int peer = 0;        // rank within the run
  uint32_t tag = 0;    // must equal the peer's; messages with one tag match in order; below 2^kTagBits
  uint32_t signature = 0;  // message_signature.h, below 2^kSignatureBits; a receive gets the sender's
  std::byte* data = nullptr;
  /// Bytes to send. For a receive: the size of `data`; once `ended`, that of the peer's message, which may be larger.
  int64_t bytes = 0;

  bool ended = false;
  std::string error;                  // empty: the message has arrived complete
  void* waiter = nullptr;             // used by the Engine
  class MessageSink* sink = nullptr;  // used by the transport
};

inline constexpr int kTagBits = 31;
inline constexpr int kSignatureBits = 16;

/// Receives the notifications of a transport.
class MessageSink {
 public:
  virtual void on_ended(Message& message) = 0;
  /// A peer cannot be reached any more, so receives from it never end. May be called from any thread.
  virtual void on_lost(const std::string& reason) = 0;

 protected:
  ~MessageSink() = default;
};

/// One rank's transport, used by one thread at a time. The first message with a peer may wait for its address, and
/// throws CommError if that does not come. A message may end while it is posted; the sink may then get no
/// notification. Messages between two ranks with one tag arrive in the order sent. A message larger than the receiver's
/// space ends with an error, and so does a message to a lost peer. A transport destroyed with messages in progress may
/// still write to their memory.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string name() const = 0;
  virtual void send(Message& message) = 0;
  virtual void receive(Message& message) = 0;
  /// Advances messages and notifies the sink of those that have ended. True if anything happened.
  virtual bool progress() = 0;
  /// Prepares for sleep. True if event_fd() will become readable when progress() has work; false if it has work now.
  virtual bool arm() = 0;
  virtual int event_fd() const = 0;
  /// Number of ranks to which this rank has opened a connection, which it does at the first message to one.
  virtual int num_connections() const = 0;
  /// True once all sent messages have left this rank. When this holds on all ranks, the transport may be destroyed.
  virtual bool flushed() = 0;
};

struct TransportOptions {
  int rank = 0;
  int world_size = 1;
  /// Every rank posts its address under this store, so each Comm needs its own.
  Store store;
  /// Waits for a value that a rank posts there, on any one thread at a time. Throws CommError if it does not arrive, or
  /// if the run has failed meanwhile.
  std::function<std::string(const std::string& key, int rank)> wait_for_value;
  /// For each rank, whether it shares this rank's memory.
  std::vector<bool> local = {};
  /// The local address that the peers can reach (Gloo), and the network interface that the user named, if any (UCX).
  std::string address = "127.0.0.1";
  std::string interface_name;
  double connect_timeout_s = 60;  // timeout to connect
  /// Number of ranks with which this rank probably exchanges messages.
  int expected_connections = 1;
};

/// UCX: shared memory within a host, TCP or InfiniBand between hosts. Throws CommError if ucx_problem() is not empty.
/// Throws ConfigError with UCX's text if this machine or UCX's own variables prevent its start.
std::unique_ptr<Transport> ucx_transport(const TransportOptions& options, MessageSink& sink);
/// Returns why UCX cannot be used here: it is not in this build, or its library is missing. Empty if it can be used.
std::string ucx_problem();

/// UCX on this machine, for `orthant doctor`.
struct UcxReport {
  std::string problem;  // empty: UCX starts
  std::string version;
  std::vector<std::string> transports;  // UCX's names, such as "posix", "cma", "tcp"
};
UcxReport examine_ucx();

/// c10d's Gloo over TCP. Throws CommError if the ranks cannot connect.
std::unique_ptr<Transport> gloo_transport(const TransportOptions& options, MessageSink& sink);

}  // namespace orthant
