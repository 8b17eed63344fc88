// Reads the key, the law and the offered settings of a refusal.
#include "tests/support/ways_out.h"

#include <gtest/gtest.h>

namespace orthant {
namespace ways_out_test {

using Ways = std::vector<Settings>;

TEST(WaysOut, OfItAreOfTheFirstKey) {
  EXPECT_EQ(ways_out("model.mlp_bias = true (run.toml:3:1): no such model; set it to false"),
            (Ways{{"model.mlp_bias=false"}}));
  EXPECT_EQ(ways_out("run.transport = \"nccl\" (command line): NCCL is for GPUs; set it to \"auto\" or \"gloo\""),
            (Ways{{"run.transport=auto"}, {"run.transport=gloo"}}));
  EXPECT_EQ(ways_out("parallelism.tensor_parallel_mesh = [2, 1, 1] (default): no; set it to [1, 1, 1]"),
            (Ways{{"parallelism.tensor_parallel_mesh=[1, 1, 1]"}}));
  EXPECT_EQ(ways_out("training.seq_len = 7 (default) is short; set it to at least 8"), (Ways{{"training.seq_len=8"}}));
}

TEST(WaysOut, OfSeveralKeysAreAppliedTogether) {
  EXPECT_EQ(ways_out("run.ranks = 3 (default): no; set parallelism.context_parallel_ring to 1 and run.ranks to 4"),
            (Ways{{"parallelism.context_parallel_ring=1", "run.ranks=4"}}));
}

TEST(WaysOut, AreOneOrTheOther) {
  EXPECT_EQ(ways_out("training.seq_len = 9 (default): 2 must divide it; set it to 8 or less, or "
                     "parallelism.tensor_parallel_sequence to false"),
            (Ways{{"training.seq_len=8"}, {"parallelism.tensor_parallel_sequence=false"}}));
  EXPECT_EQ(ways_out("model.num_key_value_heads = 3 (default): it must divide; set it to 1, 2 or 4"),
            (Ways{{"model.num_key_value_heads=1"}, {"model.num_key_value_heads=2"}, {"model.num_key_value_heads=4"}}));
}

TEST(WaysOut, AreNoneWhereNothingCanBeApplied) {
  EXPECT_TRUE(ways_out("training.seq_len = 9 (default) is too long; lower one of these").empty());
  EXPECT_TRUE(ways_out("training.seq_len = 9 (default) is too long; set it to something else").empty());
}

TEST(Refusals, HaveTheSameLawWithOtherNumbers) {
  EXPECT_EQ(law_of("training.seq_len = 9 (run.toml:3:1) is more than 8; set it to 8"),
            law_of("training.seq_len = 12 (command line) is more than 11; set it to 11"));
  EXPECT_NE(law_of("training.seq_len = 9 (default) is more than 8; set it to 8"),
            law_of("training.seq_len = 9 (default) is less than 10; set it to 10"));
  EXPECT_EQ(law_of("run.ranks = 1 (default): 1 share of 1F1B; set it to 2"),
            law_of("run.ranks = 4 (default): 4 shares of 1F1B; set it to 2"));
  EXPECT_EQ(first_key("a.b = 3: training.seq_len = 9 (default) is more than run.ranks = 8"), "training.seq_len");
  EXPECT_EQ(law_of("run.ranks = 1 (default): 1 share of 1F1B; set it to 2"),
            law_of("run.ranks = 4 (default): 4 shares of 1F1B; set it to 2"));
  EXPECT_EQ(first_key("nothing fits"), "");
}

}  // namespace ways_out_test
}  // namespace orthant
