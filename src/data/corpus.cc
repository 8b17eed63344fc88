// Finds the files of a corpus, tokenizes them into the cache of the work folder, and selects held-out documents.
#include "data/corpus.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

#include "base/errors.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/folder_lock.h"
#include "data/text_file.h"
#include "data/seal.h"

namespace orthant {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kBatchBytes = 4 << 20;
constexpr int64_t kLeastPieces = 24;  // pieces of a text with at least as many lines: enough to hold some out
constexpr uint64_t kCutting = 2;      // part of the cache key: increase it whenever documents are split differently

std::vector<std::string> glob_matches(const std::string& pattern) {
  glob_t found = {};
  std::vector<std::string> matches;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0)
    for (size_t i = 0; i < found.gl_pathc; ++i)
      if (!fs::is_directory(found.gl_pathv[i])) matches.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  return matches;
}

void check_text_file(const std::string& path, const std::string& key) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found)
    throw ConfigError(
        fmt::format("{} = \"{}\": there is no such file, and no Megatron dataset {}.idx (seen from {}); name a text "
                    "file, or the prefix of a .bin and .idx pair",
                    key, path, path, fs::current_path().string()));
  if (status.type() == fs::file_type::directory)
    throw ConfigError(fmt::format("{} = \"{}\" is a directory; name files or a glob such as \"{}\"", key, path,
                                  (fs::path(path) / "*.txt").string()));
  if (!error && status.type() != fs::file_type::regular)
    throw ConfigError(
        fmt::format("{} = \"{}\" is not a regular file: text is read twice, so write it to a file first", key, path));
  if (!error && fs::file_size(path, error) == 0)
    throw ConfigError(fmt::format("{} = \"{}\" is an empty file; name one that holds text", key, path));
  if (error) throw ConfigError(fmt::format("{} = \"{}\": {}", key, path, error.message()));
}

/// Collects pieces, encodes them in batches of about 4 MiB and writes them in order.
class Batcher {
 public:
  Batcher(const Tokenizer& tokenizer, IndexedDatasetWriter& writer, const TextProgress& progress, int64_t total)
      : tokenizer_(tokenizer), writer_(writer), progress_(progress), total_(total) {}

  void add(std::string&& text, bool ends_document) {
    waiting_ += static_cast<int64_t>(text.size());
    texts_.push_back(std::move(text));
    ends_.push_back(ends_document);
    if (waiting_ >= kBatchBytes) flush();
  }

  void flush() {
    const std::vector<std::string_view> views(texts_.begin(), texts_.end());
    std::vector<std::vector<int32_t>> tokens = tokenizer_.encode_many(views);
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (begins_next_) tokens[i].insert(tokens[i].begin(), begin_tokens_.begin(), begin_tokens_.end());
      begins_next_ = ends_[i];
      if (ends_[i]) tokens[i].push_back(tokenizer_.end_of_text());
      writer_.add_document(tokens[i]);
    }
    done_ += waiting_;
    waiting_ = 0;
    texts_.clear();
    ends_.clear();
    if (progress_) progress_(std::min(done_, total_), total_);
  }

 private:
  const Tokenizer& tokenizer_;
  IndexedDatasetWriter& writer_;
  const TextProgress& progress_;
  int64_t total_, done_ = 0, waiting_ = 0;
  std::vector<std::string> texts_;
  std::vector<bool> ends_;   // whether a text ends a document
  bool begins_next_ = true;  // the next text begins one
  const std::vector<int32_t> begin_tokens_ = tokenizer_.begin_tokens();
};

/// The default sizes, or smaller ones for a text that would yield too few pieces.
PieceSize piece_size(int64_t total_bytes) {
  PieceSize size;
  size.longest_bytes = std::clamp<int64_t>(total_bytes / kLeastPieces, 1, size.longest_bytes);
  size.wanted_bytes = std::clamp<int64_t>(size.longest_bytes / 2, 1, size.wanted_bytes);
  return size;
}

