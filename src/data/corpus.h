// Turns the files of the configuration (text, JSONL, or a Megatron PREFIX) into documents of tokens for training
// and validation. Text is tokenized once and cached in a work folder, under a name derived from content and tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/named_files.h"
#include "data/chat_template.h"
#include "data/file_readings.h"
#include "data/indexed_dataset.h"
#include "data/text_file.h"
#include "data/tokenize_text.h"
#include "data/tokenizer.h"

namespace orthant {

/// The corpus settings of the configuration, one field per key.
struct CorpusRequest {
  std::vector<std::string> paths;               ///< data.path: text files and globs, or one Megatron PREFIX
  bool is_blend = false;                        ///< data.weights is given: each of the paths is a dataset of its own
  TextFormat format = {};                       ///< data.format and data.text_key
  const ChatTemplate* chat_template = nullptr;  ///< data.chat_template, for DocumentFormat::kChat
  double validation_fraction = 0.0;             ///< data.validation as a fraction of documents, in [0, 1)
  std::vector<NamedFiles> validation_sets;      ///< data.validation as files; if given, the fraction is ignored
  uint64_t seed = 0;                            ///< training.seed: chooses the held-out documents
  std::string work_dir;                         ///< folder of cached tokenized files
  FileReadings* readings = nullptr;             ///< results of reading whole files, which open_corpus() extends
};

/// Chosen documents of a dataset, ascending.
struct Documents {
  std::string name;  ///< for training in a blend, the entry of data.path; of validation, the set; empty if only one
  IndexedDataset tokens;
  std::optional<IndexedDataset> loss_mask;  ///< of conversations: for each token, 1 if it carries loss, else 0
  std::vector<int64_t> chosen;
};

/// Documents for training: one entry, or one for each path of a blend. Documents for validation: one entry for each set
/// of files, or the held-out documents of each entry for training; empty without validation.
struct Corpus {
  std::vector<Documents> training, validation;
  bool from_cache = false;  ///< true if all tokens came from the cache
  std::optional<uint64_t> text_fingerprint;  ///< text_fingerprint() of the paths
};

/// The files that paths and globs name, without duplicates, in the given order; each glob's matches are sorted. Throws
/// ConfigError for a missing file, a glob without matches, a directory, an unreadable file or an empty file. `key` is
/// the name of the list in messages.
std::vector<std::string> expand_paths(std::span<const std::string> paths, const std::string& key = "data.path");
/// True if the path is a Megatron PREFIX: PREFIX.idx exists. PREFIX.bin and PREFIX.idx also name PREFIX.
bool is_indexed_prefix(const std::string& path);
/// expand_paths() of the paths that are no Megatron PREFIX.
std::vector<std::string> text_files_of(std::span<const std::string> paths);

/// Throws ConfigError if a Megatron PREFIX is not alone or in a blend, or if the paths do not fit `format`, which is
/// the value of data.format. `key` names the list of paths in messages.
void check_prefixes(std::span<const std::string> paths, const std::string& format, bool is_blend,
                    const std::string& key);

/// Hash of the decompressed text of the files that data.path names, in their order; it needs no tokenizer. Empty if
/// a path names a Megatron PREFIX. Reads all files once. Throws as expand_paths() does, and DataError.
std::optional<uint64_t> text_fingerprint(std::span<const std::string> paths, const TextFormat& format);

/// Opens the corpus and tokenizes text that is not in the work folder yet. Throws ConfigError or DataError.
Corpus open_corpus(const CorpusRequest& request, const Tokenizer& tokenizer, const TextProgress& progress = {});

/// The held-out documents, ascending: round(fraction * num_documents) of them, at least one and never all, chosen by a
/// hash of seed and index. Empty if fraction is 0 or there are fewer than two documents. Throws ConfigError unless
/// fraction is in [0, 1).
std::vector<int64_t> held_out_documents(int64_t num_documents, double fraction, uint64_t seed);

}  // namespace orthant
