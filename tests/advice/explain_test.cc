// The description of attention, loss and ranks by `orthant plan`, as text and as JSON.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "advice/advised_plan.h"
#include "advice/explain.h"
#include "advice/plan_json.h"
#include "plan/plan.h"
#include "tests/support/says.h"

namespace orthant::explain_test {
namespace {

using Json = nlohmann::json;

TEST(Explain, SaysWhatATokenSees) {
  struct Case {
    std::vector<std::string> keys;
    std::string line;
    Json json;
  };
  const auto json = [](const char* objective, int window, int summaries, bool documents, double cap = 0) {
    return Json{{"objective", objective},
                {"sliding_window", window},
                {"linformer_length", summaries},
                {"attn_logit_softcapping", cap},
                {"mask_documents", documents}};
  };
  const std::string masked = "model.objective=masked", window = "model.sliding_window=16";
  const std::string documents = "data.mask_documents=true";
  const Case table[] = {
      {{"model.attn_logit_softcapping=50"},
       "causal: each token attends to itself and earlier tokens; scores s capped to 50 tanh(s / 50)",
       json("causal", 0, 0, false, 50)},
      {{}, "causal: each token attends to itself and earlier tokens", json("causal", 0, 0, false)},
      {{window},
       "causal: each token attends to itself and earlier tokens, at most 16 in all",
       json("causal", 16, 0, false)},
      {{documents},
       "causal: each token attends to itself and earlier tokens, of its document",
       json("causal", 0, 0, true)},
      {{masked}, "masked: each token attends to earlier and later tokens", json("masked", 0, 0, false)},
      {{masked, window, documents},
       "masked: each token attends to earlier and later tokens, at most 15 on each side, of its document",
       json("masked", 16, 0, true)},
      {{masked, "model.linformer_length=8"},
       "masked: each token attends to 8 learned summaries of its sequence",
       json("masked", 0, 8, false)},
  };
  for (const auto& [keys, line, want] : table) {
    const Config config = parse_config("", "run.toml", keys);
    check_with_advice(config);
    const Plan plan = advised_plan(config, {.ranks = 2, .vocab_size = 257});
    EXPECT_TRUE(says(explain(plan, Sections::all()), {fmt::format("\nattends  {}\n", line)}));
    EXPECT_EQ(Json::parse(plan_json(plan, Sections::all()))["attention"], want) << line;
  }
}

TEST(Explain, SaysWhatTheLossIsWhereItIsNoPlainOne) {
  const auto plan_of = [](const std::vector<std::string>& keys) {
    return advised_plan(parse_config("", "run.toml", keys), {.ranks = 2, .vocab_size = 257});
  };
  EXPECT_EQ(explain(plan_of({}), Sections::all()).find("\nloss "), std::string::npos);
  const Plan plan =
      plan_of({"model.final_logit_softcapping=30", "training.label_smoothing=0.1", "training.z_loss=0.0001"});
  EXPECT_TRUE(says(explain(plan, Sections::all()),
                   {"\nloss     cross entropy; logits y capped to 30 tanh(y / 30); in training 0.1 of "
                    "each label spread evenly; in training 0.0001 of the squared log-sum-exp added\n"}));
  const Json want = {{"final_logit_softcapping", 30.0}, {"label_smoothing", 0.1}, {"z_loss", 0.0001}};
  EXPECT_EQ(Json::parse(plan_json(plan, Sections::all()))["loss"], want);
}

// With 18 tokens over ulysses 2 x ring 2 in zigzag, ranks alternately hold 5 and 4 tokens.
TEST(Explain, NamesTheRanksThatHoldTheSame) {
  const auto text = [](const std::vector<std::string>& keys, int ranks) {
    return explain(advised_plan(parse_config("", "run.toml", keys), {.ranks = ranks, .vocab_size = 257}),
                   Sections::all());
  };
  const std::string ulysses = "parallelism.context_parallel_ulysses=2", ring = "parallelism.context_parallel_ring=2";
  const std::string uneven = text({"training.seq_len=18", ulysses, ring}, 4);
  EXPECT_TRUE(says(uneven, {"\n  0, 2 (2)  ", "\n  1, 3 (2)  "})) << uneven;
  EXPECT_TRUE(says(text({"training.seq_len=16", ulysses, ring}, 4), {"\n  0-3 (4)  "}));
  // A long list of ranks shows its first ranks and the last.
  EXPECT_TRUE(says(text({"training.seq_len=18", ulysses, ring}, 64), {"\n  0, 2, 4, 6, 8, 10, ..., 62 (32)  "}));
}

TEST(Explain, ShowsOnlyTheSectionsThatAreAskedFor) {
  const Plan plan =
      advised_plan(parse_config("", "run.toml", std::vector<std::string>{"parallelism.pipeline_parallel_degree=2"}),
                   {.ranks = 2, .vocab_size = 257});
  const auto titles = [&](const std::vector<std::string>& names) {
    const std::string text = explain(plan, Sections::named(names));
    std::vector<std::string> found;
    for (const char* title : {"\npeak memory of a rank's tensors", "\ncommunication per step", "\nschedule 1f1b",
                              "\nlayouts of 2 ranks", "\nalternatives"}) {
      if (text.find(title) != std::string::npos) found.emplace_back(title + 1);
    }
    EXPECT_TRUE(says(text, {"memory   rank ", "mesh     pipeline 2"}));
    return found.size();
  };
  EXPECT_EQ(titles({}), 0U);
  EXPECT_EQ(titles({"memory"}), 1U);
  EXPECT_EQ(titles({"communication", "schedule"}), 2U);
  EXPECT_EQ(titles({"layouts"}), 2U);
  EXPECT_EQ(titles({"all"}), 5U);
  EXPECT_LT(explain(plan, {}).size(), 2000U);  // one screen
  const Json all = Json::parse(plan_json(plan, Sections::all())), least = Json::parse(plan_json(plan, {}));
  for (const char* field : {"layouts", "tensor_choices", "alternatives", "schedule_choices", "vocabulary_choices",
                            "zero_choices", "recomputation_choices"}) {
    EXPECT_TRUE(all.contains(field)) << field;
    EXPECT_FALSE(least.contains(field)) << field;
  }
}

}  // namespace
}  // namespace orthant::explain_test
