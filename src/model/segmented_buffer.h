// A flat buffer in segments that are allocated and freed independently.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace orthant {

/// Each segment has a storage of its own. A view of a segment stays valid while the storage is freed and allocated
/// again, but must be read and written only while it is there.
class SegmentedBuffer {
 public:
  enum class Begin { zeros, freed };
  /// `segments`: first element and one past the last of each, in any order. A view must lie within one segment.
  SegmentedBuffer(std::vector<std::pair<int64_t, int64_t>> segments, const at::TensorOptions& options, Begin begin);

  /// A view of `count` elements from `begin` on, counted over all segments. An empty view belongs to no segment.
  at::Tensor narrow(int64_t begin, int64_t count) const;
  /// The tensor of one segment, by its position in the constructor's list.
  const at::Tensor& segment(size_t index) const { return tensors_[index]; }
  /// The position of the segment that has the elements. LogicError if there is none.
  size_t segment_of(int64_t begin, int64_t count) const;
  /// Whether the segment's storage is there. A segment without elements always is.
  bool is_allocated(size_t index) const;
  /// Allocates the storage if it is not there. Its contents are undefined.
  void allocate(size_t index);
  /// Frees the storage.
  void free(size_t index);

 private:
  std::vector<std::pair<int64_t, int64_t>> segments_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace orthant
