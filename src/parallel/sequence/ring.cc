#include "parallel/sequence/ring.h"

#include <ATen/ATen.h>

#include <array>

#include "base/errors.h"

namespace orthant {
namespace {

// Added to a ring's tag for sums, which travel between the same ranks at the same time as blocks.
constexpr int kSums = 1;

Work pass_on(const RingChannel& channel, const Ring& ring, const at::Tensor& leaving, const at::Tensor& arriving,
             int tag) {
  const int next = ring.members[static_cast<size_t>(ring.source(-1))];
  const int previous = ring.members[static_cast<size_t>(ring.source(1))];
  return channel.comm.exchange(std::array<Transfer, 2>{{{leaving, next, false, tag}, {arriving, previous, true, tag}}},
                               channel.axes);
}

}  // namespace

void visit_blocks(const RingChannel& channel, const Ring& ring, at::Tensor own, const AllocateBlock& buffer,
                  const std::function<void(int, at::Tensor)>& work) {
  at::Tensor block = std::move(own);  // freed once it is sent, unless the caller keeps it
  for (int step = 0; step < ring.size(); ++step) {
    at::Tensor arriving;
    Work under_way;
    if (step + 1 < ring.size()) {
      arriving = buffer(ring.source(step + 1));
      under_way = pass_on(channel, ring, block, arriving, channel.tag);
    }
    if (!arriving.defined()) return work(ring.source(step), std::move(block));
    work(ring.source(step), block);
    under_way.wait();
    block = std::move(arriving);
  }
}

at::Tensor sum_over_blocks(const RingChannel& channel, const Ring& ring, at::Tensor own, const AllocateBlock& buffer,
                           const AllocateBlock& sum_buffer, const std::function<at::Tensor(int, at::Tensor)>& work,
                           const std::function<void(at::Tensor)>& rest) {
  at::Tensor own_partial_sum, arriving;  // arriving: the sum of the members before for the present block
  Work under_way;
  int step = 0;
  visit_blocks(channel, ring, std::move(own), buffer, [&](int source, at::Tensor block) {
    at::Tensor partial_sum = work(source, std::move(block));
    if (step++ == 0) {
      own_partial_sum = partial_sum;
      return;
    }
    under_way.wait();
    at::Tensor sum = arriving;
    if (!sum.defined()) {
      sum = partial_sum.defined() ? partial_sum : sum_buffer(source).zero_();
    } else if (partial_sum.defined()) {
      sum.add_(partial_sum);
    }
    arriving = sum_buffer(ring.source(step));  // after the last step, of this rank's own block
    under_way = pass_on(channel, ring, sum, arriving, channel.tag + kSums);
  });
  if (rest && own_partial_sum.defined()) rest(own_partial_sum);
  under_way.wait();
  if (!arriving.defined()) return own_partial_sum.defined() ? own_partial_sum : sum_buffer(ring.index).zero_();
  return own_partial_sum.defined() ? arriving.add_(own_partial_sum) : arriving;
}

}  // namespace orthant
