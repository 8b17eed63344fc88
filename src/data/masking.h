// Which tokens of a sample a masked language model has to guess, and what stands in their place: BERT's rule, drawn by
// number, so that no cut into batches, no layout and no resumption changes it, and every epoch masks anew.
//
// Source: Devlin, Chang, Lee and Toutanova, "BERT", 2018 (arXiv 1810.04805), section 3.1, task 1.
#pragma once

#include <cstdint>
#include <span>

namespace orthant {

struct Masking {
  double share = 0.15;     ///< chance of each token to be chosen, in (0, 1]
  int64_t mask_token = 0;  ///< random tokens are drawn from the ids below it
  uint64_t key = 0;        ///< of the draws; training and validation have different ones
};

/// How many of the first `length` places of that sample are chosen: a function of (key, sample, place), not of tokens.
/// Any token may be: end-of-text too, which says where a document ends.
int64_t chosen_places(const Masking& masking, int64_t sample, int64_t length);

/// Of each chosen token, 80 % become the mask token, 10 % a random one, 10 % stay; its label is what it was. Labels of
/// the others are kIgnoredLabel. tokens and labels have the sample's length.
void mask_tokens(const Masking& masking, int64_t sample, std::span<int64_t> tokens, std::span<int64_t> labels);

}  // namespace orthant
