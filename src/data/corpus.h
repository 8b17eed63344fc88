// From what the user names (text files, globs, gzip, or a Megatron PREFIX) to documents of tokens for training and for
// validation. Text is tokenised once and kept in a work folder under a name made of content and tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/tokenizer.h"

namespace orthant {

/// Called now and then while text is tokenised: bytes of text done, bytes in all (after decompression).
using TextProgress = std::function<void(int64_t bytes_done, int64_t bytes_total)>;

/// What the user asked for, key for key.
struct CorpusRequest {
  std::vector<std::string> paths;             ///< data.path: text files and globs, or one Megatron PREFIX
  double validation_share = 0.0;              ///< data.validation as a share of documents, in [0, 1)
  std::vector<std::string> validation_paths;  ///< data.validation as files; then the share is not used
  uint64_t seed = 0;                          ///< training.seed: chooses the held-out documents
  std::string work_dir;                       ///< where tokenised files are kept
};

/// Documents to train on and documents held out. Both lists ascend and index their own dataset; without validation the
/// second is empty. The datasets are one and the same unless validation_paths were given.
struct Corpus {
  IndexedDataset train;
  std::vector<int64_t> train_documents;
  IndexedDataset validation;
  std::vector<int64_t> validation_documents;
  bool from_cache = false;  ///< nothing had to be tokenised
  std::optional<uint64_t> text_fingerprint;  ///< text_fingerprint() of the paths
};

/// The files that paths and globs name, in the order given, each glob's matches sorted, none twice. Throws ConfigError
/// for a missing file, a glob that matches nothing, a directory, an unreadable or an empty file; `key` is what the
/// message calls the list.
std::vector<std::string> expand_paths(std::span<const std::string> paths, const std::string& key = "data.path");
/// True if data.path is one Megatron PREFIX (PREFIX.idx exists; PREFIX.bin and PREFIX.idx are taken for PREFIX).
bool is_indexed_prefix(std::span<const std::string> paths);

/// Hash of the decompressed text of the files that data.path names, in their order; it needs no tokenizer. Empty if
/// data.path names a Megatron PREFIX. Reads all files once. Throws as expand_paths() does, and DataError.
std::optional<uint64_t> text_fingerprint(std::span<const std::string> paths);

/// Opens the corpus; tokenises text that the work folder does not hold yet. Throws ConfigError or DataError.
Corpus open_corpus(const CorpusRequest& request, const Tokenizer& tokenizer, const TextProgress& progress = {});

/// Numbers of documents and pieces that tokenize_files() has written.
struct TokenizedText {
  int64_t documents = 0;  ///< documents of the text; each ends with the end-of-text id
  int64_t pieces = 0;     ///< documents of the dataset: a long document of the text has several
  int64_t files_with_separators = 0;
  int64_t piece_bytes = 0;  ///< target size of the pieces of a file without separators
};

/// Tokenises text files into the writer (which the caller finishes). A file is cut at lines that hold nothing but
/// <|endoftext|>; a file without such a line is cut at blank lines into documents of about 16 KiB (less where the text
/// would give fewer than twenty) that read on into one another: only the last piece of a true document ends with the
/// end-of-text id.
TokenizedText tokenize_files(std::span<const std::string> files, const Tokenizer& tokenizer,
                             IndexedDatasetWriter& writer, const TextProgress& progress = {});

/// Which of the documents are held out: round(share * documents) of them, at least one and never all, chosen by a hash
/// of seed and index. Ascending; empty if share is 0 or there are fewer than two documents.
std::vector<int64_t> held_out_documents(int64_t num_documents, double share, uint64_t seed);

}  // namespace orthant
