#include "data/loader.h"

#include <algorithm>

#include "base/errors.h"
#include "base/text.h"
#include "data/permutation.h"

namespace orthant {

Loader::Loader(IndexedDataset dataset, std::vector<int64_t> documents, int64_t seq_len, uint64_t seed,
               SampleOrder order, std::optional<Masking> masking)
    : dataset_(std::move(dataset)),
      documents_(std::move(documents)),
      masking_(masking),
      ahead_(masking ? 0 : 1),
      seq_len_(seq_len),
      seed_(seed),
      order_(order) {
  ORTHANT_CHECK(seq_len >= 1, seq_len);
  starts_.reserve(documents_.size() + 1);
  starts_.push_back(0);
  for (int64_t document : documents_) starts_.push_back(starts_.back() + dataset_.document_length(document));
  const bool training = order == SampleOrder::kShuffled;
  const int64_t needed = (training ? seq_len : 1) + ahead_;
  if (num_tokens() < needed)
    throw ConfigError(fmt::format(
        "{}: {} in {}, but one sample takes {}{}; {}", training ? "data.path (training)" : "data.validation",
        counted(num_tokens(), "token"), counted(static_cast<int64_t>(documents_.size()), "document"),
        !training  ? ""
        : masking_ ? "training.seq_len = "
                   : "training.seq_len + 1 = ",
        grouped(needed),
        training ? "give more text, or lower training.seq_len" : "give more text, or increase data.validation"));
  num_samples_ = (num_tokens() - ahead_ + seq_len_ - 1) / seq_len_;
}

int64_t Loader::sample_index(int64_t g) const {
  ORTHANT_CHECK(g >= 0, g);
  if (order_ == SampleOrder::kSequential) return g < num_samples_ ? g : -1;
  return Permutation(num_samples_, seed_, static_cast<uint64_t>(g / num_samples_))(g % num_samples_);
}

int64_t Loader::sample_tokens(int64_t index) const {
  if (index < 0) return 0;
  return std::min(seq_len_, num_tokens() - ahead_ - index * seq_len_);
}

int64_t Loader::present_tokens(int64_t first, int64_t count) const {
  int64_t tokens = 0;
  for (int64_t g = first; g < first + count; ++g) tokens += sample_tokens(sample_index(g));
  return tokens;
}

int64_t Loader::valid_labels(int64_t first, int64_t count) const {
  if (!masking_) return present_tokens(first, count);
  int64_t labels = 0;
  for (int64_t g = first; g < first + count; ++g)
    labels += count_masked_positions(*masking_, g, sample_tokens(sample_index(g)));
  return labels;
}

void Loader::read_stream(int64_t position, int64_t count, int64_t* out) const {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  // The last document that starts at or before the position. Empty documents before it have the same start.
  size_t k = static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), position) - starts_.begin()) - 1;
  for (int64_t done = 0; done < count; ++k) {
    const int64_t offset = position + done - starts_[k];
    const int64_t take = std::min(count - done, starts_[k + 1] - starts_[k] - offset);
    dataset_.read(documents_[k], offset,
                  std::span(tokens).subspan(static_cast<size_t>(done), static_cast<size_t>(take)));
    done += take;
  }
  std::copy(tokens.begin(), tokens.end(), out);
}

std::vector<int64_t> Loader::document_starts(int64_t position, int64_t count) const {
  std::vector<int64_t> found{0};
  auto start = std::upper_bound(starts_.begin(), starts_.end() - 1, position);
  for (; start != starts_.end() - 1 && *start < position + count; ++start) {
    // Empty documents have the same start as the next one and are skipped.
    if (*start - position > found.back()) found.push_back(*start - position);
  }
  return found;
}

Batch Loader::batch(int64_t first, int64_t count) const {
  ORTHANT_CHECK(first >= 0 && count >= 0, first, count);
  Batch batch{.sequences = count, .seq_len = seq_len_, .tokens = {}, .labels = {}, .sample_ids = {},
              .document_starts = {}, .lengths = {}};
  batch.tokens.assign(static_cast<size_t>(count * seq_len_), 0);
  batch.labels.assign(static_cast<size_t>(count * seq_len_), kIgnoredLabel);
  std::vector<int64_t> sample(static_cast<size_t>(seq_len_ + 1));
  for (int64_t row = 0; row < count; ++row) {
    batch.sample_ids.push_back(first + row);
    const int64_t index = sample_index(first + row);
    const int64_t length = sample_tokens(index);
    batch.lengths.push_back(length);
    batch.document_starts.push_back(length == 0 ? std::vector<int64_t>{0}
                                                : document_starts(index * seq_len_, seq_len_));
    if (length == 0) continue;
    read_stream(index * seq_len_, length + ahead_, sample.data());
    const auto offset = static_cast<size_t>(row * seq_len_), present = static_cast<size_t>(length);
    const std::span tokens = std::span(batch.tokens).subspan(offset, present);
    const std::span labels = std::span(batch.labels).subspan(offset, present);
    std::copy_n(sample.begin(), length, tokens.begin());
    if (masking_) mask_tokens(*masking_, first + row, tokens, labels);
    else std::copy_n(sample.begin() + 1, length, labels.begin());
  }
  const bool all_full = std::ranges::all_of(batch.lengths, [&](int64_t length) { return length == seq_len_; });
  if (!masking_ || all_full) batch.lengths.clear();
  return batch;
}

}  // namespace orthant
