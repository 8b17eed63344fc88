// Sums of squares in fixed point. Integer additions give the same sum in every order, so atomic additions do not make
// the bits depend on the order of the threads.
#include "model/kernels/cuda/device-inl.cuh"
#include "model/kernels/cuda/kernels.h"

namespace orthant::cuda_kernels {
namespace {

constexpr int kBlock = 256, kBits = ExactSum::kBits, kLowest = ExactSum::kLowest;

using Word = unsigned long long;

// Adds a number from 0 to 2^320 to the digits, as ExactSum::add() does.
__device__ inline void add_to_digits(double value, Word* digits, Word* above_range) {
  if (!(value < ldexp(1.0, -kLowest))) {
    atomicAdd(above_range, Word{1});
    return;
  }
  int exponent = 0;
  const double fraction = frexp(value, &exponent);
  auto mantissa = static_cast<Word>(ldexp(fraction, 53));
  int position = exponent - 53 - kLowest;
  if (position < 0) {
    mantissa = position <= -53 ? 0 : mantissa >> -position;
    position = 0;
  }
  const int shift = position % kBits;
  const Word low = (mantissa & 0xffffffffu) << shift, high = (mantissa >> 32) << shift;
  const Word parts[3] = {low & 0xffffffffu, (low >> 32) + (high & 0xffffffffu), high >> 32};
  for (int i = 0; i < 3; ++i) {
    if (parts[i] != 0) atomicAdd(digits + position / kBits + i, parts[i]);
  }
}

// A warp sums one block of elements.
template <class T>
__global__ void add_squares_of_blocks(const T* x, int64_t count, int64_t blocks, Word* digits, Word* above_range) {
  __shared__ Word own[ExactSum::kDigits], own_above;
  if (threadIdx.x < ExactSum::kDigits) own[threadIdx.x] = 0;
  if (threadIdx.x == 0) own_above = 0;
  __syncthreads();
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (kBlock / kWarp);
  for (int64_t block = static_cast<int64_t>(blockIdx.x) * (kBlock / kWarp) + threadIdx.x / kWarp; block < blocks;
       block += warps) {
    const int64_t begin = block * kNormBlockElements;
    const int64_t end = begin + kNormBlockElements < count ? begin + kNormBlockElements : count;
    double sum = 0;
    for (int64_t i = begin + threadIdx.x % kWarp; i < end; i += kWarp) {
      const auto value = static_cast<double>(x[i]);
      sum = fma(value, value, sum);
    }
    for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % kWarp == 0) add_to_digits(sum, own, &own_above);
  }
  __syncthreads();
  if (threadIdx.x < ExactSum::kDigits && own[threadIdx.x] != 0) atomicAdd(digits + threadIdx.x, own[threadIdx.x]);
  if (threadIdx.x == 0 && own_above != 0) atomicAdd(above_range, own_above);
}

__global__ void write_numbers_of(const int64_t* digits, const int64_t* above_range, double* numbers) {
  int64_t carried[ExactSum::kDigits];
  for (int i = 0; i < ExactSum::kDigits; ++i) carried[i] = digits[i];
  const bool is_above = ExactSum::carry(carried) || *above_range > 0;
  for (int i = 0; i < ExactSum::kDigits; ++i) numbers[i] = static_cast<double>(carried[i]);
  numbers[ExactSum::kDigits] = is_above ? std::numeric_limits<double>::infinity() : 0;
}

__global__ void decide(UpdateDecision args) {
  *args.gradient_scale = gradient_scale_of(args, *args.loss, sqrt(ExactSum::value_of(args.squares)));
}

}  // namespace

void write_numbers(const int64_t* digits, const int64_t* above_range, double* numbers, Stream stream) {
  write_numbers_of<<<1, 1, 0, stream>>>(digits, above_range, numbers);
  check_launch("write_numbers");
}

void decide_update(const UpdateDecision& args, Stream stream) {
  decide<<<1, 1, 0, stream>>>(args);
  check_launch("decide_update");
}

template <class T>
void add_squares(const T* x, int64_t count, int64_t* digits, int64_t* above_range, Stream stream) {
  const int64_t blocks = (count + kNormBlockElements - 1) / kNormBlockElements;
  if (blocks == 0) return;
  const unsigned grid = std::min(blocks_for(blocks, kBlock / kWarp), 1024u);
  add_squares_of_blocks<<<grid, kBlock, 0, stream>>>(x, count, blocks, reinterpret_cast<Word*>(digits),
                                                     reinterpret_cast<Word*>(above_range));
  check_launch("add_squares");
}

template void add_squares(const float*, int64_t, int64_t*, int64_t*, Stream);
template void add_squares(const double*, int64_t, int64_t*, int64_t*, Stream);

}  // namespace orthant::cuda_kernels
