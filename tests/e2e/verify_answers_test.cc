// The answers of `orthant verify`, as text and as JSON: "ok", or the first tensor that is wrong. Planted faults are
// the negative controls.
#include "app/verify_text.h"
#include "base/json.h"
#include "tests/support/program.h"
#include "tests/support/says.h"
#include "tests/support/tiny_run.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace orthant::verify_answers_test {
namespace {

constexpr const char* kProgram = ORTHANT_BINARY_DIR "/orthant";

TEST(VerifyCommand, SaysOkAsTextAndAsJson) {
  const TinyRun run;
  Program text({kProgram, "verify", run.run_file_path(), "--run.ranks=3"}, {});
  EXPECT_EQ(text.exit_code(), 0) << text.output();
  EXPECT_NE(text.output().find("ok: the layout computes what one device computes"), std::string::npos);
  EXPECT_TRUE(says(text.output(), {"data 3 against one device, float64, 3 steps\n", "error", "bound", "largest at",
                                   "  gradients ", "1.0e-10  model.", ", rank ", "|layout - one device|"}));
  EXPECT_EQ(text.output().find("every layout rounds alike"), std::string::npos) << "float64 runs freely";
  EXPECT_TRUE(says(text.output(), {" in float64: layout "}));
  Program narrow({kProgram, "verify", run.run_file_path(), "--run.ranks=3", "--training.dtype=float32"}, {});
  EXPECT_EQ(narrow.exit_code(), 0) << narrow.output();
  EXPECT_TRUE(says(narrow.output(), {"which every layout rounds alike", " in float32: layout "}));
  Program json({kProgram, "verify", run.run_file_path(), "--run.ranks=3", "--json"}, {});
  EXPECT_EQ(json.exit_code(), 0) << json.output();
  const std::string output = json.output();
  const auto report = parse_json(output.substr(output.find('{')), "verify --json");
  EXPECT_TRUE(report["ok"].get<bool>());
  EXPECT_EQ(report["steps"], 3);
  EXPECT_EQ(report["gradients"]["bound"], 1e-10);
  EXPECT_LE(report["gradients"]["worst_relative_error"].get<double>(), 1e-10);
  EXPECT_LE(report["loss"]["relative_error"].get<double>(), 1e-10);
  EXPECT_GE(report["loss"]["step"].get<int64_t>(), 1);
  EXPECT_LE(report["loss"]["step"].get<int64_t>(), 3);
  EXPECT_FALSE(report["weights"]["worst_name"].get<std::string>().empty());
}

TEST(VerifyAnswers, SayWhereNothingWasCompared) {
  const TinyRun run;
  const std::string text = verify_text(VerifyReport{.steps = 1}, run.plan(2));
  EXPECT_TRUE(says(text, {"nothing was compared", "masked_share"}));
  EXPECT_EQ(text.find("ok:"), std::string::npos);
  EXPECT_EQ(text.find("WRONG"), std::string::npos);
}

TEST(VerifyAnswers, NameTheStepAndTheDtypeOfTheLosses) {
  const TinyRun run;
  const VerifyReport report{
      .ok = true, .steps = 3, .labels = 9, .loss_step = 2, .oracle_loss = 5.25, .layout_loss = 5.5};
  EXPECT_TRUE(says(verify_text(report, run.plan(2)), {"step 2 in float64: layout 5.5, one device 5.25"}));
  const auto json = parse_json(verify_json(report, nullptr, run.plan(2)), "verify_json");
  EXPECT_EQ(json["loss"]["step"], 2);
}

TEST(VerifyAnswers, NameTheTensorOfEveryPlantedMistake) {
  const TinyRun run;
  const Plan plan = run.plan(3);
  for (const Fault fault : {Fault::dropped_reduction, Fault::stray_mean, Fault::wrong_shard}) {
    const VerifyReport report = verify_with_fault(plan, run.data(), 2, fault);
    const std::string text = verify_text(report, plan);
    EXPECT_TRUE(says(text, {"WRONG: step 1, rank 0: the gradient of model.embed_tokens.weight", "1.0e-10"}));
    EXPECT_EQ(text.find("ok:"), std::string::npos);
    const auto json = parse_json(verify_json(report, nullptr, plan), "verify_json");
    EXPECT_FALSE(json["ok"].get<bool>());
    EXPECT_TRUE(says(json["first_difference"].get<std::string>(), {"model.embed_tokens.weight"}));
    EXPECT_GT(json["gradients"]["worst_relative_error"].get<double>(), kSeenInAGradient);
    EXPECT_TRUE(says(json["gradients"]["worst_name"].get<std::string>(), {".weight"}));
  }
}

TEST(VerifyAnswers, NameTheTensorOfMistakesOfTensorMeshes) {
  const TinyRun run({"training.global_batch_size=8", "model.vocab_size=258"});
  const Plan plan = run.plan(8, {"parallelism.tensor_parallel_kind=2.5d", "parallelism.tensor_parallel_mesh=[2,2,2]"});
  for (const Fault fault : {Fault::swapped_groups, Fault::dropped_depth, Fault::mean_over_rows}) {
    const VerifyReport report = verify_with_fault(plan, run.data(), 1, fault);
    const std::string text = verify_text(report, plan);
    EXPECT_TRUE(says(text, {"column 2, row 2, depth 2 against one device",
                            "WRONG: step 1, rank 0: the gradient of model.embed_tokens.weight", "1.0e-10"}));
    EXPECT_EQ(text.find("ok:"), std::string::npos);
    const auto json = parse_json(verify_json(report, nullptr, plan), "verify_json");
    EXPECT_FALSE(json["ok"].get<bool>());
    EXPECT_GT(json["gradients"]["worst_relative_error"].get<double>(), kSeenInAGradient);
  }
}

}  // namespace
}  // namespace orthant::verify_answers_test
