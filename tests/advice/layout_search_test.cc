// The search of layouts: it finds the winner of an exhaustive search on a small space, keeps the user's keys, and says
// how much memory is needed where nothing fits. Control: on other hardware another layout wins.
#include "advice/layout_search.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "advice/advised_plan.h"
#include "advice/answer.h"
#include "advice/auto_layout.h"
#include "advice/fit.h"
#include "advice/layout_variants.h"
#include "advice/mesh_choices.h"
#include "advice/tensor_choices.h"
#include "base/errors.h"
#include "config/table.h"
#include "tests/support/says.h"
#include "tests/support/searched_layouts.h"

namespace orthant::layout_search_test {
namespace {

using namespace searched_layouts;

// The kind of a layout of for_each_layout().
std::string kind_of(const Config& config) {
  const ParallelismConfig& p = config.parallelism;
  const int64_t tensor = p.tensor_parallel_degree, pipeline = p.pipeline_parallel_degree;
  const int64_t ulysses = p.context_parallel_ulysses, ring = p.context_parallel_ring;
  return MeshChoice{.tensor = {.columns = static_cast<int>(tensor)},
                    .pipeline = pipeline,
                    .ulysses = ulysses,
                    .ring = ring,
                    .data = config.run.ranks / (tensor * pipeline * ulysses * ring)}
      .kind();
}

// The shortest step of each kind that fits.
std::map<std::string, double> exhaustive(const Config& base, const RunFacts& facts) {
  std::map<std::string, double> best;
  for_each_layout(base, [&](const Config& config) {
    try {
      const Plan plan = make_plan(config, facts);
      if (!fit_of(plan).fits()) return;
      double& shortest = best.try_emplace(kind_of(config), INFINITY).first->second;
      shortest = std::min(shortest, plan.step_time->seconds);
    } catch (const ConfigError&) {  // this layout is illegal
    }
  });
  return best;
}

// Copies of sharded states may have any number of hosts, and keys of the user stay as they are.
TEST(LayoutSearch, TriesEveryNumberOfCopies) {
  const RunFacts facts = facts_on(h100_of(80), 32);
  const auto copies_of = [&](const Words& words) {
    Config config = config_of(32, words);
    config.parallelism.data_parallel_degree = 32, config.parallelism.zero_stage = 2;
    std::multiset<int64_t> copies;
    for (const Config& other : LayoutVariants(config, facts).copies(config)) {
      EXPECT_NO_THROW(make_plan(other, facts)) << other.parallelism.data_parallel_replicate_degree;
      copies.insert(other.parallelism.data_parallel_replicate_degree);
    }
    return copies;
  };
  EXPECT_EQ(copies_of({}), (std::multiset<int64_t>{2, 2, 2, 4, 4, 4, 8, 8, 8, 16, 16, 16}));
  EXPECT_EQ(copies_of({"parallelism.zero_reshard=microbatch"}), (std::multiset<int64_t>{2, 2, 4, 4, 8, 8, 16, 16}));
  EXPECT_TRUE(copies_of({"parallelism.data_parallel_replicate_degree=1"}).empty());
}

// If nothing fits, tensor axes may be longer than a host.
TEST(LayoutSearch, TriesTensorAxesBeyondHostsIfNothingFits) {
  Hardware hardware = h100_of(0.9);
  hardware.device.per_host = 2;
  const SearchResult result = search_layouts(config_of(8), facts_on(hardware, 8));
  ASSERT_TRUE(result.fitting.empty());
  EXPECT_GT(result.smallest->config.parallelism.tensor_parallel_degree, 2) << result.smallest->name;
}

// A run file that --search has written sets every key. A search of it finds that one layout again.
TEST(LayoutSearch, OfItsOwnRunFileFindsItsLayout) {
  const RunFacts facts = facts_on(h100_of(80), 4);
  const Config best = search_layouts(config_of(4), facts).fitting.front().config;
  const SearchResult again = search_layouts(parse_config(print_config(best), "best.toml", {}), facts);
  ASSERT_EQ(again.fitting.size(), 1u);
  EXPECT_EQ(print_config(again.fitting.front().config),
            print_config(parse_config(print_config(best), "best.toml", {})));
}

// No two layouts of a search have equal settings.
TEST(LayoutSearch, PlansNoLayoutTwice) {
  const RunFacts facts = facts_on(h100_of(80), 8);
  std::set<std::string> known;
  for (const FoundLayout& found : search_layouts(config_of(8), facts).fitting) {
    std::string settings;
    for (const std::string& key : searched_keys()) settings += value_text(*find_key(key), found.config) + " ";
    EXPECT_TRUE(known.insert(settings).second) << found.name;
  }
  EXPECT_GT(known.size(), 20u);
}

// The search also tries microbatch sizes, schedules and placements, so it may be faster than the exhaustive search
// without them. With these keys set, both have the same winner, and the search finds the best of each kind near it.
TEST(LayoutSearch, FindsTheBestOfASmallSpace) {
  int kinds = 0;
  for (const double gib : {10.0, 14.0, 24.0, 80.0}) {
    const RunFacts facts = facts_on(h100_of(gib), 4);
    const Words keys = {"training.local_batch_size=1", "parallelism.pipeline_parallel_schedule=1f1b",
                        "parallelism.vocabulary_parallel=none", "parallelism.tensor_parallel_kind=1d",
                        "parallelism.tensor_parallel_sequence=true", "parallelism.data_parallel_replicate_degree=0"};
    const SearchResult narrow = search_layouts(config_of(4, keys), facts), wide = search_layouts(config_of(4), facts);
    const std::map<std::string, double> all = exhaustive(config_of(4, keys), facts);
    if (all.empty()) {
      EXPECT_TRUE(narrow.fitting.empty()) << gib;
      continue;
    }
    double best = INFINITY;
    for (const auto& [kind, seconds] : all) best = std::min(best, seconds);
    ASSERT_FALSE(narrow.fitting.empty()) << gib;
    EXPECT_DOUBLE_EQ(narrow.fitting.front().time.seconds, best) << gib;
    EXPECT_LE(wide.fitting.front().time.seconds, best) << gib;
    EXPECT_GT(wide.left_out, 0) << gib;
    for (const SearchResult* result : {&narrow, &wide}) {
      for (const auto& [kind, seconds] : all) {
        if (seconds >= kNearBest * result->fitting.front().time.seconds) continue;
        const auto found = std::ranges::find(result->fitting, kind, &FoundLayout::kind);
        ASSERT_NE(found, result->fitting.end()) << gib << " " << kind;
        EXPECT_LE(found->time.seconds, seconds) << gib << " " << found->name;
        ++kinds;
      }
    }
  }
  EXPECT_GT(kinds, 10);
}

// On more ranks, the first layout of a kind that fits is seldom its best one. A search whose axes are given finds no
// better layout of its kind than the search of all axes, but for 2 %: the last part of a search varies only some of
// the layouts.
TEST(LayoutSearch, FindsTheBestOfEachKindOnManyRanks) {
  const RunFacts facts = facts_on(h100_of(40), 64);
  const Words batch = {"training.global_batch_size=256", "model.num_hidden_layers=32", "model.hidden_size=4096",
                       "model.intermediate_size=14336", "model.num_attention_heads=32"};
  const SearchResult all = search_layouts(config_of(64, batch), facts);
  const double best = all.fitting.front().time.seconds;
  int kinds = 0;
  for (const Words& axes :
       std::vector<Words>{{"parallelism.tensor_parallel_degree=2", "parallelism.pipeline_parallel_degree=1"},
                          {"parallelism.tensor_parallel_degree=2", "parallelism.pipeline_parallel_degree=2"},
                          {"parallelism.tensor_parallel_degree=1", "parallelism.pipeline_parallel_degree=1",
                           "parallelism.context_parallel_ulysses=2"}}) {
    Words words = batch;
    words.insert(words.end(), axes.begin(), axes.end());
    const SearchResult given = search_layouts(config_of(64, words), facts);
    ASSERT_FALSE(given.fitting.empty()) << axes.front();
    for (const FoundLayout& layout : given.fitting) {
      if (layout.time.seconds >= kNearBest * best) break;
      const auto found = std::ranges::find(all.fitting, layout.kind, &FoundLayout::kind);
      ASSERT_NE(found, all.fitting.end()) << layout.kind;
      EXPECT_LE(found->time.seconds, 1.02 * layout.time.seconds) << layout.name << "; " << found->name;
      ++kinds;
    }
  }
  EXPECT_GT(kinds, 20);
}

// parallelism.layout = "auto" has the winner of the search. Its keys say who chose them, and a run file with them has
// the same plan. Controls: "given" changes nothing, and a key of the user stays.
TEST(LayoutSearch, ResolvesAuto) {
  const RunFacts facts = facts_on(h100_of(24), 8);
  const Config config = config_of(8, {"parallelism.layout=auto"});
  const Config chosen = with_chosen_layout(config, facts);
  const SearchResult result = search_layouts(config, facts);
  EXPECT_EQ(print_config(chosen), print_config(result.fitting.front().config));
  EXPECT_EQ(chosen.parallelism.layout, "given");
  EXPECT_EQ(chosen.origins.at("parallelism.layout"), kChosenByAuto);
  const Plan plan = advised_plan(config, facts);
  EXPECT_EQ(plan.step_time->seconds, result.fitting.front().time.seconds);
  EXPECT_TRUE(with_chosen_layout(config_of(8), facts) == config_of(8));
  const Config kept = with_chosen_layout(
      config_of(8, {"parallelism.layout=auto", "parallelism.pipeline_parallel_degree=4"}), facts);
  EXPECT_EQ(kept.parallelism.pipeline_parallel_degree, 4);
}

// Keys of sharded states keep their values while the search chooses the stage. Control: without the key it also finds
// layouts with other values.
TEST(LayoutSearch, KeepsKeysOfShardedStates) {
  const RunFacts facts = facts_on(h100_of(80), 8);
  const auto found = [&](const Words& keys) { return search_layouts(config_of(8, keys), facts).fitting; };
  const auto never = found({"parallelism.zero_reshard=never"});
  ASSERT_FALSE(never.empty());
  for (const FoundLayout& layout : never) {
    if (layout.config.parallelism.data_parallel_degree == 1) continue;  // no copies of states, so no stages
    EXPECT_EQ(layout.config.parallelism.zero_stage, 3) << layout.name;
    EXPECT_EQ(layout.config.parallelism.zero_reshard, "never") << layout.name;
  }
  const Config shards = config_of(8, {"parallelism.layout=auto", "parallelism.data_parallel_shard_degree=4"});
  EXPECT_NO_THROW(check_config(shards, {.only_plans = true, .nccl = true, .no_ucx = {}}));
  const auto sharded = search_layouts(shards, facts).fitting;
  ASSERT_FALSE(sharded.empty());
  for (const FoundLayout& layout : sharded) {
    EXPECT_GT(layout.config.parallelism.zero_stage, 0) << layout.name;
    EXPECT_EQ(layout.config.parallelism.data_parallel_shard_degree, 4) << layout.name;
  }
  const auto is_replicated = [](const FoundLayout& layout) { return layout.config.parallelism.zero_stage == 0; };
  EXPECT_TRUE(std::ranges::any_of(found({}), is_replicated));
}

// If a key excludes all layouts, the refusal names it and its law.
TEST(LayoutSearch, NamesTheKeyThatExcludesAllLayouts) {
  const RunFacts facts = facts_on(h100_of(80), 8);
  const Config config = config_of(8, {"parallelism.layout=auto", "parallelism.tensor_parallel_degree=3"});
  try {
    advised_plan(config, facts);
    ADD_FAILURE() << "8 ranks cannot have 3 tensor ranks";
  } catch (const ConfigError& error) {
    EXPECT_TRUE(says(error.what(), {"parallelism.tensor_parallel_degree = 3", "set it to 4 or 2"})) << error.what();
  }
}

// Layouts with idle ranks are searched if there are no others: more pipeline ranks than layers, and more data ranks
// than sequences. Copies of sharded states that do not divide the ranks are refused by their own law.
TEST(LayoutSearch, FindsLayoutsWithIdleRanksIfThereAreNoOthers) {
  const RunFacts facts = facts_on(h100_of(80), 4);
  for (const Words& keys : {Words{"model.num_hidden_layers=2", "parallelism.pipeline_parallel_degree=4"},
                            Words{"training.global_batch_size=2", "parallelism.data_parallel_degree=4"},
                            Words{"model.num_hidden_layers=2", "parallelism.pipeline_parallel_degree=2",
                                  "parallelism.pipeline_parallel_stages_per_rank=2"}}) {
    EXPECT_FALSE(search_layouts(config_of(4, keys), facts).fitting.empty()) << keys.back();
  }
  try {
    advised_plan(config_of(4, {"parallelism.layout=auto", "parallelism.data_parallel_shard_degree=8"}), facts);
    ADD_FAILURE() << "4 ranks cannot have shards over 8";
  } catch (const ConfigError& error) {
    EXPECT_TRUE(says(error.what(), {"data_parallel_shard_degree = 8", "4 data ranks"})) << error.what();
  }
}

// The machine of a plan is run.hardware, else h100-8x for CUDA devices and none for CPUs.
TEST(LayoutSearch, FindsTheHardwareOfARun) {
  EXPECT_EQ(find_hardware(config_of(8), 8)->name, "h100-8x");
  EXPECT_EQ(find_hardware(config_of(8, {"run.hardware=b200"}), 8)->name, "b200-8x");
  EXPECT_EQ(find_hardware(config_of(8, {"run.device=cpu"}), 8), nullptr);
  EXPECT_EQ(find_hardware(config_of(8, {"run.device=cpu", "run.hardware=this-cpu"}), 8)->name, "this-cpu");
}

// A limit that no layout meets is refused with the memory of the smallest layout, and that limit is enough.
TEST(LayoutSearch, RefusesAutoWithTheSmallestMemory) {
  const RunFacts facts = facts_on(h100_of(80), 4);
  const auto with_limit = [](const std::string& gib) {
    return config_of(4, {"parallelism.layout=auto", "run.memory_gib_per_rank=" + gib});
  };
  std::string message;
  try {
    with_chosen_layout(with_limit("0.5"), facts);
  } catch (const ConfigError& error) {
    message = error.what();
  }
  const std::string before = "set run.memory_gib_per_rank to ";
  const size_t at = message.find(before);
  ASSERT_NE(at, std::string::npos) << message;
  const std::string enough = message.substr(at + before.size(), message.find(" or more") - at - before.size());
  EXPECT_NO_THROW(with_chosen_layout(with_limit(enough), facts)) << enough;
}

// On 16 hosts of 4 ranks with slow links between hosts, "auto" chooses a tensor mesh that is at least as fast as
// [4, 4, 4]. Control: without hardware it chooses by bytes, a slower mesh.
TEST(LayoutSearch, ChoosesTensorMeshesByHosts) {
  Hardware hosts = load_hardware("this-cpu");
  hosts.device.per_host = 4;
  hosts.between_hosts.bytes_per_s = 200e6 / 8 / 4;  // 200 Mbit/s for the four ranks of a host
  const Words model = {"model.vocab_size=257", "model.hidden_size=256", "model.intermediate_size=1024",
                       "model.num_attention_heads=64", "model.num_key_value_heads=64", "model.num_hidden_layers=2",
                       "training.seq_len=96", "training.global_batch_size=64", "training.local_batch_size=64",
                       "validation.freq=0", "run.ranks=64"};
  const auto config_with = [&](Words words) {
    words.insert(words.begin(), model.begin(), model.end());
    return parse_config("", "run.toml", words);
  };
  RunFacts facts{.ranks = 64, .vocab_size = 257, .hardware = std::make_shared<const Hardware>(hosts)};
  const Config any =
      config_with({"parallelism.tensor_parallel_kind=auto", "parallelism.tensor_parallel_degree=64"});
  const auto seconds = [&](const Config& config) { return make_plan(config, facts).step_time->seconds; };
  const double given = seconds(
      config_with({"parallelism.tensor_parallel_kind=2.5d", "parallelism.tensor_parallel_mesh=4,4,4"}));
  const RunFacts without{.ranks = 64, .vocab_size = 257};
  EXPECT_LE(seconds(with_chosen_tensor_plan(any, facts)), given);
  EXPECT_GT(seconds(with_chosen_tensor_plan(any, without)), seconds(with_chosen_tensor_plan(any, facts)));
}

// On hosts of two ranks with slow links between them, the search keeps pipelines in a host if their messages take
// longest, and gradients if these do. The best of both orders is as fast as the faster one planned alone.
TEST(LayoutSearch, OrdersAxesOverHosts) {
  Hardware hosts = h100_of(80);
  hosts.device.per_host = 2, hosts.between_hosts.bytes_per_s = 2e9;
  const RunFacts facts = facts_on(hosts, 4);
  for (const auto& [seq_len, layers, best] : {std::tuple{16384, 2, "data"}, {512, 16, "pipeline"}}) {
    const Words words = {"parallelism.pipeline_parallel_degree=2", "parallelism.data_parallel_degree=2",
                         "model.max_position_embeddings=16384", fmt::format("training.seq_len={}", seq_len),
                         fmt::format("model.num_hidden_layers={}", layers)};
    const FoundLayout found = search_layouts(config_of(4, words), facts).fitting.front();
    EXPECT_EQ(found.config.parallelism.outer_axis, best) << found.name;
    for (const char* other : {"pipeline", "data"}) {
      Config config = found.config;
      config.parallelism.outer_axis = other;
      const double seconds = make_plan(config, facts).step_time->seconds;
      EXPECT_TRUE(other == std::string(best) ? seconds == found.time.seconds : seconds > found.time.seconds) << other;
    }
    Words given = words;
    given.push_back(fmt::format("parallelism.outer_axis={}", best == std::string("data") ? "pipeline" : "data"));
    for (const FoundLayout& of_given : search_layouts(config_of(4, given), facts).fitting) {
      EXPECT_NE(of_given.config.parallelism.outer_axis, best);
    }
  }
}

// "auto" takes a mesh that fits the devices, and without one that which needs least memory. Control: larger devices get
// a faster mesh that needs more.
TEST(LayoutSearch, ChoosesTensorMeshesThatFitTheDevice) {
  const auto chosen_on = [&](double gib) {
    const RunFacts facts = facts_on(h100_of(gib), 8);
    const Config config =
        config_of(8, {"parallelism.tensor_parallel_kind=auto", "parallelism.tensor_parallel_degree=8"});
    return make_plan(with_chosen_tensor_plan(config, facts), facts);
  };
  const Plan large = chosen_on(80), none = chosen_on(1);
  EXPECT_TRUE(fit_of(large).fits());
  const double tight_gib = static_cast<double>(fit_of(large).tensor_bytes + fit_of(large).other_bytes) / 0x1p30 - 0.1;
  const Plan tight = chosen_on(tight_gib);
  EXPECT_TRUE(fit_of(tight).fits());
  EXPECT_LT(tight.largest_memory_bytes(), large.largest_memory_bytes());
  EXPECT_GT(tight.step_time->seconds, large.step_time->seconds);
  for (const TensorChoice& choice : tensor_choices(none)) {
    EXPECT_FALSE(choice.fits);
    EXPECT_TRUE(!choice.refusal.empty() || none.largest_memory_bytes() <= choice.memory_bytes) << choice.name;
  }
}

// A returned run file has the planned step time that the search has given for it.
TEST(LayoutSearch, ReturnsRunsThatCanBePlanned) {
  const RunFacts facts = facts_on(h100_of(24), 8);
  const SearchResult result = search_layouts(config_of(8), facts);
  ASSERT_FALSE(result.fitting.empty());
  const FoundLayout& best = result.fitting.front();
  const Config again = parse_config(print_config(best.config), "best.toml", {});
  EXPECT_EQ(make_plan(again, facts).step_time->seconds, best.time.seconds);
  const auto json = nlohmann::json::parse(search_json(result, facts, {}));
  EXPECT_EQ(json["step_seconds"], best.time.seconds);
  EXPECT_EQ(json["search"][0]["settings"]["training.local_batch_size"], best.config.training.local_batch_size);
  EXPECT_EQ(json["search"][0]["step_seconds"], best.time.seconds);
  EXPECT_EQ(json["search"].size(), result.fitting.size());
  EXPECT_TRUE(says(explain_search(result, *facts.hardware), {"search on h100-8x", "MFU", best.name}));
}

TEST(LayoutSearch, KeepsTheKeysOfTheUser) {
  const RunFacts facts = facts_on(h100_of(80), 8);
  const SearchResult result =
      search_layouts(config_of(8, {"parallelism.tensor_parallel_degree=2", "parallelism.zero_stage=1"}), facts);
  ASSERT_FALSE(result.fitting.empty());
  for (const FoundLayout& found : result.fitting) {
    EXPECT_EQ(found.config.parallelism.tensor_parallel_degree, 2) << found.name;
    EXPECT_EQ(found.config.parallelism.zero_stage, 1) << found.name;
  }
}

TEST(LayoutSearch, NamesTheSmallestMemoryWhereNothingFits) {
  Hardware small = h100_of(2);
  const SearchResult result = search_layouts(config_of(4), facts_on(small, 4));
  EXPECT_TRUE(result.fitting.empty());
  ASSERT_TRUE(result.smallest);
  EXPECT_TRUE(says(explain_search(result, small),
                   {"no layout fits: the smallest needs ", result.smallest->name, "use more ranks"}));
}

// Slow links between single-device hosts make another layout the best.
TEST(LayoutSearchControl, OtherLinksHaveAnotherWinner) {
  Hardware fast = h100_of(14), slow = fast;
  slow.device.per_host = 1;
  slow.between_hosts.bytes_per_s = 1e9;
  const SearchResult on_fast = search_layouts(config_of(4), facts_on(fast, 4)),
                     on_slow = search_layouts(config_of(4), facts_on(slow, 4));
  ASSERT_FALSE(on_fast.fitting.empty() || on_slow.fitting.empty());
  EXPECT_NE(on_fast.fitting.front().name, on_slow.fitting.front().name);
}

}  // namespace
}  // namespace orthant::layout_search_test
