// TokenRows: the tokens whose id is one of a rank's rows of the vocabulary. The rows of a weight belong to them in the
// embedding (ids are tokens) and in the loss (ids are labels).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "mesh/layout.h"

namespace orthant {

/// The values that TokenRows returns and takes: `listed` has one for each token in the rows, in order of tokens, and
/// `all` has one for each token, which is 0 outside. For `all` the host does not need the number of tokens in the rows,
/// for which it would wait for a GPU.
enum class TokenSelection { listed, all };

/// The selection for the device that holds the ids.
TokenSelection selection_for(const at::Tensor& ids);

class TokenRows {
 public:
  /// ids_N: int64. `rows`: ids whose rows the rank has.
  TokenRows(const at::Tensor& ids_N, const Range& rows, TokenSelection selection);
  TokenRows(const at::Tensor& ids_N, const Range& rows) : TokenRows(ids_N, rows, selection_for(ids_N)) {}

  /// Returns the selected tokens' rows of the rank's part of a weight [R,C], or their parts of a tensor [N,...].
  at::Tensor look_up(const at::Tensor& weight_RC) const;
  at::Tensor select(const at::Tensor& of_tokens) const;

  /// Values of the selected tokens as [N,C], with 0 for tokens outside.
  at::Tensor spread(const at::Tensor& selected) const;
  /// Adds values of the selected tokens to the rows of tokens [N,C], or to their rows of a gradient [R,C].
  void add_to_tokens(const at::Tensor& sum_NC, const at::Tensor& selected) const;
  void add_to_weight(const at::Tensor& sum_RC, const at::Tensor& selected) const;

 private:
  int64_t tokens_;
  at::Tensor selected_;     // listed: indices of the selected tokens
  at::Tensor outside_;      // all: true for tokens outside
  at::Tensor weight_rows_;  // row of each selected token; outside, any row, different ones for neighboring tokens
};

}  // namespace orthant
