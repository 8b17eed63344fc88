// Helpers of the corpus tests: texts, a work folder, and the tokens of a dataset.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/errors.h"
#include "data/corpus.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant {

inline std::string paragraphs(int count, char letter) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format("{} {}\n\n", std::string(60, letter), i);
  return text;
}

inline std::vector<int32_t> all_tokens(const IndexedDataset& dataset) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < dataset.num_documents(); ++i) {
    std::vector<int32_t> part(dataset.document_length(i));
    dataset.read(i, 0, part);
    tokens.insert(tokens.end(), part.begin(), part.end());
  }
  return tokens;
}

inline std::string text_of(const IndexedDataset& dataset) { return make_byte_tokenizer()->decode(all_tokens(dataset)); }

class CorpusTest : public testing::Test {
 protected:
  Corpus open(std::vector<std::string> paths, double share = 0.0, const TextProgress& progress = {}) {
    return open_corpus(
        {.paths = std::move(paths), .validation_fraction = share, .seed = 7, .work_dir = folder_ / "work"}, *tokenizer_,
        progress);
  }
  TempFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_ = make_byte_tokenizer();
};

}  // namespace orthant
