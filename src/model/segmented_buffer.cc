#include "model/segmented_buffer.h"

#include <ATen/ATen.h>

#include "base/errors.h"

namespace orthant {
namespace {

c10::StorageImpl& storage_of(const at::Tensor& tensor) { return *tensor.storage().unsafeGetStorageImpl(); }

}  // namespace

SegmentedBuffer::SegmentedBuffer(std::vector<std::pair<int64_t, int64_t>> segments, const at::TensorOptions& options,
                                 Begin how)
    : segments_(std::move(segments)) {
  for (const auto& [begin, end] : segments_) {
    if (how == Begin::zeros) {
      tensors_.push_back(at::zeros({end - begin}, options));
      continue;
    }
    tensors_.push_back(at::empty({0}, options));
    tensors_.back().unsafeGetTensorImpl()->set_sizes_contiguous({end - begin});
    free(tensors_.size() - 1);
  }
}

size_t SegmentedBuffer::segment_of(int64_t begin, int64_t count) const {
  for (size_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i].first <= begin && begin + count <= segments_[i].second) return i;
  }
  throw LogicError(fmt::format("no segment has the elements from {} to {}", begin, begin + count));
}

at::Tensor SegmentedBuffer::narrow(int64_t begin, int64_t count) const {
  if (count == 0) return at::empty({0}, tensors_.front().options());
  const size_t segment = segment_of(begin, count);
  return tensors_[segment].narrow(0, begin - segments_[segment].first, count);
}

bool SegmentedBuffer::is_allocated(size_t index) const {
  return tensors_[index].numel() == 0 || storage_of(tensors_[index]).data() != nullptr;
}

void SegmentedBuffer::allocate(size_t index) {
  if (is_allocated(index)) return;
  c10::StorageImpl& storage = storage_of(tensors_[index]);
  storage.set_data_ptr_noswap(storage.allocator()->allocate(storage.nbytes()));
}

void SegmentedBuffer::free(size_t index) {
  if (tensors_[index].numel() == 0) return;
  c10::StorageImpl& storage = storage_of(tensors_[index]);
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, storage.device()));
  storage.set_nbytes(tensors_[index].nbytes());  // libtorch makes no view beyond the size of a storage
}

}  // namespace orthant
