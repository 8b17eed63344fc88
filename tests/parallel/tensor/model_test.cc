// Full models on tensor meshes have the loss and the gradients of one device within 1e-12, and send the planned bytes,
// in all forms of tensor parallelism. The control leaves out the sum over depth.
#include "tests/parallel/tensor/model_on_mesh.h"
#include "tests/support/sweep.h"

namespace orthant::model_test {
namespace {

std::vector<ModelCase> all_cases() {
  std::vector<ModelCase> all;
  const TinyOptions four{.kv_heads = 4}, tied{.tied = true}, dropped{.dropout = 0.1}, biased{.biases = true};
  const TinyOptions four_biased{.kv_heads = 4, .biases = true};
  for (const TinyOptions& options : {TinyOptions{}, tied, dropped, biased}) {
    for (const auto stream : {StreamSharding::tokens, StreamSharding::none, StreamSharding::width})
      all.push_back({{.columns = 2, .stream = stream}, options});
    for (const auto form : {ProductForm::stationary, ProductForm::summa}) {
      for (const auto& [r, c, d] : {std::array{2, 2, 1}, {2, 2, 2}, {4, 1, 1}, {1, 1, 4}, {3, 2, 1}, {1, 2, 2}})
        all.push_back({{.rows = r, .columns = c, .depth = d, .form = form}, options});
    }
  }
  for (const TinyOptions& options : {four, four_biased}) {
    for (const auto form : {ProductForm::stationary, ProductForm::summa}) {
      all.push_back({{.rows = 2, .columns = 4, .form = form}, options, 26, 43, 41});  // uneven shards everywhere
      // With a vocabulary of 3, one of the 4 columns has no rows of it.
      all.push_back({{.rows = 1, .columns = 4, .depth = 2, .form = form}, options, 26, 43, 3});
    }
    all.push_back({{.columns = 4, .stream = StreamSharding::tokens}, options, 26, 43, 41});
  }
  return all;
}

// Key heads that columns do not divide: fewer than columns, and of groups that end inside a column.
TEST(TensorModel, OfSharedKeyHeadsEqualsOneDevice) {
  const auto of_heads = [](int64_t heads, int64_t kv_heads, bool biases, bool qk_norm) {
    TinyOptions options{.kv_heads = kv_heads, .biases = biases, .qk_norm = qk_norm};
    options.heads = heads;
    return options;
  };
  std::vector<ModelCase> cases;
  for (const auto stream : {StreamSharding::tokens, StreamSharding::none, StreamSharding::width}) {
    cases.push_back({{.columns = 4, .stream = stream}, of_heads(8, 2, false, true)});
    cases.push_back({{.columns = 2, .stream = stream}, of_heads(6, 3, true, true)});
    cases.push_back({{.columns = 4, .stream = stream, .panel_bytes = 1}, of_heads(4, 1, true, false)});
  }
  for (const auto form : {ProductForm::stationary, ProductForm::summa}) {
    cases.push_back({{.rows = 2, .columns = 4, .form = form}, of_heads(8, 2, true, true), 26, 43, 41});
    cases.push_back({{.rows = 2, .columns = 2, .depth = 2, .form = form}, of_heads(6, 1, false, false)});
    cases.push_back({{.rows = 1, .columns = 4, .depth = 2, .form = form}, of_heads(12, 6, false, true)});
  }
  for (const ModelCase& c : cases) {
    EXPECT_LT(worst_error(c), 1e-12) << name_of(c) << ", " << c.options.heads << "/" << c.options.kv_heads;
  }
  for (const char* name : {"norms", "attention", kWholeBlock}) {
    EXPECT_LT(worst_error(cases[0], {{name}}), 1e-12) << name;
    EXPECT_LT(worst_error(cases[1], {{name}}), 1e-12) << name;
  }
}

// The table moves over rows, or the results of lookups: with a large vocabulary, and a tied head.
TEST(TensorModel, OfALargeVocabularyEqualsOneDevice) {
  for (const bool tied : {false, true}) {
    for (const auto& [r, c, d] : {std::array{2, 2, 1}, {4, 1, 1}, {4, 2, 1}}) {
      for (const int64_t vocabulary : {int64_t{5}, int64_t{1201}}) {
        const ModelCase large{{.rows = r, .columns = c, .depth = d}, {.tied = tied}, 26, 43, vocabulary};
        EXPECT_EQ(embedding_move(large.plan, vocabulary / c, kBatch * kLength / r / d, 26, 8, 8),
                  vocabulary > 5 ? EmbeddingMove::results : EmbeddingMove::table);
        EXPECT_LT(worst_error(large), 1e-12) << name_of(large) << ", vocabulary of " << vocabulary;
      }
    }
  }
}

// Without gradients, as in the last batch of a validation, rows may have unequal numbers of sequences.
TEST(TensorModel, LooksUpUnequalBatchesWithoutGradients) {
  const ModelCase c{{.rows = 2, .columns = 2}, {}, 26, 43, 1201};
  const Architecture a = make_architecture(c);
  const at::NoGradGuard no_grad;
  Weights whole(parameter_table(a), at::kDouble);
  draw_weights(c, whole);
  const at::Tensor table = whole["model.embed_tokens.weight"].value.detach();
  for (const int64_t sequences : {3, 5}) {
    const at::Tensor tokens = batch_of(c, a).tokens_BT.narrow(0, 0, sequences);
    on_mesh(tensor_mesh(2, 2, 1), [&](Comm& comm) {
      const at::NoGradGuard none;
      const Held held = held_by_rank(comm, a, c.plan);
      Weights weights(held.parameters, at::kDouble);
      draw_weights(c, weights);
      const Range own = shard(sequences, 2, comm.position(kRows));
      const at::Tensor mine = tokens.narrow(0, own.begin, own.size()).contiguous();
      const at::Tensor found =
          primitives_of(comm, a, c.plan, held).embedding(mine, weights["model.embed_tokens.weight"]);
      const Range channels = shard(26, 2, comm.position(kColumns));
      const at::Tensor want = table.index_select(0, mine.flatten()).view({own.size(), kLength, 26});
      EXPECT_TRUE(found.equal(want.narrow(2, channels.begin, channels.size()))) << sequences << ", " << comm.rank();
    });
  }
}

SWEEP_TEST(TensorModel, EqualsOneDevice) {
  for (const ModelCase& c : sweep.of(all_cases(), 35)) EXPECT_LT(worst_error(c), 1e-12) << name_of(c);
}

TEST(TensorModel, OfOtherLossesEqualsOneDevice) {
  const TinyOptions four{.kv_heads = 4};
  for (const OutputLoss& loss : {OutputLoss{.softcap = 3}, OutputLoss{.smoothing = 0.1}, OutputLoss{.z_weight = 1e-3},
                                 OutputLoss{.softcap = 3, .smoothing = 0.1, .z_weight = 1e-3}}) {
    std::vector<ModelCase> cases;
    for (const auto stream : {StreamSharding::tokens, StreamSharding::none, StreamSharding::width})
      cases.push_back({{.columns = 2, .stream = stream}, {.tied = true}});
    for (const auto form : {ProductForm::stationary, ProductForm::summa}) {
      cases.push_back({{.rows = 2, .columns = 2, .depth = 2, .form = form}});
      cases.push_back({{.rows = 2, .columns = 4, .form = form}, four, 26, 43, 41});
      cases.push_back({{.rows = 1, .columns = 4, .depth = 2, .form = form}, four, 26, 43, 3});  // as above
    }
    for (ModelCase& c : cases) {
      c.loss = loss;
      EXPECT_LT(worst_error(c), 1e-12) << name_of(c);
    }
  }
}

// Labels are ignored amid the tokens of each column and row. Logits reach about 1e4, whose exponentials overflow; their
// rounding errors are 1e4 times those of small logits, and so is the bound.
TEST(TensorModel, OfLargeLogitsAndScatteredLabelsEqualsOneDevice) {
  for (ModelCase c : {ModelCase{{.columns = 2, .stream = StreamSharding::tokens}},
                      {{.columns = 2, .stream = StreamSharding::none}},
                      {{.rows = 2, .columns = 2}},
                      {{.rows = 2, .columns = 2, .depth = 2, .form = ProductForm::summa}},
                      {{.rows = 3, .columns = 4, .depth = 2}, {.kv_heads = 4}, 26, 43, 41}}) {
    c.scattered = true;
    EXPECT_LT(worst_error(c), 1e-12) << name_of(c);
    c.head = 1e5;
    EXPECT_LT(worst_error(c), 1e-12 * 1e4) << name_of(c);
  }
}

// The residual stream moves in panels: many of them, uneven ones, and two.
TEST(TensorModel, InPanelsEqualsOneDevice) {
  const TinyOptions four{.kv_heads = 4};
  for (const int64_t bytes : {1, 7000}) {
    std::vector<ModelCase> cases;
    for (const auto stream : {StreamSharding::tokens, StreamSharding::none, StreamSharding::width}) {
      cases.push_back({{.columns = 2, .stream = stream, .panel_bytes = bytes}, {.dropout = 0.1, .biases = true}});
      cases.push_back({{.columns = 4, .stream = stream, .panel_bytes = bytes}, four, 26, 43, 41});
    }
    for (const auto& [r, c, d] : {std::array{2, 2, 1}, {2, 2, 2}, {3, 2, 1}, {4, 1, 1}})
      cases.push_back({{.rows = r, .columns = c, .depth = d, .panel_bytes = bytes}, {.tied = true}});
    for (const ModelCase& c : cases) EXPECT_LT(worst_error(c), 1e-12) << name_of(c);
  }
}

TEST(TensorModel, RecomputedEqualsOneDevice) {
  for (const auto form : {ProductForm::stationary, ProductForm::summa}) {
    const ModelCase c{{.rows = 2, .columns = 2, .depth = 2, .form = form}, {.dropout = 0.1, .biases = true}};
    EXPECT_LT(worst_error(c, {{kWholeBlock}}), 1e-12) << name_of(c);
    EXPECT_LT(worst_error(c, {{"norms", "mlp"}}), 1e-12) << name_of(c);
    EXPECT_LT(worst_error(c, {{"norms", "attention", "swiglu"}, 2}), 1e-12) << name_of(c);
  }
  for (const auto stream : {StreamSharding::tokens, StreamSharding::none}) {
    const ModelCase c{{.columns = 2, .stream = stream}, {.dropout = 0.1}};
    for (const char* name : {"norms", "attention", "mlp", kWholeBlock}) {
      EXPECT_LT(worst_error(c, {{name}}), 1e-12) << name << " in " << name_of(c);
    }
  }
}

// A token outside the vocabulary raises the error of one device. No column has its row, so without a check the
// embedding would be zeros.
TEST(TensorModel, RefusesATokenThatOneDeviceRefuses) {
  const Architecture a = tiny_architecture();
  const TensorPlan plan{.rows = 2, .columns = 2};
  const auto refusal = [](const Primitives& primitives, const Weights& weights, const at::Tensor& tokens) {
    const at::NoGradGuard no_grad;
    try {
      primitives.embedding(tokens, weights["model.embed_tokens.weight"]);
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string("taken");
  };
  for (const int64_t token : {int64_t{-1}, a.vocab_size, a.vocab_size - 1}) {
    at::Tensor tokens = at::zeros({2, 3}, at::kLong);
    tokens[1][2] = token;
    Weights whole(parameter_table(a), at::kDouble);
    const auto core = std::make_shared<AttentionCore>(local_attention());
    const std::string one = refusal(fused_primitives(core), whole, tokens);
    EXPECT_EQ(one, token == a.vocab_size - 1
                       ? "taken"
                       : fmt::format("token {} at position 5 of the microbatch is outside the vocabulary of {}", token,
                                     a.vocab_size));
    on_mesh(tensor_mesh(plan.rows, plan.columns, 1), [&](Comm& comm) {
      const Held held = held_by_rank(comm, a, plan);
      const Weights weights(held.parameters, at::kDouble);
      EXPECT_EQ(refusal(primitives_of(comm, a, plan, held), weights, tokens), one) << token;
    });
  }
}

// The control: without the sum of gradients over depth, the error is large.
TEST(TensorModel, NeedsTheSumOverDepth) {
  for (const int depth : {2, 3, 4}) {
    EXPECT_GT(worst_error({{.rows = 2, .columns = 2, .depth = depth}}, {}, true), kSeenInAGradient) << depth;
  }
}

}  // namespace
}  // namespace orthant::model_test
