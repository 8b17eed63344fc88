// Tokenizes files of text into an indexed dataset.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/file_readings.h"
#include "data/indexed_dataset.h"
#include "data/text_file.h"
#include "data/tokenizer.h"

namespace orthant {

/// Bytes of text that are tokenized by one call, on all cores.
inline constexpr int64_t kTextBatchBytes = 4 << 20;

/// Called repeatedly during tokenization with the bytes of text done and the total, both after decompression.
using TextProgress = std::function<void(int64_t bytes_done, int64_t bytes_total)>;

/// Numbers of documents and pieces that tokenize_text() has written.
struct TokenizedText {
  int64_t documents = 0;  ///< documents of the text; each ends with the end-of-text id
  int64_t pieces = 0;     ///< documents of the dataset: a long document of the text has several
  int64_t files_with_separators = 0;
  int64_t piece_bytes = 0;  ///< target size of the pieces of a file without separators
};

/// Tokenizes text into the writer; the caller calls finish(). Lines that contain only <|endoftext|> separate
/// documents. A file without such a line is one document, split at blank lines into pieces of about 16 KiB. Small texts
/// get smaller pieces, so that they still yield about 20. Only the first piece of a document begins with the begin
/// tokens, and only the last one ends with the end-of-text id, so that pieces continue into one another.
TokenizedText tokenize_text(std::span<const TextFile> files, const Tokenizer& tokenizer, IndexedDatasetWriter& writer,
                            const TextProgress& progress = {});

/// scan_text() of each file, unless `readings` has its result.
std::vector<TextFile> scan_texts(std::span<const std::string> paths, const TextFormat& format,
                                 FileReadings* readings = nullptr);

}  // namespace orthant
