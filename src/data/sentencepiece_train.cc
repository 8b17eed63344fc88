// Trains a sentencepiece model with spm_train and caches it under a name made of the text and the number of pieces.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <regex>

#include "base/errors.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/folder_lock.h"
#include "data/program.h"
#include "data/sentencepiece.h"
#include "data/text_file.h"
#include "data/utf8.h"
#include "data/seal.h"

namespace orthant {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kSampleBytes = 32 << 20;
constexpr int64_t kRecipe = 1;  // part of the cache key: increase it whenever the options below change

/// The training text. If it has more than kSampleBytes, lines are selected by a hash of their number. Bytes that are
/// not UTF-8 are removed, because spm_train would learn U+FFFD from them.
std::string sample_text(std::span<const TextFile> files, int64_t total_bytes) {
  std::string sample;
  uint64_t number = 0;
  const double fraction =
      total_bytes <= kSampleBytes ? 1.0 : static_cast<double>(kSampleBytes) / static_cast<double>(total_bytes);
  const auto add = [&](std::string_view line, bool has_separators) {
    if (static_cast<double>(mix64(number++) >> 11) * 0x1p-53 >= fraction) return;
    if (has_separators && trim(line) == "<|endoftext|>") return;
    while (!line.empty()) {
      const size_t length = utf8_length(line);
      sample += line.substr(0, length);
      line.remove_prefix(std::max<size_t>(length, 1));
    }
    if (!sample.empty() && sample.back() != '\n') sample += '\n';
  };
  for (const TextFile& file : files) {
    if (file.format.documents == DocumentFormat::kPlain) {
      for_each_line(file.path, [&](std::string_view line) { add(line, file.has_separators); });
      continue;
    }
    for_each_piece(file, [&](std::string&& text, bool) {
      for (const std::string& line : split(text, '\n')) add(line, false);
    });
  }
  return sample;
}

/// Throws ConfigError with the number of pieces that spm_train would accept, or else with its message.
[[noreturn]] void refuse(int64_t pieces, const ProgramResult& result) {
  std::smatch match;
  const std::string what = fmt::format("data.tokenizer = \"train:{}\"", pieces);
  if (std::regex_search(result.errors, match, std::regex("value <= (\\d+)")))
    throw ConfigError(fmt::format("{}: the text is too short for this number of pieces; set data.tokenizer to "
                                  "\"train:{}\" or \"byte\"",
                                  what, match.str(1)));
  if (std::regex_search(result.errors, match, std::regex("\\d+ vs (\\d+)")))
    throw ConfigError(fmt::format("{}: the characters of the text alone need {} pieces; set data.tokenizer to "
                                  "\"train:{}\" or more",
                                  what, match.str(1), match.str(1)));
  throw ConfigError(
      fmt::format("{}: spm_train failed with exit code {}: {}", what, result.exit_code, trim(result.errors)));
}

}  // namespace

std::string train_sentencepiece(int64_t pieces, const std::string& work_dir, std::span<const std::string> text_files,
                                const TextFormat& format, FileReadings& readings) {
  std::vector<TextFile> files;
  Hasher hasher;
  hasher.add_field(static_cast<uint64_t>(kRecipe));
  hasher.add_field(static_cast<uint64_t>(pieces));
  int64_t total_bytes = 0;
  for (const std::string& path : text_files) {
    files.push_back(readings.scan(path, format));
    hasher.add_field(files.back().hash);
    total_bytes += files.back().bytes;
  }
  const fs::path model = fs::path(work_dir) / fmt::format("tokenizer-{:016x}.model", hasher.digest());
  const std::array<std::string, 1> kept = {model.string()};
  if (checksums_match(kept, readings)) return model;
  const FolderLock lock(work_dir);
  if (checksums_match(kept, readings)) return model;  // another process made it while this one waited
  report_damaged(kept, readings);
  remove_checksums(kept);
  const std::string text = sample_text(files, total_bytes);
  if (text.find_first_not_of(" \t\r\n") == std::string::npos)
    throw ConfigError(fmt::format("data.tokenizer = \"train:{}\": data.path holds no text to train it on", pieces));

  // Runs in a separate folder with a relative name, because spm_train writes the given name into the model.
  const fs::path folder = fmt::format("{}.tmp{}", model.string(), ::getpid());
  fs::create_directories(folder);
  const ProgramResult result = run_program(
      {"spm_train", "--input=/dev/stdin", "--model_prefix=tokenizer", fmt::format("--vocab_size={}", pieces),
       "--model_type=bpe", "--byte_fallback=true", "--split_digits=true", "--allow_whitespace_only_pieces=true",
       "--normalization_rule_name=identity", "--add_dummy_prefix=false", "--remove_extra_whitespaces=false",
       "--max_sentence_length=1000000", "--unk_id=0", "--eos_id=1", "--bos_id=-1", "--pad_id=-1",
       "--eos_piece=<|endoftext|>", "--num_threads=1", "--minloglevel=1"},
      text, folder, "install sentencepiece's programs: apt-get install sentencepiece");
  const bool done = result.exit_code == 0 && fs::exists(folder / "tokenizer.model");
  if (done) fs::rename(folder / "tokenizer.model", model);
  fs::remove_all(folder);
  if (!done) refuse(pieces, result);
  write_checksums(kept, readings);
  return model;
}

}  // namespace orthant
