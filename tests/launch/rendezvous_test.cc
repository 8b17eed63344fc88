// Rendezvous of ranks: ports, addresses, files, and ranks that were started for different runs.
#include "launch/rendezvous.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "base/errors.h"
#include "comm/thread_ranks.h"
#include "launch/process.h"
#include "launch/watch.h"
#include "tests/support/says.h"

namespace orthant::rendezvous_test {
namespace {

TEST(Rendezvous, APortInUse) {
  const Store holder = Store::serve(0, 5);
  const Launch launch{.launcher = "environment",
                      .rank = 0,
                      .world_size = 2,
                      .local_size = 2,
                      .address = "127.0.0.1",
                      .port = holder.port()};
  EXPECT_TRUE(says(message_of<Error>([&] { (void)connect(launch, 5); }),
                   {fmt::format("port {} of this machine is in use", holder.port()), "MASTER_PORT"}));
}

Launch on_port(int port, int rank) {
  return {.launcher = "environment",
          .rank = rank,
          .world_size = 2,
          .local_rank = rank,
          .local_size = 2,
          .address = "localhost",
          .port = port};
}

TEST(Rendezvous, AnotherRunOnThePort) {
  const int port = Store::serve(0, 5).port();
  std::thread other([&] { connect(on_port(port, 1), 20, "seed = 7"); });
  const Rendezvous first = connect(on_port(port, 0), 20, "seed = 7");
  other.join();
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(says(
        message_of<CommError>([&] { (void)connect(on_port(port, rank), 20, "seed = 7"); }),
        {fmt::format("rank {}: another run already uses localhost:{}", rank, port), "Choose another MASTER_PORT"}));
  }
}

// A program that accepts connections and sends nothing, as the port of a debugger does.
TEST(Rendezvous, AProgramThatAcceptsAndIsSilent) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(fd, 8), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const int port = ntohs(address.sin_port);
  EXPECT_TRUE(says(message_of<CommError>([&] { (void)connect(on_port(port, 1), 0.3); }),
                   {fmt::format("no store answered at 127.0.0.1:{}", port),
                    "connections are accepted there, but no store answers"}));
  EXPECT_TRUE(says(message_of<CommError>([&] { (void)connect(on_port(port, 0), 0.3); }), {"in use", "MASTER_PORT"}));
  close(fd);
}

TEST(Rendezvous, NobodyAnswers) {
  const int free_port = Store::serve(0, 5).port();  // closed again
  const Launch launch{.launcher = "environment",
                      .rank = 1,
                      .world_size = 2,
                      .local_rank = 1,
                      .local_size = 2,
                      .address = "127.0.0.1",
                      .port = free_port};
  EXPECT_TRUE(says(message_of<Error>([&] { (void)connect(launch, 0.3); }),
                   {fmt::format("no store answered at 127.0.0.1:{}", free_port), "MASTER_ADDR"}));
}

TEST(Rendezvous, AHostThatDoesNotExist) {
  const Launch launch{.launcher = "environment",
                      .rank = 1,
                      .world_size = 2,
                      .address = "no-such-host.invalid",
                      .port = 29500};
  EXPECT_TRUE(says(message_of<Error>([&] { (void)connect(launch, 0.3); }),
                   {"no store answered at no-such-host.invalid:29500"}));
}

TEST(Rendezvous, AnInterfaceThatDoesNotExist) {
  const Launch launch{.launcher = "environment",
                      .rank = 0,
                      .world_size = 2,
                      .local_size = 2,
                      .address = "127.0.0.1",
                      .port = 29500,
                      .interface_name = "nosuch0"};
  EXPECT_TRUE(says(message_of<Error>([&] { (void)connect(launch, 1); }), {"GLOO_SOCKET_IFNAME = nosuch0"}));
}

