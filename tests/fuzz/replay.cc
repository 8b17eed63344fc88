// Calls a target once with each file of a folder, as an ordinary program: fuzz_TARGET FOLDER. Exits with 1 at the first
// file that breaks a law, and if the folder has no file.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <typeinfo>
#include <vector>

#include "tests/fuzz/hostile.h"

int main(int count, char** arguments) {
  namespace fs = std::filesystem;
  if (count != 2 || !fs::is_directory(arguments[1])) {
    std::fprintf(stderr, "usage: %s FOLDER\n", arguments[0]);
    return 2;
  }
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(arguments[1])) {
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  double slowest_s = 0;
  std::string slowest;
  for (const std::string& file : files) {
    const std::string bytes = orthant::slurp(file);
    const auto begin = std::chrono::steady_clock::now();
    try {
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s: the target threw %s: %s\n", file.c_str(), typeid(error).name(), error.what());
      return 1;
    }
    const double taken_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (taken_s > slowest_s) slowest_s = taken_s, slowest = file;
  }
  std::printf("%zu files; the slowest took %.3f s: %s\n", files.size(), slowest_s, slowest.c_str());
  return files.empty() ? 1 : 0;
}
