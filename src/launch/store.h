// Store: the small key-value store through which ranks connect, and in which failures are posted. It wraps c10d's
// TCPStore, FileStore or HashStore.
//
// The cost of a request does not depend on the number of ranks. The exception is a store in a file: a request reads all
// entries written since this process's last request. Serving P ranks takes up to 3 P connections, and one per host.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/errors.h"

namespace orthant {

struct StoreHandle;  // wraps c10d's store; defined in c10d_store.h

/// Which machines may connect to a store that this process serves. Every client can read and write every key; see
/// authenticated() for what protects the values.
enum class Reach { kThisMachine, kNetwork };

/// Thrown if another program already listens on the port.
struct PortInUse : CommError {
  using CommError::CommError;
};

/// Thrown if a program without the secret of the run has changed a value of an authenticated store.
struct ForgedValue : CommError {
  using CommError::CommError;
};

/// A shared reference to a store; copies refer to the same one. Every operation throws CommError, with the store's
/// name, if the store does not answer. One connection serves one call at a time, so each thread needs its own clone().
class Store {
 public:
  Store() = default;
  Store(std::shared_ptr<StoreHandle> handle, std::string name, const std::string& host = "", int port = 0);

  /// A store for the threads of this process.
  static Store in_process();
  /// A store in a file that all ranks of one machine can open. The caller removes the file.
  static Store file(const std::string& path);
  /// Listens on the port (0: any free one, see port()) and serves the store to `ranks` ranks. kThisMachine listens on
  /// the loopback only. Raises the soft limit of open files of this process to the hard limit. Throws PortInUse if
  /// another program listens there, and CommError if the hard limit is too low for the connections.
  static Store serve(int port, double timeout_s, int ranks = 1, Reach reach = Reach::kThisMachine);
  /// Connects to a store that another process serves, and retries for timeout_s. After 2 s it reports on stderr what it
  /// waits for. Throws CommError with the host and the reason of the last attempt.
  static Store join(const std::string& host, int port, double timeout_s);

  explicit operator bool() const { return handle_ != nullptr; }
  /// The store's address for messages: "store 127.0.0.1:29500".
  const std::string& name() const { return name_; }
  int port() const { return port_; }
  StoreHandle& handle() const { return *handle_; }
  /// Number of requests sent so far through this store, its copies and its clones. A request is one query of the
  /// protocol of TCPStore. Requests of libraries that have the handle, such as NCCL, are not counted.
  int64_t requests() const { return *requests_; }

  void set(const std::string& key, const std::string& value) const;
  /// Waits for the key; throws CommError after timeout_s. These are two requests.
  std::string get(const std::string& key, double timeout_s) const;
  /// Reads several keys, all of which must exist. These are two requests, but one per key to a store in a file.
  std::vector<std::string> get_all(const std::vector<std::string>& keys) const;
  /// Adds to a counter (0 if new) and returns the sum. The caller that gets 1 after adding 1 was first.
  int64_t add(const std::string& key, int64_t delta) const;
  /// Sets the key if it does not exist, in one atomic step. Returns the value that the key then has, new or old.
  std::string set_if_new(const std::string& key, const std::string& value) const;
  bool has(const std::string& key) const;
  /// Removes the key, if it exists. No process may be waiting for the key.
  void remove(const std::string& key) const;

  /// The same store with a prefix before all keys.
  Store under(const std::string& prefix) const;
  /// The same store for holders of the secret only: names of keys are replaced by MACs under the secret, and each value
  /// carries a MAC. Reading a value that was written without the secret throws ForgedValue. Counters carry no MAC. With
  /// an empty secret, it is the same store.
  Store authenticated(const std::string& secret) const;
  /// The same store with another name in messages.
  Store named(const std::string& name) const;
  /// The same store over a separate connection. Throws CommError at once if its process is gone.
  Store clone() const;

 private:
  /// This store with another handle: with the same name, port and counter of requests.
  Store with(std::shared_ptr<StoreHandle> handle) const;
  void count(int64_t requests) const { *requests_ += requests; }

  std::shared_ptr<StoreHandle> handle_;
  std::string name_, host_;
  int port_ = 0;  // 0: not a store over TCP
  std::shared_ptr<std::atomic<int64_t>> requests_ = std::make_shared<std::atomic<int64_t>>(0);
};

/// Text of an error: complete for our own errors; for others the first line, without c10's backtrace.
std::string brief(const std::exception& error);

}  // namespace orthant
