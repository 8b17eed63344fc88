#include "data/text_samples.h"

#include <algorithm>

#include "base/errors.h"
#include "base/text.h"

namespace orthant {

TextSamples::TextSamples(IndexedDataset dataset, std::vector<int64_t> documents, int64_t seq_len, TextLabel label,
                         const std::string& key)
    : dataset_(std::move(dataset)),
      documents_(std::move(documents)),
      ahead_(label == TextLabel::kNextToken ? 1 : 0),
      seq_len_(seq_len) {
  ORTHANT_CHECK(seq_len >= 1, seq_len);
  starts_.reserve(documents_.size() + 1);
  starts_.push_back(0);
  for (int64_t document : documents_) starts_.push_back(starts_.back() + dataset_.document_length(document));
  if (num_tokens() <= ahead_) {
    throw ConfigError(fmt::format("{}: {} in {}, but a sample takes at least {}; give more text", key,
                                  counted(num_tokens(), "token"),
                                  counted(static_cast<int64_t>(documents_.size()), "document"), ahead_ + 1));
  }
  num_samples_ = (num_tokens() - ahead_ + seq_len_ - 1) / seq_len_;
}

int64_t TextSamples::length(int64_t sample) const {
  return std::min(seq_len_, num_tokens() - ahead_ - sample * seq_len_);
}

void TextSamples::read_stream(int64_t position, std::span<int32_t> out) const {
  // The last document that starts at or before the position. Empty documents before it have the same start.
  size_t k = static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), position) - starts_.begin()) - 1;
  const auto count = static_cast<int64_t>(out.size());
  for (int64_t done = 0; done < count; ++k) {
    const int64_t offset = position + done - starts_[k];
    const int64_t take = std::min(count - done, starts_[k + 1] - starts_[k] - offset);
    dataset_.read(documents_[k], offset, out.subspan(static_cast<size_t>(done), static_cast<size_t>(take)));
    done += take;
  }
}

std::vector<int64_t> TextSamples::document_starts(int64_t position, int64_t count) const {
  std::vector<int64_t> found{0};
  auto start = std::upper_bound(starts_.begin(), starts_.end() - 1, position);
  for (; start != starts_.end() - 1 && *start < position + count; ++start) {
    // Empty documents have the same start as the next one and are skipped.
    if (*start - position > found.back()) found.push_back(*start - position);
  }
  return found;
}

std::vector<int64_t> TextSamples::read(int64_t sample, std::span<int64_t> tokens, std::span<int64_t> labels) const {
  std::vector<int32_t> stream(tokens.size() + static_cast<size_t>(ahead_));
  read_stream(sample * seq_len_, stream);
  std::copy_n(stream.begin(), tokens.size(), tokens.begin());
  std::copy_n(stream.begin() + ahead_, labels.size(), labels.begin());
  return document_starts(sample * seq_len_, std::ssize(tokens));
}

}  // namespace orthant
