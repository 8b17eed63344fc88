// The engine on a scripted transport: messages that complete while they are posted, a deadline, and the patience of the
// background thread.
#include "comm/engine.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/clock.h"
#include "base/errors.h"
#include "comm/message_signature.h"
#include "tests/support/says.h"

namespace orthant::engine_test {
namespace {

// A receive completes at once with a message of 12 bytes of Float for a reduce, or never completes. Progress detects
// that a peer is lost if `loses` is set.
class Scripted : public Transport {
 public:
  explicit Scripted(MessageSink& sink) : sink_(sink) {}
  ~Scripted() override { close(event_fd_); }
  std::string name() const override { return "scripted"; }
  void send(Message& message) override { message.ended = true; }
  void receive(Message& message) override {
    if (never_ends) return;
    message.bytes = 12;
    message.signature = MessageSignature{MessageKind::reduce, at::kFloat}.packed();
    message.ended = true;
  }
  bool progress() override {
    if (loses) sink_.on_lost("rank 1 is gone");
    return always_moves;
  }
  bool arm() override { return ++armed > 0; }  // called before a thread sleeps
  int event_fd() const override { return event_fd_; }
  bool flushed() override { return true; }
  int num_connections() const override { return 1; }

  bool never_ends = false, always_moves = false, loses = false;
  std::atomic<int> armed = 0;

 private:
  MessageSink& sink_;
  const int event_fd_ = eventfd(0, EFD_CLOEXEC);
};

Task receive(Engine& engine, MessageSignature signature, int64_t bytes) {
  auto message = std::make_unique<Message>(Message{.peer = 1, .signature = signature.packed(), .bytes = bytes});
  Posted posted = engine.receive(std::move(message));
  co_await posted;
}

// The error of waiting for one message.
std::string error_of(
    MessageSignature signature, int64_t bytes, void (*tell)(Scripted&) = [](Scripted&) {}) {
  const auto make = [&](MessageSink& sink) {
    auto transport = std::make_unique<Scripted>(sink);
    tell(*transport);
    return transport;
  };
  Engine engine(make, {.timeout_s = 0.2});
  const auto job = engine.start(false, [&](Job&) { return receive(engine, signature, bytes); });
  return message_of<CommError>([&] { engine.wait(*job); });
}

// The engine compares kind, dtype and size even if a message completes while it is posted. The first case is the
// control: a matching message gives no error.
TEST(Engine, ChecksMessagesThatCompleteWhilePosted) {
  EXPECT_EQ(error_of({MessageKind::reduce, at::kFloat}, 12), "");
  EXPECT_TRUE(says(error_of({MessageKind::reduce, at::kFloat}, 16), {"rank 1 sent 12 B of Float", "expected 16 B"}));
  EXPECT_TRUE(says(error_of({MessageKind::reduce, at::kInt}, 12), {"rank 1 sent 12 B of Float", "12 B of Int"}));
  EXPECT_TRUE(says(error_of({MessageKind::broadcast, at::kFloat}, 12), {"for a reduce", "for a broadcast"}));
}

// A transport that always reports progress does not suspend the deadline.
TEST(Engine, DeadlineHoldsDuringOtherProgress) {
  const std::string late = error_of({}, 12, [](Scripted& transport) {
    transport.never_ends = true;
    transport.always_moves = true;
  });
  EXPECT_EQ(late, "no progress from the peers within 0.2 s; increase run.timeout_s if a rank may be busy that long");
}

// Whether the engine's background thread takes over from a rank that returns many times within away_s, is then away for
// long, returns once more, and leaves.
struct Relief {
  bool while_patient = false;  // during the long absence; wrong, because the short absences have raised the patience
  bool in_time = false;  // soon after the long absence, which has reset the patience
};
Relief relief_after_a_long_absence() {
  using std::chrono::milliseconds;
  constexpr double kAway_s = 0.02, kAtMost_s = 0.9;
  Scripted* transport = nullptr;
  const auto make = [&](MessageSink& sink) {
    auto made = std::make_unique<Scripted>(sink);
    made->never_ends = true;
    transport = made.get();
    return made;
  };
  Engine engine(make, {.away_s = kAway_s, .away_at_most_s = kAtMost_s});
  const auto job = engine.start(true, [&](Job&) { return receive(engine, {}, 12); });
  for (int i = 0; i < 1000; ++i) engine.progress();
  // Long enough for the timer of away_s to expire and be set again for the raised patience.
  std::this_thread::sleep_for(milliseconds(100));
  const bool while_patient = transport->armed > 0;
  engine.progress();
  const auto left = Clock::now();
  while (transport->armed == 0 && seconds_since(left) < kAtMost_s / 2) std::this_thread::sleep_for(milliseconds(1));
  return {while_patient, transport->armed > 0};
}

// Ranks of a pipeline start several messages in a row and then compute: short absences, and a long one. A busy machine
// can spoil a single trial; a wrong engine fails in all five.
TEST(Engine, IsPatientAfterShortAbsencesAndNotAfterALongOne) {
  bool patient = false, in_time = false;
  for (int i = 0; i < 5 && !(patient && in_time); ++i) {
    const Relief relief = relief_after_a_long_absence();
    patient |= !relief.while_patient;
    in_time |= !relief.while_patient && relief.in_time;
  }
  EXPECT_TRUE(patient) << "it takes over as soon as after one";
  EXPECT_TRUE(in_time) << "it waits as long as before";
}

// The control: the transport of the first engine loses no peer.
TEST(Engine, FindsALostPeerWhileNoMessageIsInProgress) {
  const auto found = [](bool loses) {
    Engine engine(
        [&](MessageSink& sink) {
          auto made = std::make_unique<Scripted>(sink);
          made->loses = loses;
          return made;
        },
        {});
    EXPECT_EQ(engine.lost_peer(), "");
    return engine.find_lost_peer();
  };
  EXPECT_EQ(found(false), "");
  EXPECT_EQ(found(true), "rank 1 is gone");
}

}  // namespace
}  // namespace orthant::engine_test
