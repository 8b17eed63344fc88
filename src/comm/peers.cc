// Posts the messages of one operation on the engine, and counts their bytes.
#include "comm/peers.h"

#include <ATen/ops/empty.h>

namespace orthant {

Posted Peers::post(int peer, std::span<std::byte> memory, bool send, bool more) const {
  MessageSignature signature = signature_;
  signature.more = more;
  auto message = std::make_unique<Message>(Message{.peer = (*ranks_)[static_cast<size_t>(peer)],
                                                   .tag = tag_,
                                                   .signature = signature.packed(),
                                                   .data = memory.data(),
                                                   .bytes = static_cast<int64_t>(memory.size())});
  (send ? job_->moved_bytes.sent : job_->moved_bytes.received) += message->bytes;
  if (!send) return engine_->receive(std::move(message));
  return engine_->send(std::move(message));
}

Posted Peers::send(int to, std::span<const std::byte> memory, bool more) const {
  return post(to, {const_cast<std::byte*>(memory.data()), memory.size()}, true, more);
}

Posted Peers::receive(int from, std::span<std::byte> memory, bool more) const {
  return post(from, memory, false, more);
}

std::byte* Peers::staging(int64_t bytes) const {
  auto memory = std::make_shared<at::Tensor>(at::empty({bytes}, at::kByte));
  job_->staging = memory;
  return reinterpret_cast<std::byte*>(memory->data_ptr());
}

}  // namespace orthant
