// Lays the board out in shared memory, and finds the board of this host through the store.
#include "launch/host_board.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/errors.h"
#include "base/text.h"
#include "launch/process.h"

namespace orthant {
namespace {

constexpr size_t kActivityBytes = 440, kFailureBytes = 4000, kProcessBytes = 40, kNonceBytes = 16;
constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;  // a smaller file would kill its readers by SIGBUS

// A text of shared memory. Its bytes are atomic, because a reader may come while the writer changes them.
template <size_t bytes>
class SharedText {
 public:
  void set(const std::string& text) {
    const size_t length = std::min(text.size(), bytes - 1);
    for (size_t i = 0; i < length; ++i) bytes_[i].store(text[i], std::memory_order_relaxed);
    bytes_[length].store('\0', std::memory_order_relaxed);
  }
  std::string get() const {
    std::string text;
    for (size_t i = 0; i < bytes; ++i) {
      const char c = bytes_[i].load(std::memory_order_relaxed);
      if (c == '\0') break;
      text.push_back(c);
    }
    return text;
  }

 private:
  std::array<std::atomic<char>, bytes> bytes_;
};

static_assert(std::atomic<int64_t>::is_always_lock_free, "a lock of one process does not hold in another");

}  // namespace

// Aligned, so that two ranks write to no common cache line.
struct alignas(64) HostBoard::Slot {
  std::atomic<int> rank;     // + 1; 0 until the other members of the rank hold
  std::atomic<int> watches;  // Watches of the rank that have begun and not ended
  std::atomic<int64_t> beat;
  std::atomic<int64_t> num_activities;  // the latest is activities[num_activities % 2]
  SharedText<kProcessBytes> process;    // the end of its identity: pid and start time
  SharedText<kActivityBytes> activities[2];
};

struct alignas(64) HostBoard::Memory {
  SharedText<kNonceBytes + 1> nonce;  // distinguishes this board from any other file
  std::atomic<int> host;              // + 1; 0: no rank has entered
  std::atomic<int> num_slots;
  std::atomic<int> watches;  // of all slots
  std::atomic<int> leader;   // its position + 1; 0: no rank leads
  std::atomic<bool> suspicious, failure_claimed, failure_posted;
  SharedText<kFailureBytes> failure;
};

namespace {

// "/proc/12/fd/3 0123456789abcdef"
std::string address_of(int fd, const std::string& nonce) {
  return fmt::format("/proc/{}/fd/{} {}", getpid(), fd, nonce);
}

}  // namespace

HostBoard::HostBoard(int fd, Memory* memory, size_t bytes, std::string address)
    : fd_(fd), memory_(memory), bytes_(bytes), address_(std::move(address)) {}

HostBoard::~HostBoard() {
  munmap(memory_, bytes_);
  close(fd_);
}

// The memory of a new file is zero, which is the initial value of every member.
std::unique_ptr<HostBoard> HostBoard::create(int world_size) {
  const size_t bytes = sizeof(Memory) + static_cast<size_t>(world_size) * sizeof(Slot);
  const int fd = memfd_create("orthant-board", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  void* memory = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0 && fcntl(fd, F_ADD_SEALS, kSealed) == 0) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (memory == MAP_FAILED) {
    const std::string why = std::strerror(errno);
    if (fd >= 0) close(fd);
    throw CommError(
        fmt::format("cannot create {} of memory for the ranks of this host to share: {}; raise the memory "
                    "limit of this process",
                    format_bytes(static_cast<double>(bytes)), why));
  }
  const std::string nonce = random_nonce();
  auto board =
      std::unique_ptr<HostBoard>(new HostBoard(fd, static_cast<Memory*>(memory), bytes, address_of(fd, nonce)));
  board->memory_->nonce.set(nonce);
  return board;
}

// Returns null if this process may not open the board, or if the address is that of another machine or of an ended
// process, so that no file or another one is there.
std::unique_ptr<HostBoard> HostBoard::open(const std::string& address, int world_size) {
  const auto parts = split(address, ' ');
  if (parts.size() != 2 || !parts[0].starts_with("/proc/")) return nullptr;
  const size_t bytes = sizeof(Memory) + static_cast<size_t>(world_size) * sizeof(Slot);
  const int fd = ::open(parts[0].c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  struct stat status{};
  void* memory = MAP_FAILED;
  if (fcntl(fd, F_GET_SEALS) == kSealed && fstat(fd, &status) == 0 && status.st_size == static_cast<off_t>(bytes)) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (memory == MAP_FAILED) {
    close(fd);
    return nullptr;
  }
  auto board = std::unique_ptr<HostBoard>(new HostBoard(fd, static_cast<Memory*>(memory), bytes, address));
  return board->memory_->nonce.get() == parts[1] ? std::move(board) : nullptr;
}

std::shared_ptr<HostBoard> HostBoard::join(const Store& store, int world_size, const std::string& host) {
  auto own = create(world_size);
  const std::string address = store.set_if_new("board/" + host, own->address_);
  if (address != own->address_) {
    if (auto opened = open(address, world_size)) return opened;
  }
  return own;
}

std::string HostBoard::heartbeat_key(int host) { return fmt::format("host/{}", host); }
int HostBoard::host() const { return memory_->host - 1; }

HostBoard::Slot& HostBoard::slot(int position) const {
  ORTHANT_CHECK(position >= 0 && sizeof(Memory) + (static_cast<size_t>(position) + 1) * sizeof(Slot) <= bytes_,
                position);
  static_assert(sizeof(Slot) <= 1024);
  return reinterpret_cast<Slot*>(memory_ + 1)[position];
}

int HostBoard::enter(const Store& store, int rank, const std::string& identity) {
  int none = 0;
  if (memory_->host.compare_exchange_strong(none, rank + 1))
    store.set(heartbeat_key(rank), fmt::format("{}\n0\n0\n", rank));
  int position = find(rank);
  if (position < 0) {
    position = memory_->num_slots++;
    slot(position).process.set(identity.substr(identity.find(' ') + 1));
    slot(position).rank = rank + 1;
  }
  ++slot(position).watches;
  ++memory_->watches;
  return position;
}

bool HostBoard::leave(int position) {
  int leader = position + 1;
  if (--slot(position).watches == 0) memory_->leader.compare_exchange_strong(leader, 0);
  return --memory_->watches == 0;
}

int HostBoard::num_ranks() const { return memory_->num_slots; }
int HostBoard::rank(int position) const { return slot(position).rank - 1; }

int HostBoard::find(int rank) const {
  for (int position = 0; position < num_ranks(); ++position) {
    if (slot(position).rank == rank + 1) return position;
  }
  return -1;
}

std::string HostBoard::identity(int position) const {
  return fmt::format("{} {}", this_host(), slot(position).process.get());
}

bool HostBoard::is_watched(int position) const { return slot(position).watches > 0; }

void HostBoard::beat(int position) { ++slot(position).beat; }
int64_t HostBoard::heartbeat(int position) const { return slot(position).beat; }

// The writer fills the text that is not the latest, and then makes it the latest.
void HostBoard::set_activity(int position, const std::string& activity) {
  const std::lock_guard lock(mutex_);
  Slot& own = slot(position);
  const int64_t next = own.num_activities + 1;
  own.activities[next % 2].set(activity);
  own.num_activities = next;
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the next text is filled after this one is the latest
}

std::string HostBoard::activity(int position) const {
  const Slot& other = slot(position);
  for (;;) {
    const int64_t latest = other.num_activities;
    const std::string text = other.activities[latest % 2].get();
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (other.num_activities == latest) return text;  // else the writer may have begun to fill this text again
  }
}

bool HostBoard::lead(int position) {
  int nobody = 0;
  memory_->leader.compare_exchange_strong(nobody, position + 1);
  return memory_->leader == position + 1;
}

bool HostBoard::post_failure(const std::string& message) {
  if (memory_->failure_claimed.exchange(true)) return false;
  memory_->failure.set(message);
  memory_->failure_posted = true;
  return true;
}

std::optional<std::string> HostBoard::failure() const {
  if (!memory_->failure_posted) return std::nullopt;
  return memory_->failure.get();
}

void HostBoard::set_suspicious() { memory_->suspicious = true; }
bool HostBoard::is_suspicious() const { return memory_->suspicious; }

}  // namespace orthant
