// BERT's masking: selects the tokens of a sample that a masked language model must predict, and replaces them. The
// selection is a function of the sample number, so it depends on no batch size, layout or resumption; every epoch
// selects anew.
//
// Source: Devlin, Chang, Lee and Toutanova, "BERT", 2018 (arXiv 1810.04805), section 3.1, task 1.
#pragma once

#include <cstdint>
#include <span>

namespace orthant {

struct Masking {
  double fraction = 0.15;  ///< probability of selecting a token, in (0, 1]
  int64_t mask_token = 0;  ///< id of the mask token; random tokens are drawn from the ids below it
  uint64_t key = 0;        ///< random key; training and validation use different ones
};

/// Number of selected positions among the first `length` of the sample: a function of (key, sample, position), not of
/// tokens. Any token may be selected, end-of-text included.
int64_t count_masked_positions(const Masking& masking, int64_t sample, int64_t length);

/// Replaces 80 % of the selected tokens by the mask token and 10 % by a random one, and keeps 10 %. Labels of selected
/// tokens are the original tokens; all others are kIgnoredLabel. tokens and labels must have the sample's length.
void mask_tokens(const Masking& masking, int64_t sample, std::span<int64_t> tokens, std::span<int64_t> labels);

}  // namespace orthant
