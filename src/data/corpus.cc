// Finds the files of a corpus, tokenizes them into the cache of the work folder, and selects held-out documents.
#include "data/corpus.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <ranges>
#include <set>

#include "base/errors.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/folder_lock.h"
#include "data/seal.h"
#include "data/tokenize_chat.h"

namespace orthant {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kTokensVersion = 2;  // part of the cache key: increase it whenever documents get other tokens

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

void add_texts(Hasher& hasher, std::span<const TextFile> files) {
  for (const TextFile& file : files) {
    hasher.add_field(file.hash);
    hasher.add_field(static_cast<uint64_t>(file.bytes));
  }
}

// The fingerprint of a list of files, each counted once.
uint64_t fingerprint_of(std::span<const TextFile> files) {
  Hasher hasher;
  std::set<std::string> seen;
  for (const TextFile& file : files) {
    if (seen.insert(file.path).second) add_texts(hasher, {&file, 1});
  }
  return hasher.digest();
}

// Opens the datasets of these files from the work folder. Tokenizes the files if one is missing or damaged there.
Documents open_text(std::span<const TextFile> files, const CorpusRequest& request, const Tokenizer& tokenizer,
                    const TextProgress& progress, bool& from_cache) {
  FileReadings& readings = *request.readings;
  const bool is_chat = request.format.documents == DocumentFormat::kChat;
  Hasher hasher;
  hasher.add_field(kTokensVersion);
  hasher.add_field(tokenizer.fingerprint());
  if (is_chat) hasher.add_field(request.chat_template->fingerprint());
  add_texts(hasher, files);
  const std::string prefix = (fs::path(request.work_dir) / fmt::format("tokens-{:016x}", hasher.digest())).string();
  const std::string mask_prefix = prefix + "-loss-mask";
  std::vector<std::string> kept = {prefix + ".bin", prefix + ".idx"};
  if (is_chat) kept.insert(kept.end(), {mask_prefix + ".bin", mask_prefix + ".idx"});
  const auto open = [&] {
    Documents documents{
        .name = {}, .tokens = IndexedDataset::open(prefix, tokenizer.vocab_size()), .loss_mask = {}, .chosen = {}};
    if (is_chat) documents.loss_mask = IndexedDataset::open(mask_prefix, 2);
    return documents;
  };
  // No lock is needed to read a complete dataset, so ranks need not wait for each other.
  if (checksums_match(kept, readings)) return open();
  const FolderLock lock(request.work_dir);
  if (checksums_match(kept, readings)) return open();  // another process made it while this one waited for the lock
  report_damaged(kept, readings);
  remove_checksums(kept);
  from_cache = false;
  IndexedDatasetWriter writer(prefix, tokenizer.vocab_size());
  if (is_chat) {
    IndexedDatasetWriter loss_mask(mask_prefix, 2);
    tokenize_chat(files, *request.chat_template, tokenizer, writer, loss_mask, progress);
    loss_mask.finish();
  } else {
    tokenize_text(files, tokenizer, writer, progress);
  }
  if (writer.num_documents() == 0) {
    std::vector<std::string> paths;
    for (const TextFile& file : files) paths.push_back(file.path);
    throw ConfigError(fmt::format("there is no text in {}, only blank lines", join(paths, ", ")));
  }
  writer.finish();
  write_checksums(kept, readings);
  return open();
}

// All documents of these paths. `key` is the name of the list in messages.
Documents open_paths(const std::vector<std::string>& paths, const std::string& key, const CorpusRequest& request,
                     const Tokenizer& tokenizer, const TextProgress& progress, bool& from_cache,
                     std::vector<TextFile>& texts) {
  Documents documents{.name = {}, .tokens = {}, .loss_mask = {}, .chosen = {}};
  if (paths.size() == 1 && is_indexed_prefix(paths[0])) {
    fs::path prefix = paths[0];
    if (prefix.extension() == ".idx" || prefix.extension() == ".bin") prefix.replace_extension();
    documents.tokens = IndexedDataset::open(prefix.string(), tokenizer.vocab_size());
  } else {
    const std::vector<TextFile> files = scan_texts(expand_paths(paths, key), request.format, request.readings);
    documents = open_text(files, request, tokenizer, progress, from_cache);
    texts.insert(texts.end(), files.begin(), files.end());
  }
  documents.chosen.resize(static_cast<size_t>(documents.tokens.num_documents()));
  std::iota(documents.chosen.begin(), documents.chosen.end(), 0);
  return documents;
}

// The lists of paths that are datasets of their own: the complete list, or in a blend each path.
std::vector<std::vector<std::string>> datasets_of(const CorpusRequest& request) {
  if (!request.is_blend) return {request.paths};
  std::vector<std::vector<std::string>> datasets;
  for (const std::string& path : request.paths) datasets.push_back({path});
  return datasets;
}

}  // namespace

