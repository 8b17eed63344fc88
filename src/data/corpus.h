// Turns the files of the configuration (text, JSONL, or a Megatron PREFIX) into documents of tokens for training
// and validation. Text is tokenized once and cached in a work folder, under a name derived from content and tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/text_file.h"
#include "data/tokenizer.h"

namespace orthant {

/// Called repeatedly during tokenization with the bytes of text done and the total, both after decompression.
using TextProgress = std::function<void(int64_t bytes_done, int64_t bytes_total)>;

/// The corpus settings of the configuration, one field per key.
struct CorpusRequest {
  std::vector<std::string> paths;             ///< data.path: text files and globs, or one Megatron PREFIX
  TextFormat format = {};                     ///< data.format and data.text_key
  double validation_fraction = 0.0;           ///< data.validation as a fraction of documents, in [0, 1)
  std::vector<std::string> validation_paths;  ///< data.validation as files; if set, the fraction is ignored
  uint64_t seed = 0;                          ///< training.seed: chooses the held-out documents
  std::string work_dir;                       ///< folder of cached tokenized files
};

/// Documents for training and held-out documents for validation. Both lists ascend and index their own dataset; without
/// validation the second list is empty. Both datasets are the same unless validation_paths are given.
struct Corpus {
  IndexedDataset train;
  std::vector<int64_t> train_documents;
  IndexedDataset validation;
  std::vector<int64_t> validation_documents;
  bool from_cache = false;  ///< true if all tokens came from the cache
  std::optional<uint64_t> text_fingerprint;  ///< text_fingerprint() of the paths
};

/// The files that paths and globs name, without duplicates, in the given order; each glob's matches are sorted. Throws
/// ConfigError for a missing file, a glob without matches, a directory, an unreadable file or an empty file. `key` is
/// the name of the list in messages.
std::vector<std::string> expand_paths(std::span<const std::string> paths, const std::string& key = "data.path");
/// True if data.path is one Megatron PREFIX: PREFIX.idx exists. PREFIX.bin and PREFIX.idx also name PREFIX.
bool is_indexed_prefix(std::span<const std::string> paths);

/// Hash of the decompressed text of the files that data.path names, in their order; it needs no tokenizer. Empty if
/// data.path names a Megatron PREFIX. Reads all files once. Throws as expand_paths() does, and DataError.
std::optional<uint64_t> text_fingerprint(std::span<const std::string> paths, const TextFormat& format);

/// Opens the corpus and tokenizes text that is not in the work folder yet. Throws ConfigError or DataError.
Corpus open_corpus(const CorpusRequest& request, const Tokenizer& tokenizer, const TextProgress& progress = {});

/// Numbers of documents and pieces that tokenize_files() has written.
struct TokenizedText {
  int64_t documents = 0;  ///< documents of the text; each ends with the end-of-text id
  int64_t pieces = 0;     ///< documents of the dataset: a long document of the text has several
  int64_t files_with_separators = 0;
  int64_t piece_bytes = 0;  ///< target size of the pieces of a file without separators
};

/// Tokenizes text files into the writer; the caller calls finish(). Lines that contain only <|endoftext|> separate
/// documents. A file without such a line is one document, split at blank lines into pieces of about 16 KiB. Small texts
/// get smaller pieces, so that they still yield about 20. Only the first piece of a document begins with the begin
/// tokens, and only the last one ends with the end-of-text id, so that pieces continue into one another.
TokenizedText tokenize_files(std::span<const std::string> files, const TextFormat& format, const Tokenizer& tokenizer,
                             IndexedDatasetWriter& writer, const TextProgress& progress = {});

/// The held-out documents, ascending: round(fraction * num_documents) of them, at least one and never all, chosen by a
/// hash of seed and index. Empty if fraction is 0 or there are fewer than two documents. Throws ConfigError unless
/// fraction is in [0, 1).
std::vector<int64_t> held_out_documents(int64_t num_documents, double fraction, uint64_t seed);

}  // namespace orthant
