#include "data/chat_samples.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/errors.h"
#include "base/labels.h"
#include "base/text.h"

namespace orthant {

ChatSamples::ChatSamples(IndexedDataset tokens, IndexedDataset loss_mask, std::span<const int64_t> documents,
                         int64_t seq_len, ConversationsPerSample per_sample, const std::string& key)
    : tokens_(std::move(tokens)), loss_mask_(std::move(loss_mask)), seq_len_(seq_len) {
  const bool packs = per_sample == ConversationsPerSample::kSeveral;
  std::vector<int64_t> ordered(documents.begin(), documents.end());
  if (packs) std::ranges::stable_sort(ordered, std::greater{}, [&](int64_t document) { return kept_tokens(document); });
  std::multimap<int64_t, size_t> samples_by_room;
  for (const int64_t document : ordered) {
    const int64_t length = kept_tokens(document);
    if (length == 0) continue;
    const std::vector<int32_t> flags = flags_of(document);
    const int64_t labels_of_document = std::accumulate(flags.begin() + 1, flags.end(), int64_t{0});
    if (labels_of_document == 0) continue;
    const auto fitting = packs ? samples_by_room.lower_bound(length) : samples_by_room.end();
    const size_t index = fitting == samples_by_room.end() ? samples_.size() : fitting->second;
    if (fitting == samples_by_room.end()) {
      samples_.emplace_back();
    } else {
      samples_by_room.erase(fitting);
    }
    Sample& sample = samples_[index];
    sample.documents.push_back(document);
    sample.length += length;
    sample.labels += labels_of_document;
    samples_by_room.emplace(seq_len_ - sample.length, index);
    num_tokens_ += length;
  }
  if (samples_.empty()) {
    throw ConfigError(fmt::format(
        "{}: none of the first training.seq_len = {} tokens of {} carries loss; give conversations with answers there, "
        "or increase training.seq_len",
        key, seq_len, counted(static_cast<int64_t>(documents.size()), "conversation")));
  }
}

int64_t ChatSamples::kept_tokens(int64_t document) const {
  return std::min(seq_len_, tokens_.document_length(document));
}

std::vector<int32_t> ChatSamples::flags_of(int64_t document) const {
  std::vector<int32_t> flags(static_cast<size_t>(kept_tokens(document)));
  loss_mask_.read(document, 0, flags);
  return flags;
}

std::vector<int64_t> ChatSamples::read(int64_t sample, std::span<int64_t> tokens, std::span<int64_t> labels) const {
  std::vector<int64_t> starts;
  std::fill(labels.begin(), labels.end(), kIgnoredLabel);
  size_t at = 0;
  for (const int64_t document : samples_[static_cast<size_t>(sample)].documents) {
    starts.push_back(static_cast<int64_t>(at));
    const std::vector<int32_t> flags = flags_of(document);
    std::vector<int32_t> ids(flags.size());
    tokens_.read(document, 0, ids);
    for (size_t i = 0; i < ids.size(); ++i) {
      tokens[at + i] = ids[i];
      if (i > 0 && flags[i] != 0) labels[at + i - 1] = ids[i];
    }
    at += ids.size();
  }
  return starts;
}

}  // namespace orthant
