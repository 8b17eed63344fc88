#include "comm/transport.h"

namespace orthant {
namespace {

// Several operations under way, as one.
class All : public Pending {
 public:
  explicit All(std::vector<std::unique_ptr<Pending>> parts) : parts_(std::move(parts)) {}
  void wait() override {
    for (auto& part : parts_) part->wait();
  }
  bool done() override {
    bool all = true;
    for (auto& part : parts_) all = part->done() && all;
    return all;
  }
  void cancel() noexcept override {
    for (auto& part : parts_) part->cancel();
  }

 private:
  std::vector<std::unique_ptr<Pending>> parts_;
};

}  // namespace

std::unique_ptr<Pending> Group::exchange(std::span<const Transfer> transfers) {
  std::vector<std::unique_ptr<Pending>> parts;
  for (const Transfer& transfer : transfers) {
    parts.push_back(transfer.receive ? recv(transfer.tensor, transfer.peer, transfer.tag)
                                     : send(transfer.tensor, transfer.peer, transfer.tag));
  }
  return std::make_unique<All>(std::move(parts));
}

}  // namespace orthant
