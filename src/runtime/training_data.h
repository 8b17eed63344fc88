// The data of a run: tokenizer, training and held-out samples, as the run file's [data] section names them.
#pragma once

#include "data/corpus.h"
#include "data/loader.h"
#include "data/tokenizer.h"
#include "plan/plan.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace orthant {

struct TrainingData {
  std::shared_ptr<const Tokenizer> tokenizer;
  Loader train;
  std::optional<Loader> held_out;
  uint64_t fingerprint = 0;              // of the documents trained on and their tokens
  std::optional<uint64_t> text_fingerprint;  // of the text of data.path; none for a Megatron PREFIX
  std::vector<int32_t> bytes_of_token;   // text bytes that each id stands for
  std::string opening;                   // the beginning of a held-out (else the first) document: a prompt for samples
};

/// Opens, and where it has not been done before tokenizes, the corpus; work files go to DUMP/data. Throws ConfigError
/// or DataError.
TrainingData open_training_data(const Config& config, const TextProgress& progress = {});

/// What planning needs to know of it.
RunFacts facts_of(const TrainingData& data, int ranks);

}  // namespace orthant
