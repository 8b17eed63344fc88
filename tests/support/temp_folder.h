// A temporary folder that is removed after its test, and files in it.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

namespace orthant {

/// Lies in memory (/dev/shm) if possible and if on_disk is false, because some tests sync thousands of files.
class TempFolder {
 public:
  explicit TempFolder(bool on_disk = false) {
    const bool in_memory = !on_disk && ::access("/dev/shm", W_OK) == 0;
    const std::filesystem::path parent = in_memory ? "/dev/shm" : std::filesystem::temp_directory_path();
    path_ = (parent / "orthant-test-XXXXXX").string();
    if (!::mkdtemp(path_.data())) throw std::runtime_error("mkdtemp");
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  std::string write(const std::string& name, std::string_view content) const {
    std::filesystem::remove(*this / name);  // Truncating a file instead makes ext4 write it to the disk at once.
    std::ofstream(*this / name, std::ios::binary) << content;
    return *this / name;
  }

 private:
  std::string path_;
};

/// Returns the content of a file.
inline std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Writes the text to a file.
inline void spill(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

}  // namespace orthant
