// A fixed sample of the matrix of combinations, and the negative controls of its comparisons. The program
// `combinations` runs the whole matrix.
#include <gtest/gtest.h>

#include "base/text.h"
#include "tests/combinations/outcome.h"
#include "tests/support/ways_out.h"

namespace orthant {
namespace combinations_test {

CombinationRunner& runner() {
  static CombinationRunner one;
  return one;
}

void expect_settled(const Draw& draw) {
  const Settings settings = settings_of(draw);
  const Outcome outcome = runner().run(settings);
  EXPECT_NE(outcome.verdict, Verdict::wrong) << name_of(draw) << ": " << outcome.problem << "\n"
                                             << command_of(settings);
}

void expect_works(const std::vector<std::string>& levels) {
  const Draw draw = draw_named(levels);
  const Settings settings = settings_of(draw);
  const Outcome outcome = runner().run(settings);
  EXPECT_EQ(outcome.verdict, Verdict::works) << name_of(draw) << ": " << outcome.refusal << outcome.problem << "\n"
                                             << command_of(settings);
}

const std::vector<std::string> kCutVocabulary = {"naive", "algorithm_1", "algorithm_2", "interlaced"};

TEST(Combinations, RingSelfAttentionWithTensor) {
  for (const char* tensor : {"1d, 2 columns", "2d [2, 2, 1]", "2.5d [1, 1, 2]", "sequence parallelism off"})
    expect_works({"ring self-attention 2", tensor});
}

TEST(Combinations, RingSelfAttentionWithVocabulary) {
  for (const std::string& vocabulary : kCutVocabulary) expect_works({"ring self-attention 2", vocabulary});
}

TEST(Combinations, DocumentsWindowsAndLinformerWithACutVocabulary) {
  for (const char* feature : {"documents", "window", "Linformer", "Linformer, ring 2"})
    for (const std::string& vocabulary : kCutVocabulary) expect_works({feature, vocabulary});
}

TEST(Combinations, WindowWithTensor) {
  for (const char* tensor : {"1d, 2 columns", "2d [2, 2, 1]", "2d [2, 2, 1], summa", "2.5d [2, 2, 2]"})
    expect_works({"window", tensor});
}

TEST(Combinations, LinformerWithRingAndPipeline) {
  for (const char* schedule : {"1f1b", "zb_v", "interleaved_1f1b"}) expect_works({"Linformer, ring 2", schedule});
}

TEST(Combinations, LinformerWithTensorAndPipeline) {
  for (const char* tensor : {"1d, 2 columns", "2d [2, 2, 1]"})
    for (const char* schedule : {"1f1b", "zb_h1"}) expect_works({"Linformer", tensor, schedule});
}

TEST(Combinations, RingSelfAttentionWithUlyssesAndPipeline) {
  for (const char* schedule : {"1f1b", "zb_v"}) expect_works({"ring self-attention 2", "Ulysses 2", schedule});
}

TEST(Combinations, VocabularyWithTensorAndUlysses) {
  for (const std::string& vocabulary : kCutVocabulary) expect_works({vocabulary, "1d, 2 columns", "Ulysses 2"});
}

// The matrix found this fault: if a microbatch was one sequence, dropout was drawn by positions in the document.
TEST(Combinations, DocumentsWithDropoutAndOneSequenceAMicrobatch) {
  expect_works({"documents", "dropout", "1 sequence a microbatch"});
  expect_works({"documents", "dropout", "7 sequences"});
  expect_works({"documents", "dropout", "ring 2"});
}

TEST(Combinations, EveryTwentiethPair) {
  const std::vector<Draw> pairs = all_pairs();
  for (size_t i = 4; i < pairs.size(); i += 20) expect_settled(pairs[i]);
}

TEST(Combinations, SomeTriples) {
  for (const Draw& draw : random_triples(1, 30)) expect_settled(draw);
}

TEST(Draws, AreTheSameForASeed) {
  EXPECT_EQ(random_triples(3, 50), random_triples(3, 50));
  EXPECT_NE(random_triples(3, 50), random_triples(4, 50));
  for (const Draw& draw : random_triples(3, 50)) EXPECT_LE(ranks_of(config_of(settings_of(draw))), kMostRanks);
}

// Negative controls: the comparison reports one wrong number, one wrong byte and one wrong offered setting.
Settings small_run() { return settings_of(draw_named({"data 2", "ring 2", "tied"})); }

TEST(CombinationControls, AGradientOfTheOracleThatDiffersIsWrong) {
  const Outcome outcome = runner().run_changed(small_run(), [](Plan&, OracleTrace& oracle) {
    oracle.gradients[1] = oracle.gradients[1].clone();
    oracle.gradients[1].narrow(0, 7, 1).add_(1e-6);
  });
  EXPECT_EQ(outcome.verdict, Verdict::wrong);
  EXPECT_NE(outcome.problem.find("step 2, rank 0: the gradient of model.embed_tokens.weight"), std::string::npos)
      << outcome.problem;
}

TEST(CombinationControls, AWeightOfTheOracleThatDiffersIsWrong) {
  const Outcome outcome = runner().run_changed(small_run(), [](Plan&, OracleTrace& oracle) {
    oracle.weights[0] = oracle.weights[0].clone();
    oracle.weights[0].narrow(0, 7, 1).add_(1e-6);
  });
  EXPECT_EQ(outcome.verdict, Verdict::wrong);
  EXPECT_NE(outcome.problem.find("the weight model.embed_tokens.weight"), std::string::npos) << outcome.problem;
}

TEST(CombinationControls, AByteThatWasNotPlannedIsWrong) {
  const Outcome outcome = runner().run_changed(small_run(), [](Plan& plan, OracleTrace&) {
    plan.communication.front().bytes.front() += 1;  // the first class has rank 0
  });
  EXPECT_EQ(outcome.verdict, Verdict::wrong);
  EXPECT_NE(outcome.problem.find("step 1, rank 0: sends"), std::string::npos) << outcome.problem;
}

TEST(CombinationControls, ACallThatWasNotPlannedIsWrong) {
  const auto change = [](Plan& plan, OracleTrace&) { plan.communication.pop_back(); };
  const Outcome outcome = runner().run_changed(small_run(), change);
  EXPECT_EQ(outcome.verdict, Verdict::wrong);
  EXPECT_NE(outcome.problem.find(" bytes in 2 calls of all_reduce over "), std::string::npos) << outcome.problem;
  EXPECT_NE(outcome.problem.find(" bytes in 1 call"), std::string::npos) << outcome.problem;
}

TEST(CombinationControls, AnOfferedSettingThatIsRefusedIsWrong) {
  const auto verdict = [](const std::string& refusal) { return runner().follow(small_run(), refusal).verdict; };
  EXPECT_EQ(verdict("training.seq_len = 16 (default): no reason; set it to 12"), Verdict::refused);
  EXPECT_EQ(verdict("training.seq_len = 16 (default): no reason; set it to 1"), Verdict::wrong);
  EXPECT_EQ(verdict("training.seq_len = 16 (default): no reason; set it to 12, or run.ranks to 7"), Verdict::wrong);
  EXPECT_EQ(verdict("training.seq_len = 16 (default): no reason; lower it"), Verdict::wrong);
  EXPECT_EQ(verdict("this cannot be"), Verdict::wrong);
}

}  // namespace combinations_test
}  // namespace orthant
