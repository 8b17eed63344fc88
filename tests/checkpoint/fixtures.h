// What the tests of this room share: a directory of their own, small tensors, and the message of an expected error.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "base/errors.h"
#include "checkpoint/safetensors.h"

namespace orthant {

/// A fresh directory, removed at the end. In memory where that is possible: these tests sync thousands of files.
struct TempDir {
  std::filesystem::path path;
  explicit TempDir(bool on_disk = false) {
    const bool in_memory = !on_disk && ::access("/dev/shm", W_OK) == 0;
    const std::filesystem::path parent = in_memory ? "/dev/shm" : std::filesystem::temp_directory_path();
    std::string name = (parent / "orthant_checkpoint_XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() { std::filesystem::remove_all(path); }
  std::string operator/(const std::string& name) const { return path / name; }
};

inline std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void spill(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

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

/// No file of this process may grow beyond a limit while this lives: what a disk that is full at that byte looks like.
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

/// The message of the Error that `function` throws; fails the test when it throws none or another one.
template <typename Error, typename Function>
std::string message_of(Function&& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no error";
  return "";
}

/// The message holds all of these pieces.
inline void expect_pieces(const std::string& message, std::initializer_list<std::string> pieces) {
  for (const std::string& piece : pieces)
    EXPECT_NE(message.find(piece), std::string::npos) << piece << "\n in: " << message;
}

}  // namespace orthant
