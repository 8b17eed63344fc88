// The table of all tensor meshes with the run's number of ranks: elements received, bytes sent and memory; and the mesh
// that "auto" takes.
#include "advice/tensor_choices.h"

#include <gtest/gtest.h>

#include <set>

#include "advice/explain.h"
#include "base/errors.h"
#include "tests/support/says.h"
#include "tests/support/tensor_plans.h"

namespace orthant::tensor_choices_test {
namespace {

// An arrangement whose columns leave too few heads for Ulysses is refused in the table only. The run file, which asks
// for another arrangement, is legal.
TEST(TensorChoices, LeaveHeadsToUlysses) {
  const Plan plan =
      plan_of(16, {"tensor_parallel_kind=2d", "tensor_parallel_mesh=[2,1,1]", "context_parallel_ulysses=8"});
  for (const TensorChoice& choice : tensor_choices(plan)) {
    EXPECT_EQ(choice.refusal.find("must leave at least 8 heads") != std::string::npos, choice.tensor.columns == 2)
        << choice.name;
  }
}

// The formula's elements of a layer equal the elements that the blocks send in all microbatches, averaged over all
// ranks.
TEST(TensorChoices, WordsAreWhatTheBlocksSend) {
  for (const char* recompute : {"none", "full"}) {
    for (const char* local : {"1", "2", "8"}) {
      const std::vector<std::string> more = {std::string("activation_checkpoint.mode=") + recompute,
                                             std::string("training.local_batch_size=") + local,
                                             std::string("model.num_key_value_heads=") + (*local == '2' ? "2" : "4"),
                                             "training.dtype=float32", "model.intermediate_size=64"};
      for (const std::string mesh : {"[2,2,1]", "[4,2,1]", "[2,4,1]", "[8,1,1]", "[1,4,2]", "[2,2,2]"}) {
        const std::string kind = mesh.ends_with("1]") ? "2d" : "2.5d";
        const int ranks = mesh == "[2,2,1]" ? 4 : 8;
        const Plan plan = plan_of(ranks, {"tensor_parallel_kind=" + kind, "tensor_parallel_mesh=" + mesh}, more);
        double bytes = 0;
        for (const CommunicationEntry& entry : plan.communication) {
          const bool blocks = entry.what.find("blocks") != std::string::npos;
          if (!blocks || entry.what.starts_with("statistics")) continue;
          for (int rank = 0; rank < ranks; ++rank) bytes += static_cast<double>(plan.bytes_of(entry, rank));
        }
        for (const TensorChoice& choice : tensor_choices(plan)) {
          if (!choice.chosen) continue;
          const double layers = static_cast<double>(plan.architecture.num_hidden_layers);
          const double elements =
              (choice.received_elements.forward + choice.received_elements.backward) * layers * ranks;
          EXPECT_NEAR(bytes / 4 / elements, 1, 1e-12)
              << mesh << ", local batch " << local << ", recompute " << recompute;
          EXPECT_EQ(choice.sent_bytes, plan.largest_communication_bytes());
        }
      }
    }
  }
}

// If a schedule splits backward, W gathers again a part of what I gathered. The formula counts this for the
// microbatches whose backward is split.
TEST(TensorChoices, WordsKnowOfSplitBackwards) {
  for (const char* schedule : {"1f1b", "zb_h1", "dual_pipe_v"}) {
    for (const std::vector<std::string>& keys :
         {std::vector<std::string>{"tensor_parallel_degree=2"},
          {"tensor_parallel_kind=2d", "tensor_parallel_mesh=[2,2,1]"},
          {"tensor_parallel_kind=2d", "tensor_parallel_mesh=[2,2,1]", "tensor_parallel_product=summa"}}) {
      std::vector<std::string> all = keys;
      all.insert(all.end(), {"pipeline_parallel_degree=2", std::string("pipeline_parallel_schedule=") + schedule});
      const int ranks = keys.size() > 1 ? 8 : 4;
      const Plan plan = plan_of(ranks, all, {"training.dtype=float32", "model.num_hidden_layers=4",
                                             "model.intermediate_size=64", "training.local_batch_size=1"});
      double bytes = 0;
      for (const CommunicationEntry& entry : plan.communication) {
        if (entry.what.find("blocks") == std::string::npos || entry.what.starts_with("statistics")) continue;
        for (int rank = 0; rank < ranks; ++rank) bytes += static_cast<double>(plan.bytes_of(entry, rank));
      }
      for (const TensorChoice& choice : tensor_choices(plan)) {
        if (!choice.chosen) continue;
        const double elements = (choice.received_elements.forward + choice.received_elements.backward) * 4 * ranks / 2;
        EXPECT_NEAR(bytes / 4 / elements, 1, 1e-12) << schedule << ", " << keys.back();
      }
    }
  }
}

// Every choice that is listed without a refusal is legal once a run file asks for it.
TEST(TensorChoices, WhatIsListedCanBeSet) {
  for (const char* product : {"stationary", "summa"}) {
    const Plan plan = plan_of(8, {"tensor_parallel_kind=2.5d", "tensor_parallel_mesh=[2,2,2]",
                                  std::string("tensor_parallel_product=") + product});
    for (const TensorChoice& choice : tensor_choices(plan)) {
      if (!choice.refusal.empty()) continue;
      EXPECT_NO_THROW(check_config(with_tensor_plan(plan.config, choice.tensor))) << choice.name;
    }
  }
}

// The planned bytes of embedding and loss equal each rank's own formula. Columns, rows and the ring shard these sizes
// unevenly, so that only ranks with equal shards may share a result.
TEST(TensorTraffic, IsEachRanksOwn) {
  const Plan plan = plan_of(24, {"tensor_parallel_kind=2d", "tensor_parallel_mesh=[3,4,1]", "context_parallel_ring=2"},
                            {"model.hidden_size=48", "model.intermediate_size=63", "training.seq_len=31",
                             "training.global_batch_size=3", "training.local_batch_size=1"});
  std::vector<int64_t> planned(24), own(24);
  for (const CommunicationEntry& entry : plan.communication) {
    if (entry.what.find("vocabulary forward") == std::string::npos) continue;
    for (int rank = 0; rank < 24; ++rank) planned[static_cast<size_t>(rank)] += plan.bytes_of(entry, rank);
  }
  for (int rank = 0; rank < 24; ++rank) {
    const TensorTraffic traffic = tensor_traffic(plan.tensor, tensor_shape_of(plan, rank, 1), plan.mesh, rank);
    for (const auto& messages : {traffic.embedding_forward, traffic.loss_forward}) {
      for (const Messages& m : messages) own[static_cast<size_t>(rank)] += m.bytes.sent;
    }
  }
  EXPECT_EQ(planned, own);
  EXPECT_GT(std::set<int64_t>(own.begin(), own.end()).size(), 4u);
}

// "auto" takes the mesh that sends the fewest bytes among those that fit the memory.
TEST(TensorChoices, TheCheapestIsTaken) {
  const std::vector<std::string> four_heads = {"model.num_attention_heads=4", "model.num_key_value_heads=2"};
  const Plan plan = plan_of(8, {"tensor_parallel_kind=auto", "tensor_parallel_degree=8"}, four_heads);
  const std::vector<TensorChoice> choices = tensor_choices(plan);
  ASSERT_EQ(choices.size(), tensor_arrangements(8).size());
  const TensorChoice* own = nullptr;
  for (const TensorChoice& choice : choices) {
    if (choice.chosen) own = &choice;
    const bool heads_divide = 4 % choice.tensor.columns == 0;
    EXPECT_EQ(choice.refusal.empty(), heads_divide) << choice.name << ": " << choice.refusal;
  }
  ASSERT_NE(own, nullptr);
  for (const TensorChoice& choice : choices) {
    if (choice.refusal.empty()) {
      EXPECT_LE(own->sent_bytes, choice.sent_bytes) << choice.name;
    }
  }
  EXPECT_EQ(own, recommended(choices));
  // With less memory than that mesh needs, "auto" takes another.
  const double gib = static_cast<double>(own->memory_bytes - 1) / (1 << 30);
  const std::string limit = fmt::format("run.memory_gib_per_rank={}", gib);
  std::vector<std::string> limited = four_heads;
  limited.push_back(limit);
  const Plan smaller = plan_of(8, {"tensor_parallel_kind=auto", "tensor_parallel_degree=8"}, limited);
  EXPECT_LT(smaller.largest_memory_bytes(), own->memory_bytes);
  EXPECT_TRUE(says(message_of<ConfigError>([&] {
                     plan_of(8, {"tensor_parallel_kind=auto", "tensor_parallel_degree=8"},
                             {"run.memory_gib_per_rank=1e-6"});
                   }),
                   {"run.memory_gib_per_rank = 1e-06", "must be at least", "the least that was found"}));
  EXPECT_TRUE(says(message_of<ConfigError>([&] {
                     plan_of(8, {"tensor_parallel_kind=auto", "tensor_parallel_degree=8"},
                             {"run.memory_gib_per_rank=1e-11"});
                   }),
                   {"run.memory_gib_per_rank = 1e-11", "must be at least"}));
}

// A value that "auto" chose is printed as such, neither as the run file's nor as a default. A value of the run file is
// printed as the run file's.
TEST(TensorChoices, SayWhoChose) {
  const Plan plan = plan_of(8, {"tensor_parallel_kind=auto", "tensor_parallel_degree=8"});
  const auto chosen = [](std::string text) { return text + " (chosen by \"auto\")"; };
  EXPECT_EQ(plan.config.locate("parallelism.tensor_parallel_kind"),
            chosen("parallelism.tensor_parallel_kind = \"2.5d\""));
  EXPECT_EQ(plan.config.locate("parallelism.tensor_parallel_mesh"),
            chosen("parallelism.tensor_parallel_mesh = [1, 4, 2]"));
  EXPECT_EQ(plan.config.locate("parallelism.tensor_parallel_degree"), chosen("parallelism.tensor_parallel_degree = 1"));
  const std::string printed = print_config(plan.config);
  EXPECT_EQ(parse_config(printed, "again.toml", {}), plan.config);
  EXPECT_TRUE(says(printed, {"tensor_parallel_kind = \"2.5d\"", "# chosen by \"auto\"\n"}));
  EXPECT_TRUE(
      says(explain(plan, Sections::all()), {"mesh     column 4, depth 2 (\"2.5d\", chosen by \"auto\"): 8 ranks"}));
  const Config columns = plan_of(2, {"tensor_parallel_kind=auto", "tensor_parallel_degree=2"},
                                 {"training.global_batch_size=1", "training.local_batch_size=1"})
                             .config;
  EXPECT_EQ(columns.locate("parallelism.tensor_parallel_degree"),
            "parallelism.tensor_parallel_degree = 2 (command line)");
  const Plan asked = plan_of(8, {"tensor_parallel_kind=2.5d", "tensor_parallel_mesh=[1,1,8]"});
  EXPECT_EQ(explain(asked, Sections::all()).find("chosen"), std::string::npos);
}

TEST(TensorChoices, AreSaidByThePlan) {
  const std::string text = explain(
      plan_of(8, {"tensor_parallel_kind=2.5d", "tensor_parallel_mesh=[2,2,2]"}, {"model.num_attention_heads=4"}),
      Sections::all());
  for (const char* part : {"[2, 2, 2]", "as planned", "sends least", "1d, 8 columns", "refused: ", "lower bound",
                           "bytes sent by a rank", "received"})
    EXPECT_NE(text.find(part), std::string::npos) << part;
  EXPECT_TRUE(says(
      text, {"[S(column), S(row)]", "S(axis) sharded over that axis", "loss, gradient norm, signals and peak memory"}));
}

}  // namespace
}  // namespace orthant::tensor_choices_test
