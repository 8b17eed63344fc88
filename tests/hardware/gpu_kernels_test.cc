// Times of the products, cuDNN attentions and memory kernels that benchmarks/gpu/kernels.py measured on one H100 and on
// one H200, against the shipped profiles. Controls: profiles with one wrong value.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/errors.h"
#include "hardware/times.h"

namespace orthant::gpu_kernels_test {
namespace {

struct Kernel {
  std::string kind;                          // matmul, sdp_fwd, sdp_bwd, memory
  std::map<std::string, std::string> shape;  // the key and value of each part of the column `shape`
  double seconds;

  int64_t size(const std::string& key) const { return std::stoll(shape.at(key)); }
};

std::vector<Kernel> read_kernels(const std::string& device, const std::string& kind) {
  std::ifstream file(std::string(ORTHANT_SOURCE_DIR) + "/benchmarks/gpu/" + device + "-kernels.csv");
  ORTHANT_CHECK(file.good(), device);
  std::vector<Kernel> kernels;
  for (std::string line; std::getline(file, line);) {
    std::istringstream columns(line);
    std::string found, shape, share, seconds;
    std::getline(columns, found, ','), std::getline(columns, shape, ',');
    std::getline(columns, share, ','), std::getline(columns, seconds, ',');
    if (!found.starts_with(kind)) continue;
    Kernel kernel{.kind = found, .shape = {}, .seconds = std::stod(seconds)};
    std::istringstream parts(shape);
    for (std::string part; std::getline(parts, part, ';');) {
      kernel.shape[part.substr(0, part.find('='))] = part.substr(part.find('=') + 1);
    }
    kernels.push_back(kernel);
  }
  return kernels;
}

double planned_seconds(const Hardware& hardware, const Kernel& kernel) {
  if (kernel.kind == "memory") return kernel_seconds(hardware, static_cast<double>(kernel.size("bytes")));
  if (kernel.kind == "matmul") {
    const std::string layout = kernel.shape.at("layout");
    const ProductKind kind = layout == "TN"   ? ProductKind::forward
                             : layout == "NN" ? ProductKind::input_gradient
                                              : ProductKind::weight_gradient_float32;
    return product_seconds(hardware, kind, kernel.size("m"), kernel.size("k"), kernel.size("n"), "bfloat16");
  }
  const int64_t tokens = kernel.size("seq_len");
  return attention_seconds(hardware, kernel.kind == "sdp_bwd",
                           {.sequences = kernel.size("batch"),
                            .query_tokens = tokens,
                            .key_tokens = tokens,
                            .heads = kernel.size("head_num"),
                            .kv_heads = kernel.size("kv_head_num"),
                            .qk_head_dim = kernel.size("qk_head_dim"),
                            .v_head_dim = kernel.size("v_head_dim"),
                            .visible_share = 0.5},
                           "bfloat16");
}

// Returns the mean of |planned / measured - 1|.
double mean_error(const Hardware& hardware, const std::vector<Kernel>& kernels) {
  double sum = 0;
  for (const Kernel& kernel : kernels) sum += std::abs(planned_seconds(hardware, kernel) / kernel.seconds - 1);
  return sum / static_cast<double>(kernels.size());
}

struct Bound {
  std::string device, kind;
  size_t count;
  double mean_error;
};
const Bound kBounds[] = {{"h100", "matmul", 420, 0.056}, {"h100", "sdp", 58, 0.08}, {"h100", "memory", 46, 0.10},
                         {"h200", "matmul", 360, 0.054}, {"h200", "sdp", 58, 0.07}, {"h200", "memory", 46, 0.17}};

TEST(GpuKernels, AgreeWithTheProfiles) {
  for (const Bound& bound : kBounds) {
    const std::vector<Kernel> kernels = read_kernels(bound.device, bound.kind);
    EXPECT_EQ(kernels.size(), bound.count);
    EXPECT_LT(mean_error(load_hardware(bound.device), kernels), bound.mean_error) << bound.device << bound.kind;
  }
}

TEST(GpuKernels, WrongProfilesExceedTheBounds) {
  const std::map<std::string, std::function<void(Hardware&)>> wrong = {
      {"matmul", [](Hardware& hardware) { hardware.products.sustained_share = 1; }},
      {"sdp", [](Hardware& hardware) { hardware.attention.forward.narrow_head_share = 1; }},
      {"memory", [](Hardware& hardware) { hardware.memory.latency_seconds = 30e-6; }}};
  for (const Bound& bound : kBounds) {
    Hardware hardware = load_hardware(bound.device);
    wrong.at(bound.kind)(hardware);
    EXPECT_GT(mean_error(hardware, read_kernels(bound.device, bound.kind)), bound.mean_error)
        << bound.device << bound.kind;
  }
}

}  // namespace
}  // namespace orthant::gpu_kernels_test