TokenizedText tokenize_scanned(std::span<const TextFile> files, const Tokenizer& tokenizer,
                               IndexedDatasetWriter& writer, const TextProgress& progress) {
  int64_t total = 0;
  for (const TextFile& file : files) total += file.bytes;
  const PieceSize size = piece_size(total);
  TokenizedText tokenized{.piece_bytes = size.wanted_bytes};
  if (progress) progress(0, total);
  Batcher batcher(tokenizer, writer, progress, total);
  for (const TextFile& file : files) {
    tokenized.files_with_separators += file.has_separators ? 1 : 0;
    const auto add = [&](std::string&& text, bool ends_document) {
      tokenized.documents += ends_document ? 1 : 0;
      ++tokenized.pieces;
      batcher.add(std::move(text), ends_document);
    };
    for_each_piece(file, add, size);
  }
  batcher.flush();
  if (progress) progress(total, total);  // blank documents and separators never counted as done
  return tokenized;
}

std::vector<TextFile> scan_all(std::span<const std::string> paths, const TextFormat& format) {
  std::vector<TextFile> files;
  for (const std::string& path : paths) files.push_back(scan_text(path, format));
  return files;
}

void add_texts(Hasher& hasher, std::span<const TextFile> files) {
  for (const TextFile& file : files) {
    hasher.add_field(file.hash);
    hasher.add_field(static_cast<uint64_t>(file.bytes));
  }
}

uint64_t fingerprint_of(std::span<const TextFile> files) {
  Hasher hasher;
  add_texts(hasher, files);
  return hasher.digest();
}

/// Opens the dataset of these files from the work folder. Tokenizes the files if it is missing or damaged there.
IndexedDataset open_text(std::span<const TextFile> files, const std::string& work_dir, const Tokenizer& tokenizer,
                         const TextProgress& progress, bool& from_cache) {
  Hasher hasher;
  hasher.add_field(kCutting);
  hasher.add_field(tokenizer.fingerprint());
  add_texts(hasher, files);
  const std::string prefix = (fs::path(work_dir) / fmt::format("tokens-{:016x}", hasher.digest())).string();
  const std::array<std::string, 2> kept = {prefix + ".bin", prefix + ".idx"};
  // No lock is needed to read a complete dataset, so ranks need not wait for each other.
  if (checksums_match(kept)) return IndexedDataset::open(prefix, tokenizer.vocab_size());
  const FolderLock lock(work_dir);
  // Another process made it while this one waited for the lock.
  if (checksums_match(kept)) return IndexedDataset::open(prefix, tokenizer.vocab_size());
  report_damaged(kept);
  remove_checksums(kept);
  from_cache = false;
  IndexedDatasetWriter writer(prefix, tokenizer.vocab_size());
  tokenize_scanned(files, tokenizer, writer, progress);
  if (writer.num_documents() == 0) {
    std::vector<std::string> paths;
    for (const TextFile& file : files) paths.push_back(file.path);
    throw ConfigError(fmt::format("there is no text in {}, only blank lines", join(paths, ", ")));
  }
  writer.finish();
  write_checksums(kept);
  return IndexedDataset::open(prefix, tokenizer.vocab_size());
}

struct OpenedPaths {
  IndexedDataset dataset;
  std::optional<uint64_t> text_fingerprint;
};

OpenedPaths open_paths(const std::vector<std::string>& paths, const std::string& key, const CorpusRequest& request,
                       const Tokenizer& tokenizer, const TextProgress& progress, bool& from_cache) {
  const std::string& work_dir = request.work_dir;
  if (!is_indexed_prefix(paths)) {
    const std::vector<TextFile> files = scan_all(expand_paths(paths, key), request.format);
    return {open_text(files, work_dir, tokenizer, progress, from_cache), fingerprint_of(files)};
  }
  fs::path prefix = paths[0];
  if (prefix.extension() == ".idx" || prefix.extension() == ".bin") prefix.replace_extension();
  return {IndexedDataset::open(prefix.string(), tokenizer.vocab_size()), {}};
}

}  // namespace

