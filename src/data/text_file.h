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

/// Calls with the pieces of a file in order; `ends_document` is true for the last piece of each true document.
/// Documents end at <|endoftext|> lines, or with the file; without such lines pieces of about 16 KiB are cut at blank
/// lines (64 KiB at any line end where no blank line comes). Blank documents are left out.
void for_each_piece(const TextFile& file, const std::function<void(std::string&& text, bool ends_document)>& piece);

}  // namespace orthant