TEST(Rendezvous, InAFileAndAtRankZero) {
  const Store probe = Store::serve(0, 5);
  for (const StoreKind store_kind : {StoreKind::kFile, StoreKind::kServedByRankZero}) {
    const auto path = std::filesystem::temp_directory_path() / fmt::format("orthant-test-{}.store", getpid());
    const int port = store_kind == StoreKind::kFile ? 0 : Store::serve(0, 5).port();
    std::atomic<int> met = 0;
    const auto run = [&](int rank) {
      const Launch launch{.launcher = "test",
                          .rank = rank,
                          .world_size = 2,
                          .local_rank = rank,
                          .local_size = 2,
                          .store_kind = store_kind,
                          .address = "127.0.0.1",
                          .port = port,
                          .path = path.string()};
      const Rendezvous rendezvous = connect(launch, 20);
      EXPECT_EQ(rendezvous.address, "127.0.0.1");
      EXPECT_EQ(rendezvous.serves, store_kind == StoreKind::kServedByRankZero && rank == 0);
      check_agreement(rendezvous, "seed = 7");
      rendezvous.store.set(fmt::format("met/{}", rank), "");
      (void)rendezvous.store.get(fmt::format("met/{}", 1 - rank), 20);
      rendezvous.store.add("gone", 1);
      while (rank == 0 && rendezvous.store.add("gone", 0) < 2) std::this_thread::yield();
      ++met;
    };
    std::thread other(run, 1);
    run(0);
    other.join();
    EXPECT_EQ(met, 2);
    std::filesystem::remove(path);
  }
}

Launch in_file(const std::string& path, int rank) {
  return {.launcher = "test",
          .rank = rank,
          .world_size = 2,
          .local_rank = rank,
          .local_size = 2,
          .store_kind = StoreKind::kFile,
          .path = path};
}

// The names of the files that remain in the folder of a rendezvous.
std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

class StoreFile : public testing::Test {
 protected:
  StoreFile() : umask_(umask(077)) { std::filesystem::create_directory(folder_); }
  ~StoreFile() override {
    umask(umask_);
    std::filesystem::remove_all(folder_);
  }

  // Expects that both ranks refuse to connect for this reason, at once and without a new file.
  void expect_refused(const std::string& reason) {
    const auto before = names_in(folder_);
    for (const int rank : {0, 1}) {
      EXPECT_TRUE(says(message_of<CommError>([&] { (void)connect(in_file(path_, rank), 20); }),
                       {"cannot connect through the file " + path_, reason, "remove it, set TMPDIR"}));
    }
    EXPECT_EQ(names_in(folder_), before);
  }

  const mode_t umask_;
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / fmt::format("orthant-rendezvous-{}", getpid());
  const std::string path_ = (folder_ / "run.store").string();
};

TEST_F(StoreFile, LeftoversAreIgnored) {
  std::string dead = process_identity();  // the same pid with another start time
  dead.back() = dead.back() == '1' ? '2' : '1';
  for (const bool is_store : {true, false}) {
    if (is_store) {
      const Store left = Store::file(path_);
      std::ofstream(path_ + ".host") << dead;
      ASSERT_TRUE(post_failure(left.under(run_prefix("")), "rank 1: disk full"));
    } else {
      std::ofstream(path_) << std::string(100, '\xff');
    }
    std::atomic<int> first = 0;
    std::thread other([&] { first += post_failure(connect(in_file(path_, 1), 20).store, "a failure of today"); });
    first += post_failure(connect(in_file(path_, 0), 20).store, "a failure of today");
    other.join();
    EXPECT_EQ(first, 1);  // exactly one rank reports the failure
    EXPECT_EQ(names_in(folder_), std::vector<std::string>{});
  }
}

TEST_F(StoreFile, MissingRanksLeaveNoFile) {
  EXPECT_TRUE(says(message_of<Error>([&] { (void)connect(in_file(path_, 0), 0.1); }),
                   {"only 1 of 2 ranks opened", path_}));
  EXPECT_EQ(names_in(folder_), std::vector<std::string>{});
  EXPECT_TRUE(
      says(message_of<Error>([&] { (void)connect(in_file(path_, 1), 0.1); }), {"rank 0 did not create", path_}));
  EXPECT_EQ(names_in(folder_), std::vector<std::string>{});
}