bool is_indexed_prefix(std::span<const std::string> paths) {
  if (paths.size() != 1) return false;
  fs::path path = paths[0];
  if (path.extension() == ".idx") return fs::exists(path);
  if (path.extension() == ".bin") return fs::exists(path.replace_extension(".idx"));
  return !fs::exists(path) && fs::exists(paths[0] + ".idx");
}

std::vector<std::string> expand_paths(std::span<const std::string> paths, const std::string& key) {
  if (paths.empty()) throw ConfigError(key + " names no file; give text files, globs, or a Megatron PREFIX");
  std::vector<std::string> files;
  std::set<std::string> seen;
  for (const std::string& path : paths) {
    std::vector<std::string> matches = {path};
    if (!fs::exists(path) && path.find_first_of("*?[") != std::string::npos) {
      matches = glob_matches(path);
      if (matches.empty())
        throw ConfigError(
            fmt::format("{} = \"{}\" matches no file (seen from {})", key, path, fs::current_path().string()));
    }
    for (const std::string& match : matches) {
      check_text_file(match, key);
      if (seen.insert(match).second) files.push_back(match);
    }
  }
  return files;
}

std::optional<uint64_t> text_fingerprint(std::span<const std::string> paths, const TextFormat& format) {
  if (is_indexed_prefix(paths)) return {};
  return fingerprint_of(scan_all(expand_paths(paths), format));
}

TokenizedText tokenize_files(std::span<const std::string> files, const TextFormat& format, const Tokenizer& tokenizer,
                             IndexedDatasetWriter& writer, const TextProgress& progress) {
  return tokenize_scanned(scan_all(files, format), tokenizer, writer, progress);
}

std::vector<int64_t> held_out_documents(int64_t num_documents, double fraction, uint64_t seed) {
  if (!(fraction >= 0.0 && fraction < 1.0))
    throw ConfigError(fmt::format(
        "data.validation = {} must be at least 0 and below 1, as a fraction of the documents; try 0.05, or 0 for none",
        fraction));
  if (fraction == 0.0 || num_documents < 2) return {};
  const int64_t count =
      std::clamp<int64_t>(std::llround(fraction * static_cast<double>(num_documents)), 1, num_documents - 1);
  std::vector<int64_t> documents(static_cast<size_t>(num_documents));
  std::iota(documents.begin(), documents.end(), 0);
  const uint64_t key = mix64(seed ^ 0x76616c6964617465);
  std::ranges::nth_element(documents, documents.begin() + count, {}, [&](int64_t document) {
    return mix64(key ^ static_cast<uint64_t>(document));  // mix64 is a bijection, so no two values are equal
  });
  documents.resize(static_cast<size_t>(count));
  std::ranges::sort(documents);
  return documents;
}

Corpus open_corpus(const CorpusRequest& request, const Tokenizer& tokenizer, const TextProgress& progress) {
  Corpus corpus;
  corpus.from_cache = true;
  OpenedPaths train = open_paths(request.paths, "data.path", request, tokenizer, progress, corpus.from_cache);
  corpus.train = std::move(train.dataset);
  corpus.text_fingerprint = train.text_fingerprint;
  std::vector<int64_t> all(static_cast<size_t>(corpus.train.num_documents()));
  std::iota(all.begin(), all.end(), 0);
  if (!request.validation_paths.empty()) {
    corpus.train_documents = std::move(all);
    corpus.validation =
        open_paths(request.validation_paths, "data.validation", request, tokenizer, progress, corpus.from_cache)
            .dataset;
    corpus.validation_documents.resize(static_cast<size_t>(corpus.validation.num_documents()));
    std::iota(corpus.validation_documents.begin(), corpus.validation_documents.end(), 0);
    return corpus;
  }
  corpus.validation = corpus.train;
  corpus.validation_documents =
      held_out_documents(corpus.train.num_documents(), request.validation_fraction, request.seed);
  std::ranges::set_difference(all, corpus.validation_documents, std::back_inserter(corpus.train_documents));
  return corpus;
}

}  // namespace orthant
