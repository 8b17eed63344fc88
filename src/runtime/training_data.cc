#include "runtime/training_data.h"

#include "base/text.h"

#include <algorithm>

namespace orthant {
namespace {

// About a line of text, cut behind a word.
std::string opening_of(const IndexedDataset& dataset, int64_t document, const Tokenizer& tokenizer) {
  std::vector<int32_t> tokens(static_cast<size_t>(std::min<int64_t>(80, dataset.document_length(document))));
  dataset.read(document, 0, tokens);
  std::string text = tokenizer.decode(tokens).substr(0, 72);
  const size_t space = text.find_last_of(" \n");
  if (space != std::string::npos && space > 8) text.resize(space);
  return std::string(trim(text));
}

}  // namespace

TrainingData open_training_data(const Config& config, const TextProgress& progress) {
  const std::string work_dir = config.job.dump_folder + "/data";
  const bool indexed = is_indexed_prefix(config.data.path);
  const auto files = indexed ? std::vector<std::string>{} : expand_paths(config.data.path);
  std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(config.data.tokenizer, work_dir, files);
  const auto seed = static_cast<uint64_t>(config.training.seed);
  const Corpus corpus = open_corpus({.paths = config.data.path,
                                     .validation_share = config.data.validation.share,
                                     .validation_paths = config.data.validation.files,
                                     .seed = seed,
                                     .work_dir = work_dir},
                                    *tokenizer, progress);
  const int64_t seq_len = config.training.seq_len;
  TrainingData data{.tokenizer = tokenizer,
                    .train = Loader(corpus.train, corpus.train_documents, seq_len, seed, SampleOrder::kShuffled),
                    .held_out = {},
                    .fingerprint = corpus.train.fingerprint(),
                    .bytes_of_token = {},
                    .opening = {}};
  if (!corpus.validation_documents.empty()) {
    data.held_out.emplace(corpus.validation, corpus.validation_documents, seq_len, seed, SampleOrder::kSequential);
    data.opening = opening_of(corpus.validation, corpus.validation_documents.front(), *tokenizer);
  } else {
    data.opening = opening_of(corpus.train, corpus.train_documents.front(), *tokenizer);
  }
  for (int32_t token = 0; token < tokenizer->vocab_size(); ++token) data.bytes_of_token.push_back(tokenizer->token_bytes(token));
  return data;
}

RunFacts facts_of(const TrainingData& data, int ranks) {
  return {.ranks = ranks, .vocab_size = data.tokenizer->vocab_size()};
}

}  // namespace orthant
