// Opens tokenizer, corpus and loaders from the run file, and computes the fingerprints that a resumed run is checked
// by.
#include "runtime/training_data.h"

#include "base/file_errors.h"
#include "base/hash.h"
#include "base/text.h"

#include <algorithm>

namespace orthant {
namespace {

// The masking of samples for the masked objective. Training and validation use different keys, so that samples with the
// same number are masked differently.
std::optional<Masking> masking_of(const Config& config, const Tokenizer& tokenizer, SampleOrder order) {
  if (config.model.objective == "causal") return std::nullopt;
  const std::string_view occasion = order == SampleOrder::kShuffled ? "masks of training" : "masks of validation";
  return Masking{.fraction = config.model.masked_share,
                 .mask_token = mask_token(tokenizer.vocab_size()),
                 .key = mix64(static_cast<uint64_t>(config.training.seed) ^ xxh3(occasion))};
}

// About one line of text, cut after a word.
std::string opening_of(const IndexedDataset& dataset, int64_t document, const Tokenizer& tokenizer) {
  std::vector<int32_t> tokens(static_cast<size_t>(std::min<int64_t>(80, dataset.document_length(document))));
  dataset.read(document, 0, tokens);
  std::string text = tokenizer.decode(tokens).substr(0, 72);
  const size_t space = text.find_last_of(" \n");
  if (space != std::string::npos && space > 8) text.resize(space);
  return std::string(trim(text));
}

// Fingerprint of the training data: the chosen documents, and their tokens. Of a large corpus, it includes an evenly
// spaced selection of tokens.
uint64_t fingerprint_of(const Corpus& corpus) {
  constexpr int64_t kWindow = 1024, kMostTokens = int64_t{1} << 24;
  Hasher hasher;
  hasher.add_field(corpus.train.fingerprint());
  std::vector<int32_t> tokens;
  const int64_t every = std::max<int64_t>(1, corpus.train.num_tokens() / kMostTokens);
  int64_t window = 0;
  for (const int64_t document : corpus.train_documents) {
    hasher.add_field(static_cast<uint64_t>(document));
    for (int64_t begin = 0; begin < corpus.train.document_length(document); begin += kWindow) {
      if (window++ % every != 0) continue;
      tokens.resize(static_cast<size_t>(std::min(kWindow, corpus.train.document_length(document) - begin)));
      corpus.train.read(document, begin, tokens);
      hasher.add({reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(int32_t)});
    }
  }
  return hasher.digest();
}

// Throws ConfigError if a document is longer than a sample and must not be cut. A shorter document may still cross the
// end of a sample, as in any stream of packed samples; a longer one always does. `key` names the dataset.
void require_whole_documents(const Config& config, const IndexedDataset& dataset, const char* key) {
  if (!config.data.mask_documents || config.data.long_documents == "cut") return;
  int64_t longest = 0, length = 0, longer = 0;
  for (int64_t document = 0; document < dataset.num_documents(); ++document) {
    const int64_t tokens = dataset.document_length(document);
    if (tokens > length) longest = document, length = tokens;
    if (tokens > config.training.seq_len) ++longer;
  }
  if (longer == 0) return;
  const bool positions = length > config.model.max_position_embeddings;
  throw ConfigError(fmt::format(
      "{}: attention would stay inside documents, but document {} (from 0) of {} has {} tokens, more than {}; {} of {} "
      "do. Set training.seq_len to at least {}{}, or data.long_documents to \"cut\" (they are cut where samples end)",
      config.locate("data.mask_documents"), longest, config.locate(key), length, config.locate("training.seq_len"),
      longer, counted(dataset.num_documents(), "document"), length,
      positions ? " and model.max_position_embeddings too" : ""));
}

TrainingData open_plainly(const Config& config, const TextProgress& progress) {
  const std::string work_dir = config.job.dump_folder + "/data";
  const bool indexed = is_indexed_prefix(config.data.path);
  if (!indexed && config.data.format == "megatron") {
    throw ConfigError(fmt::format(
        "{} must be one PREFIX of PREFIX.bin and PREFIX.idx with {}; name one (orthant tokenize writes them), "
        "or set data.format to \"text\" or \"jsonl\"",
        config.locate("data.path"), config.locate("data.format")));
  }
  if (indexed && config.data.format == "jsonl") {
    throw ConfigError(
        fmt::format("{} must name files of JSON objects with {}, and is a Megatron PREFIX; set data.format to "
                    "\"megatron\"",
                    config.locate("data.path"), config.locate("data.format")));
  }
  const auto files = indexed ? std::vector<std::string>{} : expand_paths(config.data.path);
  std::shared_ptr<const Tokenizer> tokenizer =
      load_tokenizer(config.data.tokenizer, work_dir, files, text_format(config));
  const auto seed = static_cast<uint64_t>(config.training.seed);
  const Corpus corpus = open_corpus({.paths = config.data.path,
                                     .format = text_format(config),
                                     .validation_fraction = config.data.validation.share,
                                     .validation_paths = config.data.validation.files,
                                     .seed = seed,
                                     .work_dir = work_dir},
                                    *tokenizer, progress);
  require_whole_documents(config, corpus.train, "data.path");
  if (!config.data.validation.files.empty()) require_whole_documents(config, corpus.validation, "data.validation");
  const auto loader = [&](const IndexedDataset& dataset, const std::vector<int64_t>& documents, SampleOrder order) {
    return Loader(dataset, documents, config.training.seq_len, seed, order, masking_of(config, *tokenizer, order));
  };
  TrainingData data{.tokenizer = tokenizer,
                    .train = loader(corpus.train, corpus.train_documents, SampleOrder::kShuffled),
                    .held_out = {},
                    .fingerprint = fingerprint_of(corpus),
                    .text_fingerprint = corpus.text_fingerprint,
                    .bytes_of_token = {},
                    .opening = {}};
  if (!corpus.validation_documents.empty()) {
    data.held_out = loader(corpus.validation, corpus.validation_documents, SampleOrder::kSequential);
    data.opening = opening_of(corpus.validation, corpus.validation_documents.front(), *tokenizer);
  } else {
    data.opening = opening_of(corpus.train, corpus.train_documents.front(), *tokenizer);
  }
  for (int32_t token = 0; token < tokenizer->vocab_size(); ++token)
    data.bytes_of_token.push_back(tokenizer->token_bytes(token));
  return data;
}

}  // namespace

TextFormat text_format(const Config& config) {
  return {.jsonl = config.data.format == "jsonl", .key = config.data.text_key};
}

TrainingData open_training_data(const Config& config, const TextProgress& progress) {
  return explained([&] { return open_plainly(config, progress); });
}

RunFacts facts_of(const TrainingData& data, int ranks) {
  return {.ranks = ranks, .vocab_size = data.tokenizer->vocab_size()};
}

}  // namespace orthant