bool is_indexed_prefix(const std::string& name) {
  fs::path path = name;
  if (path.extension() == ".idx") return fs::exists(path);
  if (path.extension() == ".bin") return fs::exists(path.replace_extension(".idx"));
  return !fs::exists(path) && fs::exists(name + ".idx");
}

std::vector<std::string> text_files_of(std::span<const std::string> paths) {
  std::vector<std::string> texts;
  std::ranges::remove_copy_if(paths, std::back_inserter(texts), is_indexed_prefix);
  return texts.empty() ? texts : expand_paths(texts);
}

void check_prefixes(std::span<const std::string> paths, const std::string& format, bool is_blend,
                    const std::string& key) {
  for (const std::string& path : paths) {
    const bool is_prefix = is_indexed_prefix(path);
    if (!is_prefix && format == "megatron") {
      throw ConfigError(fmt::format(
          "{} must be a PREFIX of PREFIX.bin and PREFIX.idx, because data.format = \"megatron\", and there is no "
          "{}.idx (seen from {}); name one (orthant tokenize writes them), or set data.format to \"text\" or \"jsonl\"",
          key, path, fs::current_path().string()));
    }
    if (is_prefix && (format == "jsonl" || format == "chat")) {
      throw ConfigError(fmt::format(
          "{} must name files of JSON objects, because data.format = \"{}\", and {} is a Megatron PREFIX; {}", key,
          format, path, format == "chat" ? "name JSONL files" : "set data.format to \"megatron\""));
    }
    if (is_prefix && paths.size() > 1 && !is_blend) {
      throw ConfigError(fmt::format(
          "{} names the Megatron PREFIX {} among {} paths, but a PREFIX must be the only path of a dataset; {}", key,
          path, paths.size(),
          key.starts_with("data.validation") ? "give each PREFIX a name of its own in the table [data.validation]"
                                             : "give each path a weight in data.weights, which makes it a blend"));
    }
  }
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
  if (std::ranges::any_of(paths, is_indexed_prefix)) return {};
  return fingerprint_of(scan_texts(expand_paths(paths), format));
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

Corpus open_corpus(const CorpusRequest& given, const Tokenizer& tokenizer, const TextProgress& progress) {
  FileReadings own;
  CorpusRequest request = given;
  if (request.readings == nullptr) request.readings = &own;
  Corpus corpus;
  corpus.from_cache = true;
  std::vector<TextFile> texts, validation_texts;
  for (const std::vector<std::string>& paths : datasets_of(request)) {
    corpus.training.push_back(open_paths(paths, "data.path", request, tokenizer, progress, corpus.from_cache, texts));
    if (request.is_blend) corpus.training.back().name = paths[0];
  }
  if (std::ranges::none_of(request.paths, is_indexed_prefix)) corpus.text_fingerprint = fingerprint_of(texts);
  for (const NamedFiles& set : request.validation_sets) {
    corpus.validation.push_back(open_paths(set.files,
                                           set.name.empty() ? "data.validation" : "data.validation." + set.name,
                                           request, tokenizer, progress, corpus.from_cache, validation_texts));
    corpus.validation.back().name = set.name;
  }
  if (!request.validation_sets.empty()) return corpus;
  const std::vector<std::string> names = request.is_blend ? set_names_of(request.paths) : std::vector<std::string>{""};
  for (size_t i = 0; i < corpus.training.size(); ++i) {
    Documents& documents = corpus.training[i];
    Documents held_out = documents;
    held_out.name = names[i];
    held_out.chosen = held_out_documents(documents.tokens.num_documents(), request.validation_fraction, request.seed);
    documents.chosen.clear();
    std::ranges::set_difference(std::views::iota(int64_t{0}, documents.tokens.num_documents()), held_out.chosen,
                                std::back_inserter(documents.chosen));
    if (!held_out.chosen.empty()) corpus.validation.push_back(std::move(held_out));
  }
  return corpus;
}

}  // namespace orthant
