// Reads text files and JSONL files, plain or compressed by gzip or zstd, and splits them into documents.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace orthant {

/// How a file holds documents: as plain text, or as JSONL, where each line is a JSON object. Of kJsonl, `key` names the
/// text of the object; of kChat, each object is a conversation (chat_template.h).
enum class DocumentFormat { kPlain, kJsonl, kChat };
struct TextFormat {
  DocumentFormat documents = DocumentFormat::kPlain;
  std::string key = "text";
};

/// The result of one pass over a text file.
struct TextFile {
  std::string path;
  TextFormat format;
  int64_t bytes = 0;            ///< size after decompression: of the text, or of the lines of JSON
  uint64_t hash = 0;            ///< hash of these bytes, and of the key of texts in JSON objects
  bool has_separators = false;  ///< true if some line contains only <|endoftext|>
};

inline constexpr size_t kLongestLine = 64 << 10;

/// Calls `line` with each line of a file, including its newline; the concatenated lines are the file. A line longer
/// than `longest` bytes comes in parts that end between UTF-8 characters. Throws ConfigError if the file cannot be
/// opened, and DataError for a damaged compressed file or a read error.
void for_each_line(const std::string& path, const std::function<void(std::string_view)>& line,
                   size_t longest = kLongestLine);

/// Reads the file once. Throws as for_each_line() does, and ConfigError for a file named .jsonl with format kPlain.
TextFile scan_text(const std::string& path, const TextFormat& format = {});

/// Calls `line` with each line of a JSONL file that is not blank, and with "FILE: line N" for messages. Throws
/// DataError for a line that is too long, and, after the last line, if the text differs from the one scanned.
void for_each_json_line(const TextFile& file,
                        const std::function<void(std::string_view line, const std::string& source)>& line);

/// Sizes of the pieces of a text without separators: a piece ends at the first blank line after wanted_bytes, or at the
/// first line end after longest_bytes.
struct PieceSize {
  int64_t wanted_bytes = 16 << 10;
  int64_t longest_bytes = 64 << 10;
};

/// Calls `piece` with the pieces of a file in order; `ends_document` is true for the last piece of a document.
/// Documents end at <|endoftext|> lines or at the end of the file. A file without such lines is split into pieces of
/// full lines. The text of each line of a kJsonl file is a document. Blank documents are skipped. Throws DataError for
/// a line that is not JSON or lacks the key, with its number, and if the text differs from the one scanned.
void for_each_piece(const TextFile& file, const std::function<void(std::string&& text, bool ends_document)>& piece,
                    const PieceSize& size = {});

}  // namespace orthant
