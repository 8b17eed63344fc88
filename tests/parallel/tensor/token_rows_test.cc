// The two selections of tokens have the same results: a list of the tokens in a rank's rows, and all tokens with zeros
// for those outside, which a GPU uses.
#include "parallel/tensor/token_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/labels.h"
#include "tests/support/reference_values.h"

namespace orthant::token_rows_test {
namespace {

constexpr int64_t kVocabulary = 13, kTokens = 29, kWidth = 4;

// Ids of every row, several twice, and ignored labels.
at::Tensor ids() {
  at::Tensor ids_N = (at::arange(kTokens) * 7).remainder(kVocabulary);
  ids_N[4] = kIgnoredLabel, ids_N[20] = kIgnoredLabel;
  return ids_N;
}

TEST(TokenRows, BothSelectionsAreEqual) {
  const at::Tensor table_VC = reference_values({kVocabulary, kWidth}, 1), x_NC = reference_values({kTokens, kWidth}, 2);
  const at::Tensor factors_N = reference_values({kTokens}, 3), before_NC = reference_values({kTokens, kWidth}, 4);
  for (const Range& rows : {Range{0, 5}, {5, 13}, {0, 13}, {4, 4}, {13, 13}}) {
    const at::Tensor own_RC = table_VC.narrow(0, rows.begin, rows.size());
    std::vector<std::vector<at::Tensor>> results;
    for (const TokenSelection selection : {TokenSelection::listed, TokenSelection::all}) {
      const TokenRows tokens(ids(), rows, selection);
      const at::Tensor found = tokens.look_up(own_RC).mul(tokens.select(factors_N).unsqueeze(1));
      const at::Tensor by_token_NC = before_NC.clone(), gradient_RC = own_RC.clone();
      tokens.add_to_tokens(by_token_NC, found);
      tokens.add_to_weight(gradient_RC, tokens.select(x_NC));
      results.push_back({tokens.spread(found), by_token_NC, gradient_RC});
    }
    for (size_t i = 0; i < results[0].size(); ++i) {
      EXPECT_TRUE(results[0][i].equal(results[1][i])) << "rows " << rows.begin << ", result " << i;
    }
    at::Tensor want_NC = at::zeros({kTokens, kWidth}, at::kDouble);
    for (int64_t n = 0; n < kTokens; ++n) {
      const auto id = ids()[n].item<int64_t>();
      if (id >= rows.begin && id < rows.end) want_NC[n] = table_VC[id] * factors_N[n];
    }
    EXPECT_TRUE(results[1][0].equal(want_NC)) << "rows " << rows.begin;
  }
}

// A token outside may hold any value: statistics of an ignored label are not finite.
TEST(TokenRows, ValuesOutsideDoNotCount) {
  const at::Tensor values_N = at::full({kTokens}, NAN, at::kDouble);
  const at::Tensor inside = ids().ge(2).logical_and_(ids().lt(6));
  values_N.masked_fill_(inside, 1.0);
  const TokenRows tokens(ids(), {2, 6}, TokenSelection::all);
  EXPECT_TRUE(tokens.select(values_N).equal(inside.to(at::kDouble)));
}

}  // namespace
}  // namespace orthant::token_rows_test
