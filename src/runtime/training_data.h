// The data of a run, as the run file's [data] section names them: tokenizer, training samples, validation samples.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "config/hf_config.h"
#include "data/corpus.h"
#include "data/loader.h"
#include "data/tokenizer.h"
#include "plan/plan.h"

namespace orthant {

/// Samples for validation, in the order of their documents. The name is empty if there is only one set.
struct ValidationSet {
  std::string name;
  Loader samples;
};

struct TrainingData {
  /// The ids that end a text: those of model_from, or else the tokenizer's end-of-text id.
  std::vector<int64_t> end_tokens() const;

  std::shared_ptr<const Tokenizer> tokenizer;
  Loader train;
  std::vector<ValidationSet> validation;
  uint64_t fingerprint = 0;  // of the training documents and their tokens
  uint64_t validation_fingerprint = 0;       // of the documents held out, and their tokens
  std::optional<uint64_t> text_fingerprint;  // of the text of data.path; none for a Megatron PREFIX
  std::vector<int32_t> bytes_of_token;  // bytes of text, by token id
  std::optional<HfConfig> model_from;   // of model.from, if the tokenizer is that model's
  std::string chat_template;            // text of the template that wrote the conversations; empty without one
  int64_t num_files_read = 0;           // completely, to compare or compute their hashes
  std::string opening;                  // start of the first validation (else training) document: a prompt for samples
};

/// The format of the files of data.path, by data.format and data.text_key.
TextFormat text_format(const Config& config);

/// Opens the corpus, and tokenizes it if that has not been done. Work files go to DUMP/data. `readings`, if given, has
/// results of reading whole files, and gets those of this call. Throws ConfigError or DataError.
TrainingData open_training_data(const Config& config, const TextProgress& progress = {},
                                FileReadings* readings = nullptr);

/// The facts that planning needs, without hardware.
RunFacts facts_of(const TrainingData& data, int ranks);

}  // namespace orthant