// A program of another user that knows the name of the file could plant one there, to read or change what ranks
// exchange.
TEST_F(StoreFile, FileOfAnotherUserIsRefused) {
  for (const std::string& planted : {path_, path_ + ".host"}) {
    std::ofstream(path_ + ".host") << process_identity();
    std::ofstream(path_) << "";
    if (chown(planted.c_str(), 12345, getgid()) != 0) GTEST_SKIP() << "only root can give a file to another user";
    expect_refused("it belongs to the user with id 12345");
    std::filesystem::remove(path_);
    std::filesystem::remove(path_ + ".host");
  }
}

TEST_F(StoreFile, FileThatOthersCanWriteIsRefused) {
  std::ofstream(path_ + ".host") << process_identity();
  std::ofstream(path_) << "";
  chmod(path_.c_str(), 0666);
  expect_refused("its permissions are 0666 and must be at most 0644");
}

TEST_F(StoreFile, SymbolicLinkIsNotFollowed) {
  const std::string target = (folder_ / "target").string();
  for (const char* suffix : {"", ".host"}) {
    std::ofstream(path_ + ".host") << process_identity();
    std::ofstream(target) << process_identity();
    std::filesystem::remove(path_ + suffix);
    std::filesystem::create_symlink(target, path_ + suffix);
    expect_refused("it is a symbolic link");
    EXPECT_EQ(std::filesystem::file_size(target), process_identity().size());
    std::filesystem::remove(path_ + suffix);
  }
}

TEST_F(StoreFile, PipeIsRefused) {
  ASSERT_EQ(mkfifo((path_ + ".host").c_str(), 0600), 0);
  const auto refusal = [&](int rank) {
    return message_of<CommError>([&] { (void)connect(in_file(path_, rank), 20); });
  };
  EXPECT_TRUE(says(refusal(0), {"it is not a regular file"}));
  EXPECT_TRUE(says(refusal(1), {"it is not a regular file"}));
}

TEST_F(StoreFile, AFolderThatDoesNotExist) {
  EXPECT_TRUE(says(message_of<Error>([&] { (void)connect(in_file((folder_ / "none/run").string(), 0), 0.1); }),
                   {"cannot connect through the file", "No such file", "TMPDIR"}));
}

TEST(Rendezvous, DifferencesBetweenRunsAreReported) {
  const std::string text = "seed = 7\nsteps = 300\n";
  run_ranks(3, [&](Rendezvous rendezvous, int) { check_agreement(rendezvous, text); });
  std::mutex mutex;
  std::vector<std::string> messages;
  run_ranks(3, [&](Rendezvous rendezvous, int rank) {
    const std::string message =
        message_of<Error>([&] { check_agreement(rendezvous, rank == 2 ? "seed = 7\nsteps = 301\n" : text); });
    const std::lock_guard lock(mutex);
    messages.push_back(message);
  });
  for (const auto& message : messages) {
    EXPECT_TRUE(says(message, {"started for different runs", "`steps = 300` on rank 0, but `steps = 301` on rank 2"}));
  }
}

TEST(Rendezvous, WorldSizesThatDiffer) {
  run_ranks(2, [&](Rendezvous rendezvous, int rank) {
    if (rank == 1) rendezvous.world_size = 4;
    EXPECT_TRUE(says(message_of<Error>([&] { check_agreement(rendezvous, "x"); }),
                     {"`world size 2` on rank 0, but `world size 4` on rank 1"}));
  });
}

TEST(Rendezvous, ARankThatDoesNotComeIsNamed) {
  run_ranks(2, [&](Rendezvous rendezvous, int rank) {
    if (rank == 1) return;
    EXPECT_TRUE(says(message_of<Error>([&] { check_agreement(rendezvous, "x", 0.2); }),
                     {"rank 0: rank 1 of 2 did not connect"}));
  });
}

}  // namespace
}  // namespace orthant::rendezvous_test
