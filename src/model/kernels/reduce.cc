#include "model/kernels/reduce.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/reduce.cc"
#include "hwy/foreach_target.h"
#include "model/kernels/simd-inl.h"

#ifndef ORTHANT_REDUCE_ONCE
#define ORTHANT_REDUCE_ONCE
namespace orthant {

template <class T>
struct SumBlocks {
  const T* x;
  int64_t count;
  double* partial;  // one sum of squares per block
};

}  // namespace orthant
#endif

HWY_BEFORE_NAMESPACE();
namespace orthant {
namespace HWY_NAMESPACE {

HWY_INLINE Vec<double> load_f64(const double* from, Full) { return load(from, Full()); }
HWY_INLINE Vec<double> load_f64(const float* from, Full) {
  const Tag<double> f64;
  return hn::PromoteTo(f64, hn::LoadU(hn::Rebind<float, Tag<double>>(), from));
}
template <class T>
HWY_INLINE Vec<double> load_f64(const T* from, Tail tail) {
  HWY_ALIGN T buffer[hn::MaxLanes(Tag<double>())] = {};
  __builtin_memcpy(buffer, from, static_cast<size_t>(tail.count) * sizeof(T));
  return load_f64(buffer, Full());
}

template <class T>
void sum_blocks(const SumBlocks<T>& args, int64_t begin, int64_t end) {
  for (int64_t block = begin; block < end; ++block) {
    const T* x = args.x + block * kNormBlockElements;
    const int64_t count = HWY_MIN(kNormBlockElements, args.count - block * kNormBlockElements);
    args.partial[block] = sum_vectors<double>(count, [=](Vec<double> total, int64_t i, auto part) ORTHANT_BODY {
      const auto value = load_f64(x + i, part);
      return hn::MulAdd(value, value, total);
    });
  }
}

ORTHANT_KERNEL(sum_blocks, SumBlocks, float, f32)
ORTHANT_KERNEL(sum_blocks, SumBlocks, double, f64)

}  // namespace HWY_NAMESPACE
}  // namespace orthant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <vector>

#include "model/kernels/parallel.h"

namespace orthant {

ORTHANT_DISPATCH(sum_blocks, SumBlocks, float, f32)
ORTHANT_DISPATCH(sum_blocks, SumBlocks, double, f64)

namespace {

template <class T>
void add_block_sums(const T* x, int64_t count, ExactSum& sum) {
  std::vector<double> partial(static_cast<size_t>((count + kNormBlockElements - 1) / kNormBlockElements));
  const SumBlocks<T> work{x, count, partial.data()};
  parallel_rows(static_cast<int64_t>(partial.size()), kNormBlockElements,
                [&](int64_t begin, int64_t end) { sum_blocks(work, begin, end); });
  for (const double block : partial) sum.add(block);
}

}  // namespace

void add_squares(const float* x, int64_t count, ExactSum& sum) { add_block_sums(x, count, sum); }
void add_squares(const double* x, int64_t count, ExactSum& sum) { add_block_sums(x, count, sum); }

}  // namespace orthant
#endif  // HWY_ONCE
