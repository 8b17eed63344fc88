#include "data/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/program.h"

namespace orthant {

namespace {

constexpr size_t kReadBytes = 1 << 18, kLongestLine = 1 << 16;
constexpr size_t kLongestDocument = 64 << 20;

/// The bytes of a file, decompressed by gzip -dc if they begin with gzip's magic number.
class TextReader {
 public:
  explicit TextReader(const std::string& path) : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (file_ < 0) throw ConfigError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
    unsigned char magic[2] = {};
    if (::pread(file_, magic, 2, 0) == 2 && magic[0] == 0x1f && magic[1] == 0x8b) unzip();
  }
  ~TextReader() {
    if (file_ >= 0) ::close(file_);
    if (gzip_ > 0) wait_for_program(gzip_);
  }
  TextReader(const TextReader&) = delete;
  TextReader& operator=(const TextReader&) = delete;

  /// Reads up to `bytes` bytes; returns their number, 0 at the end of the text.
  size_t read(char* buffer, size_t bytes) {
    ssize_t got;
    do got = ::read(file_, buffer, bytes);
    while (got < 0 && errno == EINTR);
    if (got < 0) throw DataError(fmt::format("{}: offset {}: {}", path_, done_, std::strerror(errno)));
    done_ += got;
    if (got == 0 && gzip_ > 0) {
      const int code = wait_for_program(std::exchange(gzip_, 0));
      if (code != 0 && code != 2)  // gzip warns with 2 if other data follows the compressed text
        throw DataError(
            fmt::format("{}: damaged gzip file after {} bytes of text: {}", path_, done_, trim(errors_.content())));
    }
    return static_cast<size_t>(got);
  }

 private:
  void unzip() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw DataError(fmt::format("{}: cannot open a pipe to gzip: {}", path_, std::strerror(errno)));
    const int compressed = std::exchange(file_, ends[0]);
    try {
      gzip_ = start_program({"gzip", "-dc"}, compressed, ends[1], errors_.descriptor(), "",
                            "install it: apt-get install gzip");
    } catch (...) {
      ::close(compressed), ::close(ends[0]), ::close(ends[1]);
      throw;
    }
    ::close(compressed), ::close(ends[1]);
  }

  std::string path_;
  int file_;
  int gzip_ = 0;
  MemoryFile errors_;
  int64_t done_ = 0;
};

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos; }
bool is_separator(std::string_view line) { return line.size() < 64 && trim(line) == "<|endoftext|>"; }

/// The position at which to split text: at `at`, or up to three bytes before, so that no UTF-8 character is split.
size_t character_boundary(std::string_view text, size_t at) {
  size_t end = at;
  while (end > at - 3 && (static_cast<uint8_t>(text[end]) & 0xc0) == 0x80) --end;
  return (static_cast<uint8_t>(text[end]) & 0xc0) == 0x80 ? at : end;
}

}  // namespace

void for_each_line(const std::string& path, const std::function<void(std::string_view)>& line) {
  TextReader reader(path);
  std::vector<char> buffer(kReadBytes);
  std::string open_line;
  while (const size_t got = reader.read(buffer.data(), buffer.size())) {
    open_line.append(buffer.data(), got);
    std::string_view rest = open_line;
    while (!rest.empty()) {
      const size_t newline = rest.find('\n');
      size_t length = newline == std::string_view::npos ? rest.size() : newline + 1;
      if (length > kLongestLine)
        length = character_boundary(rest, kLongestLine);
      else if (newline == std::string_view::npos)
        break;
      line(rest.substr(0, length));
      rest.remove_prefix(length);
    }
    open_line.erase(0, open_line.size() - rest.size());
  }
  if (!open_line.empty()) line(open_line);
}

TextFile scan_text(const std::string& path) {
  TextFile file{.path = path};
  Hasher hasher;
  for_each_line(path, [&](std::string_view line) {
    hasher.add(line);
    file.bytes += static_cast<int64_t>(line.size());
    file.has_separators = file.has_separators || is_separator(line);
  });
  file.hash = hasher.digest();
  return file;
}

void for_each_piece(const TextFile& file, const std::function<void(std::string&& text, bool ends_document)>& piece,
                    const PieceSize& size) {
  const size_t wanted = file.has_separators ? kLongestDocument : static_cast<size_t>(size.wanted_bytes);
  const size_t longest = file.has_separators ? kLongestDocument : static_cast<size_t>(size.longest_bytes);
  std::string text;
  bool after_blank_line = false;
  Hasher hasher;
  const auto end_document = [&] {
    // A piece is split off only before a line that is not blank. A blank rest is therefore a complete blank document.
    if (!is_blank(text)) piece(std::move(text), true);
    text.clear();
  };
  for_each_line(file.path, [&](std::string_view line) {
    hasher.add(line);
    if (file.has_separators && is_separator(line)) return end_document();
    const bool blank = is_blank(line);
    if (!blank && (text.size() >= longest || (after_blank_line && text.size() >= wanted))) {
      piece(std::move(text), false);
      text.clear();
    }
    after_blank_line = blank;
    text += line;
  });
  end_document();
  if (hasher.digest() != file.hash)
    throw DataError(file.path + ": its text changed while it was being read; start again when nothing writes to it");
}

}  // namespace orthant
