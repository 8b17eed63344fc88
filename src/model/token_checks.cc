#include "model/token_checks.h"

#include <span>

#include "base/errors.h"
#include "base/labels.h"

namespace orthant {
namespace {

// `kind` names the ids in the message.
void check_ids(const at::Tensor& ids, int64_t vocabulary, const char* kind, bool may_be_ignored) {
  if (!ids.is_cpu()) return;
  const at::Tensor all = ids.contiguous();
  const std::span numbers(all.const_data_ptr<int64_t>(), static_cast<size_t>(all.numel()));
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int64_t id = numbers[i];
    if ((id >= 0 && id < vocabulary) || (may_be_ignored && id == kIgnoredLabel)) continue;
    throw DataError(
        fmt::format("{} {} at position {} of the microbatch is outside the vocabulary of {}", kind, id, i, vocabulary));
  }
}

}  // namespace

void check_tokens(const at::Tensor& tokens, int64_t vocabulary) { check_ids(tokens, vocabulary, "token", false); }
void check_labels(const at::Tensor& labels, int64_t vocabulary) { check_ids(labels, vocabulary, "label", true); }

}  // namespace orthant
