// Helpers of the checkpoint tests: small tensors that own their bytes, a simulated full disk, and checks of messages.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/errors.h"
#include "checkpoint/safetensors.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant {

inline std::vector<std::byte> random_bytes(std::size_t count, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator());
  return bytes;
}

/// Tensors that own their bytes.
struct Tensors {
  std::vector<std::vector<std::byte>> storage;
  std::vector<TensorBytes> views;
  void add(const std::string& name, Dtype dtype, std::vector<int64_t> shape, uint64_t seed = 1) {
    int64_t bits = dtype_bits(dtype);
    for (const int64_t size : shape) bits *= size;
    storage.push_back(random_bytes(static_cast<std::size_t>(bits / 8), seed));
    views.push_back({.name = name, .dtype = dtype, .shape = std::move(shape), .bytes = storage.back()});
  }
};

inline bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

/// While this object lives, no file of this process can grow beyond the limit. It simulates a disk that fills up at
/// this byte.
struct FileSizeLimit {
  rlimit before{};
  explicit FileSizeLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before);
    rlimit limit = before;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before); }
};

/// Expects that the message contains all of these pieces.
inline void expect_pieces(const std::string& message, const std::vector<std::string>& pieces) {
  EXPECT_TRUE(says(message, pieces));
}

}  // namespace orthant
