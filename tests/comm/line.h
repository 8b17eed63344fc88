// Helpers of the comm tests: thread ranks along one data axis over a chosen transport, uneven shards with empty ones
// among them, and integer tensors, whose sums are exact in every order.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "comm/thread_ranks.h"
#include "comm/transport.h"
#include "mesh/layout.h"

namespace orthant {


inline Mesh line(int n) { return Mesh({{"data", n}}); }

/// "staged": the usual transport, with copies of all tensors as for those of GPUs.
inline CommOptions over(const std::string& transport) {
  const bool staged = transport == "staged";
  return {.transport = staged ? "auto" : transport,
          .through_host_memory = staged,
          .timeout_s = 60,
          .connect_timeout_s = 60};
}

/// Runs fn on n thread ranks. "auto" is UCX; in the second run of these tests, where UCX cannot be loaded, it is Gloo.
inline void on_line(int n, const std::function<void(Comm&, int)>& fn, const std::string& transport = "auto") {
  run_ranks(n, [&](Rendezvous rendezvous, int rank) {
    Comm comm(line(n), rank, rendezvous, over(transport));
    fn(comm, rank);
  });
}

/// Whether this machine lacks the transport. Then its tests are skipped with the reason.
inline bool lacks(const std::string& transport) { return transport == "ucx" && !ucx_problem().empty(); }

/// An integer tensor of n elements that differs between ranks.
inline at::Tensor numbers(int rank, int64_t n, at::ScalarType type) {
  const at::Tensor whole = (at::arange(n, at::kLong) * 7 + rank * 3) % 5 - 2;
  if (c10::isComplexType(type)) return at::complex(whole.to(at::kDouble), whole.to(at::kDouble) + rank).to(type);
  return whole.to(type);
}

/// Elements per rank, as even as possible.
inline std::vector<int64_t> balanced(int64_t size, int n) {
  std::vector<int64_t> counts;
  for (int i = 0; i < n; ++i) counts.push_back(shard(size, n, i).size());
  return counts;
}

/// Elements per position: every third position has none, the others have increasing numbers.
inline std::vector<int64_t> lumpy(int64_t size, int n) {
  std::vector<int64_t> counts;
  int64_t weights = 0, left = size;
  const auto weight = [](int i) { return int64_t{i % 3 == 1 ? 0 : i + 1}; };
  for (int i = 0; i < n; ++i) weights += weight(i);
  for (int i = 0; i < n; ++i) {
    counts.push_back(size * weight(i) / weights);
    left -= counts.back();
  }
  counts[0] += left;
  return counts;
}

inline int64_t before(const std::vector<int64_t>& counts, int position) {
  int64_t sum = 0;
  for (int i = 0; i < position; ++i) sum += counts[static_cast<size_t>(i)];
  return sum;
}

/// The chunk of one position.
inline at::Tensor chunk(const at::Tensor& tensor, const std::vector<int64_t>& counts, int position) {
  return tensor.narrow(0, before(counts, position), counts[static_cast<size_t>(position)]);
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && at::equal(a.view(at::kByte), b.view(at::kByte));
}

}  // namespace orthant
