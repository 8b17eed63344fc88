#include "data/loader.h"

#include <algorithm>

#include "base/errors.h"
#include "data/permutation.h"

namespace orthant {

Loader::Loader(Sources sources, const std::vector<double>& weights, int64_t seq_len, uint64_t seed, SampleOrder order,
               std::optional<Masking> masking)
    : sources_(std::move(sources)), blend_(weights), masking_(masking), seq_len_(seq_len), seed_(seed), order_(order) {
  ORTHANT_CHECK(sources_.size() == weights.size(), sources_.size(), weights.size());
  ORTHANT_CHECK(order == SampleOrder::kShuffled || sources_.size() == 1, sources_.size());
  for (const auto& source : sources_) {
    ORTHANT_CHECK(source->num_samples() >= 1);
    num_samples_ += source->num_samples();
  }
}

int64_t Loader::num_tokens() const {
  int64_t tokens = 0;
  for (const auto& source : sources_) tokens += source->num_tokens();
  return tokens;
}

std::optional<BlendedSample> Loader::find(int64_t g) const {
  ORTHANT_CHECK(g >= 0, g);
  if (order_ == SampleOrder::kSequential) return g < num_samples_ ? std::optional(BlendedSample{0, g}) : std::nullopt;
  const BlendedSample sample = blend_(g);
  const int64_t size = sources_[static_cast<size_t>(sample.source)]->num_samples();
  const Permutation order(size, seed_ + static_cast<uint64_t>(sample.source),
                          static_cast<uint64_t>(sample.number / size));
  return BlendedSample{sample.source, order(sample.number % size)};
}

int64_t Loader::present_tokens(int64_t first, int64_t count) const {
  int64_t tokens = 0;
  for (int64_t g = first; g < first + count; ++g) {
    if (const auto sample = find(g)) tokens += sources_[static_cast<size_t>(sample->source)]->length(sample->number);
  }
  return tokens;
}

int64_t Loader::valid_labels(int64_t first, int64_t count) const {
  int64_t labels = 0;
  for (int64_t g = first; g < first + count; ++g) {
    const auto sample = find(g);
    if (!sample) continue;
    const SampleSource& source = *sources_[static_cast<size_t>(sample->source)];
    labels += masking_ ? count_masked_positions(*masking_, g, source.length(sample->number))
                       : source.num_labels(sample->number);
  }
  return labels;
}

Batch Loader::batch(int64_t first, int64_t count) const {
  ORTHANT_CHECK(first >= 0 && count >= 0, first, count);
  Batch batch{.sequences = count, .seq_len = seq_len_, .tokens = {}, .labels = {}, .sample_ids = {},
              .document_starts = {}, .lengths = {}};
  batch.tokens.assign(static_cast<size_t>(count * seq_len_), 0);
  batch.labels.assign(static_cast<size_t>(count * seq_len_), kIgnoredLabel);
  for (int64_t row = 0; row < count; ++row) {
    batch.sample_ids.push_back(first + row);
    const auto sample = find(first + row);
    if (!sample) {
      batch.lengths.push_back(0);
      batch.document_starts.push_back({0});
      continue;
    }
    const SampleSource& source = *sources_[static_cast<size_t>(sample->source)];
    const int64_t length = source.length(sample->number);
    const auto offset = static_cast<size_t>(row * seq_len_), present = static_cast<size_t>(length);
    const std::span tokens = std::span(batch.tokens).subspan(offset, present);
    const std::span labels = std::span(batch.labels).subspan(offset, present);
    batch.lengths.push_back(length);
    batch.document_starts.push_back(source.read(sample->number, tokens, labels));
    if (masking_) mask_tokens(*masking_, first + row, tokens, labels);
  }
  const bool all_full = std::ranges::all_of(batch.lengths, [&](int64_t length) { return length == seq_len_; });
  if (!masking_ || all_full) batch.lengths.clear();
  return batch;
}

}  // namespace orthant
