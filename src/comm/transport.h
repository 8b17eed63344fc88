// Transport: tagged messages between the ranks of a run, on memory of the host. The one small interface that UCX and
// c10d's Gloo implement; our collectives (collectives.h) stand on it, and an Engine drives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/store.h"

namespace orthant {

/// One message, sent or received. The transport keeps its address, and that of its memory, until it has ended.
struct Message {
  int peer = 0;            // rank of the run
  uint32_t tag = 0;        // matched with the peer's, in order within a tag; below 2^kTagBits
  uint32_t label = 0;      // what the sender says it is, below 2^kLabelBits; a receive learns the sender's
  std::byte* data = nullptr;
  int64_t bytes = 0;       // of a receive: the room; when it has ended, what the peer sent, perhaps more

  bool ended = false;
  std::string error;       // empty: it has arrived whole
  void* waiter = nullptr;             // the Engine's
  class MessageSink* sink = nullptr;  // the transport's
};

inline constexpr int kTagBits = 31;
inline constexpr int kLabelBits = 16;

/// Told of messages that have ended.
class MessageSink {
 public:
  virtual void on_ended(Message& message) = 0;

 protected:
  ~MessageSink() = default;
};

/// One rank's end. Used by one thread at a time. A message may end while it is posted: the sink may not be told.
/// Messages of one pair and tag arrive in the order sent. A message larger than the room ends with an error, as do
/// those to a peer that is lost; a transport destroyed with messages under way may still write to their memory.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string name() const = 0;
  virtual void send(Message& message) = 0;
  virtual void receive(Message& message) = 0;
  /// Moves what can be moved and tells the sink of what has ended. True if anything happened.
  virtual bool progress() = 0;
  /// Before sleeping: true if event_fd() will become readable when progress() has something to do; false if it has now.
  virtual bool arm() = 0;
  virtual int event_fd() const = 0;
  /// Who cannot be reached any more, and why; empty: nobody known. Receives from it never end.
  virtual std::string lost() const { return ""; }
  /// True once all that was sent has left this rank, so that it may be destroyed when all ranks can say so.
  virtual bool flushed() = 0;
};

struct TransportOptions {
  int rank = 0;
  int world_size = 1;
  /// All ranks post how they are reached under this store, so each Comm has its own.
  Store store;
  /// Waits for what a rank posts there; CommError when it does not, or the run has failed meanwhile.
  std::function<std::string(const std::string& key, int rank)> hear;
  /// Of each rank: does it share this rank's memory?
  std::vector<bool> local = {};
  /// The local address that the peers can reach (Gloo), and the network interface where the user named one (UCX).
  std::string address = "127.0.0.1";
  std::string interface_name;
  double meet_timeout_s = 60;  // to connect
  double timeout_s = 300;      // for a message
};

/// UCX: shared memory within a host, TCP or InfiniBand between hosts. CommError where ucx_problem() is not empty;
/// ConfigError, in UCX's words, where this machine or UCX's own variables do not let it start.
std::unique_ptr<Transport> ucx_transport(const TransportOptions& options, MessageSink& sink);
/// Why UCX cannot be used here: not in this build, its library missing; empty if it can.
std::string ucx_problem();

/// What UCX has here.
struct UcxReport {
  std::string problem;  // empty: it starts
  std::string version;
  std::vector<std::string> transports;  // its own names: "posix", "cma", "tcp"
};
UcxReport examine_ucx();

/// c10d's Gloo over TCP.
std::unique_ptr<Transport> gloo_transport(const TransportOptions& options, MessageSink& sink);

}  // namespace orthant
