// Text files, plain or gzip, read as a stream of lines and cut into documents.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace orthant {

/// What one pass over a text file tells.
struct TextFile {
  std::string path;
  int64_t bytes = 0;            ///< of text, after decompression
  uint64_t hash = 0;            ///< of the text
  bool has_separators = false;  ///< some line holds nothing but <|endoftext|>
};

/// Calls with each line of a file, its newline included; the lines joined are the file. A line longer than 64 KiB comes
/// in parts that end between UTF-8 characters. Throws ConfigError (cannot be opened) or DataError (damaged gzip, read
/// error).
void for_each_line(const std::string& path, const std::function<void(std::string_view)>& line);

/// Throws as for_each_line does.
TextFile scan_text(const std::string& path);

/// How long the pieces are into which a text without separators is cut: at blank lines from `wanted` on, at any line
/// end from `longest` on.
struct PieceSize {
  int64_t wanted_bytes = 16 << 10;
  int64_t longest_bytes = 64 << 10;
};

/// Calls with the pieces of a file in order; `ends_document` is true for the last piece of each true document.
/// Documents end at <|endoftext|> lines, or with the file; a file without such lines is cut into pieces of whole lines.
/// Blank documents are left out. Throws DataError at the end where the text is no longer the one that was scanned.
void for_each_piece(const TextFile& file, const std::function<void(std::string&& text, bool ends_document)>& piece,
                    const PieceSize& size = {});

}  // namespace orthant
