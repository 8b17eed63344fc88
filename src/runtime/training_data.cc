// Opens tokenizer, corpus and loaders from the run file, and computes the fingerprints that a resumed run is checked
// by.
#include "runtime/training_data.h"

#include <algorithm>
#include <bit>
#include <filesystem>

#include "base/file_errors.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/chat_samples.h"
#include "data/text_samples.h"

namespace orthant {
namespace {

constexpr const char* kTrainingKey = "data.path";

uint64_t seed_of(const Config& config) { return static_cast<uint64_t>(config.training.seed); }

// The masking of samples for the masked objective. Training and validation use different keys, so that samples with the
// same number are masked differently.
std::optional<Masking> masking_of(const Config& config, const Tokenizer& tokenizer, SampleOrder order) {
  if (config.model.objective == "causal") return std::nullopt;
  const std::string_view occasion = order == SampleOrder::kShuffled ? "masks of training" : "masks of validation";
  return Masking{.fraction = config.model.masked_share,
                 .mask_token = mask_token(tokenizer.vocab_size()),
                 .key = mix64(seed_of(config) ^ xxh3(occasion))};
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

// Adds the chosen documents and their tokens. Of a large dataset, it includes an evenly spaced selection of tokens.
void add_documents(Hasher& hasher, const IndexedDataset& dataset, std::span<const int64_t> chosen) {
  constexpr int64_t kWindow = 1024, kMostTokens = int64_t{1} << 24;
  hasher.add_field(dataset.fingerprint());
  std::vector<int32_t> tokens;
  const int64_t every = std::max<int64_t>(1, dataset.num_tokens() / kMostTokens);
  int64_t window = 0;
  for (const int64_t document : chosen) {
    hasher.add_field(static_cast<uint64_t>(document));
    for (int64_t begin = 0; begin < dataset.document_length(document); begin += kWindow) {
      if (window++ % every != 0) continue;
      tokens.resize(static_cast<size_t>(std::min(kWindow, dataset.document_length(document) - begin)));
      dataset.read(document, begin, tokens);
      hasher.add({reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(int32_t)});
    }
  }
}

// Fingerprint of the chosen documents, their tokens and loss masks, and the weights of a blend.
uint64_t fingerprint_of(const std::vector<Documents>& sets, const std::vector<double>& weights) {
  Hasher hasher;
  for (const Documents& documents : sets) {
    add_documents(hasher, documents.tokens, documents.chosen);
    if (documents.loss_mask) add_documents(hasher, *documents.loss_mask, documents.chosen);
  }
  for (const double weight : weights) hasher.add_field(std::bit_cast<uint64_t>(weight));
  return hasher.digest();
}

// Throws ConfigError if a document is longer than a sample and must not be cut. A shorter document may still cross the
// end of a sample, as in any stream of packed samples; a longer one always does. `key` and `set` name the dataset.
void require_whole_documents(const Config& config, const IndexedDataset& dataset, const std::string& key,
                             const std::string& set) {
  const bool is_chat = config.data.format == "chat";
  if ((!config.data.mask_documents && !is_chat) || config.data.long_documents == "cut") return;
  int64_t longest = 0, length = 0, longer = 0;
  for (int64_t document = 0; document < dataset.num_documents(); ++document) {
    const int64_t tokens = dataset.document_length(document);
    if (tokens > length) longest = document, length = tokens;
    if (tokens > config.training.seq_len) ++longer;
  }
  if (longer == 0) return;
  const bool positions = length > config.model.max_position_embeddings;
  const std::string law = is_chat ? config.locate("data.format") + ": a sample holds complete conversations"
                                  : config.locate("data.mask_documents") + ": attention would stay inside documents";
  throw ConfigError(fmt::format(
      "{}, but document {} (from 0) of {} has {} tokens, more than {}; {} of {} do. Set training.seq_len to at least "
      "{}{}, or data.long_documents to \"cut\" ({})",
      law, longest, set.empty() ? config.locate(key) : fmt::format("{} of {}", set, config.locate(key)), length,
      config.locate("training.seq_len"), longer, counted(dataset.num_documents(), "document"), length,
      positions ? " and model.max_position_embeddings too" : "",
      is_chat ? "the rest of each is then left out" : "they are cut where samples end"));
}

// Throws ConfigError if the training documents fill less than one sample. `key` names them.
void require_full_sample(const Config& config, const TextSamples& samples, int64_t documents, const std::string& key) {
  const bool is_masked = config.model.objective == "masked";
  const int64_t needed = config.training.seq_len + (is_masked ? 0 : 1);
  if (samples.num_tokens() >= needed) return;
  throw ConfigError(
      fmt::format("{}: {} in {} for training, but one sample takes {}{}; give more text, or lower training.seq_len",
                  key, counted(samples.num_tokens(), "token"), counted(documents, "document"),
                  is_masked ? "training.seq_len = " : "training.seq_len + 1 = ", grouped(needed)));
}

// `key` is data.path or data.validation.
std::shared_ptr<const SampleSource> samples_of(const Config& config, const Documents& documents,
                                               const std::string& key) {
  require_whole_documents(config, documents.tokens, key, documents.name);
  const std::string name = documents.name.empty() ? key : fmt::format("{} ({})", key, documents.name);
  if (documents.loss_mask) {
    return std::make_shared<ChatSamples>(
        documents.tokens, *documents.loss_mask, documents.chosen, config.training.seq_len,
        config.data.mask_documents ? ConversationsPerSample::kSeveral : ConversationsPerSample::kOne, name);
  }
  const TextLabel label = config.model.objective == "masked" ? TextLabel::kSameToken : TextLabel::kNextToken;
  auto samples =
      std::make_shared<TextSamples>(documents.tokens, documents.chosen, config.training.seq_len, label, name);
  if (key == kTrainingKey) require_full_sample(config, *samples, std::ssize(documents.chosen), name);
  return samples;
}

Loader training_loader(const Config& config, const Corpus& corpus, const Tokenizer& tokenizer) {
  Loader::Sources sources;
  for (const Documents& documents : corpus.training) sources.push_back(samples_of(config, documents, kTrainingKey));
  const std::vector<double>& weights = config.data.weights;
  return {std::move(sources),      weights.empty() ? std::vector{1.0} : weights,
          config.training.seq_len, seed_of(config),
          SampleOrder::kShuffled,  masking_of(config, tokenizer, SampleOrder::kShuffled)};
}

std::vector<ValidationSet> validation_sets(const Config& config, const Corpus& corpus, const Tokenizer& tokenizer) {
  std::vector<ValidationSet> sets;
  for (const Documents& documents : corpus.validation) {
    const auto samples = samples_of(config, documents, "data.validation");
    sets.push_back(
        {documents.name, Loader({samples}, {1.0}, config.training.seq_len, seed_of(config), SampleOrder::kSequential,
                                masking_of(config, tokenizer, SampleOrder::kSequential))});
  }
  return sets;
}

// The config.json of model.from, if the tokenizer lies in its directory.
std::optional<HfConfig> model_of_tokenizer(const Config& config) {
  if (config.model.from.empty()) return std::nullopt;
  const auto folder = [](const std::filesystem::path& path) { return std::filesystem::weakly_canonical(path); };
  const std::filesystem::path tokenizer = config.data.tokenizer;
  if (folder(tokenizer.parent_path()) != folder(config.model.from)) return std::nullopt;
  return read_hf_config(config.model.from);
}

TrainingData open_plainly(const Config& config, const TextProgress& progress, FileReadings& readings) {
  const std::string work_dir = config.job.dump_folder + "/data";
  const bool is_blend = !config.data.weights.empty();
  check_prefixes(config.data.path, config.data.format, is_blend, config.locate("data.path"));
  for (const NamedFiles& set : config.data.validation.sets) {
    check_prefixes(set.files, config.data.format == "megatron" ? "text" : config.data.format, false,
                   config.locate("data.validation"));
  }
  std::shared_ptr<const Tokenizer> tokenizer =
      load_tokenizer(config.data.tokenizer, work_dir, text_files_of(config.data.path), text_format(config), &readings);
  std::optional<ChatTemplate> chat_template;
  if (config.data.format == "chat") chat_template.emplace(config.data.chat_template, config.data.tokenizer);
  const Corpus corpus = open_corpus({.paths = config.data.path,
                                     .is_blend = is_blend,
                                     .format = text_format(config),
                                     .chat_template = chat_template ? &*chat_template : nullptr,
                                     .validation_fraction = config.data.validation.fraction,
                                     .validation_sets = config.data.validation.sets,
                                     .seed = seed_of(config),
                                     .work_dir = work_dir,
                                     .readings = &readings},
                                    *tokenizer, progress);
  const Documents& shown = corpus.validation.empty() ? corpus.training.front() : corpus.validation.front();
  TrainingData data{.tokenizer = tokenizer,
                    .train = training_loader(config, corpus, *tokenizer),
                    .validation = validation_sets(config, corpus, *tokenizer),
                    .fingerprint = fingerprint_of(corpus.training, config.data.weights),
                    .validation_fingerprint = fingerprint_of(corpus.validation, {}),
                    .text_fingerprint = corpus.text_fingerprint,
                    .bytes_of_token = {},
                    .model_from = model_of_tokenizer(config),
                    .chat_template = chat_template ? chat_template->text() : "",
                    .num_files_read = readings.num_read(),
                    .opening = opening_of(shown.tokens, shown.chosen.front(), *tokenizer)};
  for (int32_t token = 0; token < tokenizer->vocab_size(); ++token)
    data.bytes_of_token.push_back(tokenizer->token_bytes(token));
  return data;
}

}  // namespace

std::vector<int64_t> TrainingData::end_tokens() const {
  return model_from ? orthant::end_tokens(*model_from, tokenizer->end_of_text())
                    : std::vector<int64_t>{tokenizer->end_of_text()};
}

TextFormat text_format(const Config& config) {
  const DocumentFormat documents = config.data.format == "jsonl"  ? DocumentFormat::kJsonl
                                   : config.data.format == "chat" ? DocumentFormat::kChat
                                                                  : DocumentFormat::kPlain;
  return {.documents = documents, .key = config.data.text_key};
}

TrainingData open_training_data(const Config& config, const TextProgress& progress, FileReadings* readings) {
  FileReadings own;
  return explained([&] { return open_plainly(config, progress, readings != nullptr ? *readings : own); });
}

RunFacts facts_of(const TrainingData& data, int ranks) {
  return {.ranks = ranks, .vocab_size = data.tokenizer->vocab_size()};
}

}  // namespace orthant
