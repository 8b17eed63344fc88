// Store: the small key-value board on which ranks meet before they can talk, and on which failures are posted.
// It is c10d's TCPStore, FileStore or HashStore; c10d itself stays behind the handle.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/errors.h"

namespace orthant {

struct StoreHandle;  // c10d's store; defined in c10d_store.h

/// Which machines may connect to a store that this process serves. Whoever can connect can read and write every key.
enum class Reach { kThisMachine, kNetwork };

/// Another program already listens on the port.
struct PortInUse : CommError {
  using CommError::CommError;
};

/// A shared reference to a board (copies see the same one). Every operation throws CommError, naming the board, when it
/// does not answer. One connection serves one call at a time: a thread of its own needs its own clone().
class Store {
 public:
  Store() = default;
  Store(std::shared_ptr<StoreHandle> handle, std::string name, int port = 0);

  /// A board for the threads of this process.
  static Store in_process();
  /// A board in a file that all ranks of one machine can reach; whoever made the file removes it.
  static Store file(const std::string& path);
  /// Listens on the port (0: any free one, see port()) and serves the store to `ranks` ranks. kThisMachine listens on
  /// 127.0.0.1 only. Throws PortInUse if another program listens there, and CommError if this process may not open
  /// enough files for the connections.
  static Store serve(int port, double timeout_s, int ranks = 1, Reach reach = Reach::kThisMachine);
  /// Joins a board that somebody serves; tries until timeout_s have passed, and says on stderr after two seconds what
  /// it waits for. CommError with the host and the reason of the last attempt.
  static Store join(const std::string& host, int port, double timeout_s);

  explicit operator bool() const { return handle_ != nullptr; }
  /// Where the board is, for messages: "store 127.0.0.1:29500".
  const std::string& name() const { return name_; }
  int port() const { return port_; }
  StoreHandle& handle() const { return *handle_; }

  void set(const std::string& key, const std::string& value) const;
  /// Waits for the key; CommError after timeout_s.
  std::string get(const std::string& key, double timeout_s) const;
  /// All keys must exist; one round trip where the store can do it.
  std::vector<std::string> get_all(const std::vector<std::string>& keys) const;
  /// Adds to a counter (0 if new) and returns the sum: the one that reads 1 was first.
  int64_t add(const std::string& key, int64_t delta) const;
  /// Sets the key if it does not exist, in one atomic step. Returns the value that the key then has, new or old.
  std::string set_if_new(const std::string& key, const std::string& value) const;
  bool has(const std::string& key) const;

  /// The same board, all keys under a prefix.
  Store under(const std::string& prefix) const;
  /// The same board, called otherwise in messages.
  Store named(const std::string& name) const;
  /// The same board over a connection of its own.
  Store clone() const;

 private:
  std::shared_ptr<StoreHandle> handle_;
  std::string name_;
  int port_ = 0;
};

/// What an error says: our own in full, of others the first line, without c10's backtrace.
std::string brief(const std::exception& error);

}  // namespace orthant
