// Collects the tensors of a checkpoint on the ranks that write them: each rank sends its parts straight to the writers,
// from the buffers that hold them. No rank holds more than the tensors of a round.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "plan/save_plan.h"
#include "runtime/session.h"

namespace orthant {

/// A tensor that this rank writes, on the CPU and contiguous.
struct CollectedTensor {
  const SavedFile* file = nullptr;
  const SavedTensor* tensor = nullptr;
  at::Tensor content;
};

class PartCollector {
 public:
  /// All must outlive it. With `copies`, collected tensors share no memory with the session, so that training may go
  /// on. Without, a tensor that this rank has alone is a view of the session's own.
  PartCollector(const Plan& plan, const SavePlan& files, Session& session, bool copies);

  /// Returns the tensors of this round that this rank writes, in the order of the files. All ranks must call it
  /// together, with the rounds in order.
  std::vector<CollectedTensor> collect(int round);
  at::ScalarType dtype_of_parts(const SavedTensor& tensor) const;

 private:
  struct Arrival;
  at::Device device_of_parts(const SavedTensor& tensor) const;
  at::Tensor own_part(SavedKind kind, size_t state, size_t parameter) const;
  void send(const SavedFile& file, const SavedTensor& tensor);
  at::Tensor receive(const SavedTensor& tensor, std::vector<Arrival>& arrivals);
  void receive_parameter(const SavedTensor& tensor, size_t parameter, const at::Tensor& target,
                         std::vector<Arrival>& arrivals);
  void exchange();

  const Plan& plan_;
  const SavePlan& files_;
  Session& session_;
  const bool copies_;
  const SaveRoutes routes_;
  std::vector<Transfer> on_host_, on_device_;  // messages of the round
};

}  // namespace orthant
