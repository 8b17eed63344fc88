// The engine on a transport that does as it is told: what ends while it is posted, and what never stops moving.
#include "comm/engine.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/errors.h"
#include "comm/label.h"
#include "tests/support/says.h"

namespace orthant {
namespace {

// Receives end at once with a message of 12 bytes of Float for a reduce, or never.
class Scripted : public Transport {
 public:
  ~Scripted() override { close(event_fd_); }
  std::string name() const override { return "scripted"; }
  void send(Message& message) override { message.ended = true; }
  void receive(Message& message) override {
    if (never_ends) return;
    message.bytes = 12;
    message.label = Label{MessageKind::reduce, at::kFloat}.packed();
    message.ended = true;
  }
  bool progress() override { return always_moves; }
  bool arm() override { return true; }
  int event_fd() const override { return event_fd_; }
  bool flushed() override { return true; }

  bool never_ends = false, always_moves = false;

 private:
  const int event_fd_ = eventfd(0, EFD_CLOEXEC);
};

Task receive(Engine& engine, Label label, int64_t bytes) {
  auto message = std::make_unique<Message>(Message{.peer = 1, .label = label.packed(), .bytes = bytes});
  Posted posted = engine.receive(std::move(message));
  co_await posted;
}

// The error of waiting for one message.
std::string error_of(Label label, int64_t bytes, void (*tell)(Scripted&) = [](Scripted&) {}) {
  const auto make = [&](MessageSink&) {
    auto transport = std::make_unique<Scripted>();
    tell(*transport);
    return transport;
  };
  Engine engine(make, {.timeout_s = 0.2});
  const auto job = engine.start(false, [&](Job&) { return receive(engine, label, bytes); });
  return message_of<CommError>([&] { engine.wait(*job); });
}

TEST(Engine, ComparesWhatEndsWhileItIsPosted) {
  EXPECT_EQ(error_of({MessageKind::reduce, at::kFloat}, 12), "");
  EXPECT_TRUE(says(error_of({MessageKind::reduce, at::kFloat}, 16), {"rank 1 sent 12 B of Float", "expected 16 B"}));
  EXPECT_TRUE(says(error_of({MessageKind::reduce, at::kInt}, 12), {"rank 1 sent 12 B of Float", "12 B of Int"}));
  EXPECT_TRUE(says(error_of({MessageKind::broadcast, at::kFloat}, 12), {"for a reduce", "for a broadcast"}));
}

TEST(Engine, KeepsItsDeadlineWhileOtherThingsMove) {
  const std::string late = error_of({}, 12, [](Scripted& transport) {
    transport.never_ends = true;
    transport.always_moves = true;
  });
  EXPECT_EQ(late, "Timed out after 0.2 s");
}

}  // namespace
}  // namespace orthant
