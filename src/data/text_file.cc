#include "data/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/errors.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/json_text.h"
#include "data/program.h"

namespace orthant {

namespace {

constexpr size_t kReadBytes = 1 << 18;
constexpr size_t kLongestDocument = 64 << 20;

/// The program that decompresses a file that begins with these bytes; empty for text.
std::string decompressor_of(std::string_view first) {
  if (first.starts_with("\x1f\x8b")) return "gzip";
  if (first.starts_with("\x28\xb5\x2f\xfd")) return "zstd";
  // A zstd file may begin with a frame of other data, whose first byte is from 0x50 to 0x5f.
  const bool skips = first.size() == 4 && first.substr(1) == "\x2a\x4d\x18" && (first[0] & 0xf0) == 0x50;
  return skips ? "zstd" : "";
}

/// The bytes of a file, decompressed by another program if they begin with a known format's magic number.
class TextReader {
 public:
  explicit TextReader(const std::string& path) : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (file_ < 0) throw ConfigError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
    std::array<char, 4> first{};
    const ssize_t got = ::pread(file_, first.data(), first.size(), 0);
    const std::string program = decompressor_of({first.data(), static_cast<size_t>(std::max<ssize_t>(got, 0))});
    if (!program.empty()) decompress_with(program);
    for (const auto& [ending, wanted] : {std::pair(".gz", "gzip"), std::pair(".zst", "zstd")}) {
      if (!path.ends_with(ending) || program == wanted) continue;
      ::close(std::exchange(file_, -1));
      throw DataError(fmt::format("{}: not a {} file, as its name says; rename it if it is text", path, wanted));
    }
  }
  ~TextReader() {
    if (file_ >= 0) ::close(file_);
    if (decompressor_ > 0) wait_for_program(decompressor_);
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
    if (got == 0 && decompressor_ > 0) {
      const int code = wait_for_program(std::exchange(decompressor_, 0));
      const bool warns = code == 2 && program_ == "gzip";  // other data follows the compressed text
      if (code != 0 && !warns)
        throw DataError(fmt::format("{}: damaged {} file after {} bytes of text: {}", path_, program_, done_,
                                    trim(errors_.content())));
    }
    return static_cast<size_t>(got);
  }

 private:
  void decompress_with(const std::string& program) {
    program_ = program;
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw DataError(fmt::format("{}: cannot open a pipe to {}: {}", path_, program, std::strerror(errno)));
    const int compressed = std::exchange(file_, ends[0]);
    try {
      decompressor_ = start_program({program, "-dc"}, compressed, ends[1], errors_.descriptor(), "",
                                    "install it: apt-get install " + program);
    } catch (...) {
      ::close(compressed), ::close(ends[0]), ::close(ends[1]);
      throw;
    }
    ::close(compressed), ::close(ends[1]);
  }

  std::string path_;
  int file_;
  std::string program_;   // empty if the file is not compressed
  int decompressor_ = 0;  // process of the program
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

// Throws ConfigError for JSONL that would be read as text: a model should not learn its braces and keys.
void require_format(const std::string& path, const TextFormat& format) {
  std::string_view name = path;
  for (const std::string_view ending : {".gz", ".zst"}) {
    if (name.ends_with(ending)) name.remove_suffix(ending.size());
  }
  if (format.documents != DocumentFormat::kPlain || !name.ends_with(".jsonl")) return;
  throw ConfigError(
      fmt::format("{} requires data.format = \"jsonl\" or \"chat\" by its name (with orthant tokenize: --format "
                  "jsonl); rename it to train on its lines as text",
                  path));
}

void require_same(const Hasher& hasher, const TextFile& file) {
  if (hasher.digest() == file.hash) return;
  throw DataError(file.path + ": its text changed while it was being read; start again when nothing writes to it");
}

// The first field of a text's hash: another key selects other texts from the same lines.
void add_key(Hasher& hasher, const TextFormat& format) {
  if (format.documents == DocumentFormat::kJsonl) hasher.add_field(format.key);
}

}  // namespace

void for_each_line(const std::string& path, const std::function<void(std::string_view)>& line, size_t longest) {
  TextReader reader(path);
  const auto buffer = std::make_unique_for_overwrite<char[]>(kReadBytes);
  std::string open_line;
  while (const size_t got = reader.read(buffer.get(), kReadBytes)) {
    open_line.append(buffer.get(), got);
    std::string_view rest = open_line;
    while (!rest.empty()) {
      const size_t newline = rest.find('\n');
      size_t length = newline == std::string_view::npos ? rest.size() : newline + 1;
      if (length > longest)
        length = character_boundary(rest, longest);
      else if (newline == std::string_view::npos)
        break;
      line(rest.substr(0, length));
      rest.remove_prefix(length);
    }
    open_line.erase(0, open_line.size() - rest.size());
  }
  if (!open_line.empty()) line(open_line);
}

TextFile scan_text(const std::string& path, const TextFormat& format) {
  require_format(path, format);
  TextFile file{.path = path, .format = format};
  Hasher hasher;
  add_key(hasher, format);
  const bool is_plain = format.documents == DocumentFormat::kPlain;
  for_each_line(path, [&](std::string_view line) {
    hasher.add(line);
    file.bytes += static_cast<int64_t>(line.size());
    file.has_separators = file.has_separators || (is_plain && is_separator(line));
  });
  file.hash = hasher.digest();
  return file;
}

void for_each_json_line(const TextFile& file,
                        const std::function<void(std::string_view line, const std::string& source)>& call) {
  Hasher hasher;
  add_key(hasher, file.format);
  int64_t number = 0;
  const auto read_line = [&](std::string_view line) {
    hasher.add(line);
    ++number;
    if (line.size() > kLongestDocument) {
      throw DataError(fmt::format("{}: line {} must have at most {} bytes; split its document", file.path, number,
                                  kLongestDocument));
    }
    if (!is_blank(line)) call(line, fmt::format("{}: line {}", file.path, number));
  };
  for_each_line(file.path, read_line, kLongestDocument + 1);
  require_same(hasher, file);
}

void for_each_piece(const TextFile& file, const std::function<void(std::string&& text, bool ends_document)>& piece,
                    const PieceSize& size) {
  if (file.format.documents == DocumentFormat::kJsonl) {
    return for_each_json_line(file, [&](std::string_view line, const std::string& source) {
      std::string text = read_json_text(line, file.format.key, source);
      if (!is_blank(text)) piece(std::move(text), true);
    });
  }
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
  require_same(hasher, file);
}

}  // namespace orthant
