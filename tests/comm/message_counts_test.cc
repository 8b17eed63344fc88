// The messages of sums over hundreds of ranks, counted. All ranks run on one thread, over a transport that copies
// messages within the process.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "comm/collectives.h"
#include "comm/engine.h"
#include "tests/comm/line.h"

namespace orthant::message_counts_test {
namespace {

// Messages that wait for their other side, by sender, receiver and tag.
using Waiting = std::map<std::tuple<int, int, uint32_t>, std::deque<Message*>>;
struct Mail {
  Waiting sends, receives;
  std::map<Message*, std::vector<Message*>*> ended;  // the list of the rank that owns the message
};

class Mailbox : public Transport {
 public:
  Mailbox(Mail& mail, int rank, MessageSink& sink) : mail_(mail), rank_(rank), sink_(sink) {}
  ~Mailbox() override { close(event_fd_); }
  std::string name() const override { return "mailbox"; }
  int event_fd() const override { return event_fd_; }
  bool arm() override { return true; }
  bool flushed() override { return true; }
  int num_connections() const override { return static_cast<int>(neighbors_.size()); }

  void send(Message& message) override {
    ++num_sent;
    neighbors_.insert(message.peer);
    post(message, {rank_, message.peer, message.tag}, mail_.sends, mail_.receives);
  }
  void receive(Message& message) override {
    neighbors_.insert(message.peer);
    post(message, {message.peer, rank_, message.tag}, mail_.receives, mail_.sends);
  }
  bool progress() override {
    const auto ended = std::exchange(ended_, {});
    for (Message* message : ended) message->ended = true, sink_.on_ended(*message);
    return !ended.empty();
  }

  int num_sent = 0;

 private:
  void post(Message& message, const Waiting::key_type& key, Waiting& own, Waiting& others) {
    mail_.ended[&message] = &ended_;
    auto& waiting = others[key];
    if (waiting.empty()) return own[key].push_back(&message);
    Message& other = *waiting.front();
    waiting.pop_front();
    const bool is_send = &own == &mail_.sends;
    Message &from = is_send ? message : other, &to = is_send ? other : message;
    ORTHANT_CHECK(from.bytes == to.bytes && from.signature == to.signature, from.bytes, to.bytes);
    if (from.bytes > 0) std::memcpy(to.data, from.data, static_cast<size_t>(from.bytes));
    for (Message* each : {&from, &to}) {
      mail_.ended.at(each)->push_back(each);
      mail_.ended.erase(each);
    }
  }

  Mail& mail_;
  const int rank_;
  MessageSink& sink_;
  const int event_fd_ = eventfd(0, EFD_CLOEXEC);
  std::vector<Message*> ended_;
  std::set<int> neighbors_;
};

using Sum = Task (*)(Peers peers, Bytes memory, int64_t maxima);
struct Counted {
  std::vector<at::Tensor> sums;
  int most_messages = 0, most_neighbors = 0;
};

// Sums one tensor of each rank.
Counted carry_out(Sum sum, std::vector<at::Tensor> tensors) {
  const int n = static_cast<int>(tensors.size());
  Mail mail;
  std::vector<int> ranks;
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<std::shared_ptr<Job>> jobs;
  for (int rank = 0; rank < n; ++rank) {
    ranks.push_back(rank);
    engines.push_back(std::make_unique<Engine>(
        [&](MessageSink& sink) { return std::make_unique<Mailbox>(mail, rank, sink); }, EngineOptions{}));
  }
  for (int rank = 0; rank < n; ++rank) {
    const at::Tensor& tensor = tensors[static_cast<size_t>(rank)];
    const Bytes memory{static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
    Engine& engine = *engines[static_cast<size_t>(rank)];
    jobs.push_back(engine.start(false, [&](Job& job) {
      return sum(Peers(engine, job, ranks, rank, 1, {MessageKind::all_reduce, tensor.scalar_type()}), memory, 0);
    }));
  }
  for (bool done = false; !done;) {
    done = true;
    for (size_t rank = 0; rank < engines.size(); ++rank) {
      engines[rank]->progress();
      done = done && jobs[rank]->done;
    }
  }
  Counted counted{.sums = std::move(tensors)};
  for (size_t rank = 0; rank < engines.size(); ++rank) {
    engines[rank]->wait(*jobs[rank]);  // throws the error of the job, if it has one
    const auto& transport = dynamic_cast<const Mailbox&>(engines[rank]->transport());
    counted.most_messages = std::max(counted.most_messages, transport.num_sent);
    counted.most_neighbors = std::max(counted.most_neighbors, transport.num_connections());
  }
  return counted;
}

// One tensor of each rank, of very different magnitudes.
std::vector<at::Tensor> tensors_of(int n) {
  std::vector<at::Tensor> tensors;
  for (int rank = 0; rank < n; ++rank) {
    const at::Tensor digits = at::remainder(at::arange(40, at::kDouble) * 7 + rank * 13, 101) + 0.1;
    tensors.push_back(digits * std::pow(10.0, rank * 5 % 7 - 3));
  }
  return tensors;
}

TEST(MessageCounts, GrowWithTheLogarithmOfTheRanks) {
  for (const int n : {9, 16, 100, 256, 1024}) {
    const int levels = std::bit_width(static_cast<unsigned>(n - 1));
    const Counted by_tree = carry_out(all_reduce_by_tree, tensors_of(n));
    EXPECT_LE(by_tree.most_messages, 2 * levels) << n;
    EXPECT_LE(by_tree.most_neighbors, 2 * levels) << n;
    if (n > 256) continue;
    // The direct algorithm gives the same bits. It is the negative control of the counts.
    const Counted direct = carry_out(all_reduce, tensors_of(n));
    EXPECT_EQ(direct.most_messages, 2 * (n - 1));
    EXPECT_EQ(direct.most_neighbors, n - 1);
    for (size_t rank = 0; rank < by_tree.sums.size(); ++rank) {
      ASSERT_TRUE(same_bits(by_tree.sums[rank], direct.sums[rank])) << rank << " of " << n;
    }
  }
}

}  // namespace
}  // namespace orthant::message_counts_test
