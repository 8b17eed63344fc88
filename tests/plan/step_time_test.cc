// Times of steps on given hardware: against a hand count with round rates, against each other where the order is known,
// and against published steps of Megatron on B200. Controls: other layouts, hardware without communication.
#include "plan/step_time.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>

#include "plan/plan.h"

namespace orthant::step_time_test {
namespace {

using Words = std::vector<std::string>;

Plan plan_on(const Hardware& hardware, int ranks, Words words) {
  words.insert(words.begin(), {"run.ranks=" + std::to_string(ranks), "run.device=cuda", "training.dtype=bfloat16",
                               "training.local_batch_size=1"});
  const Config config = parse_config("", "run.toml", words);
  return make_plan(
      config,
      {.ranks = ranks, .vocab_size = config.model.vocab_size, .hardware = std::make_shared<const Hardware>(hardware)});
}

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const Words kLlama70b = {"model.hidden_size=8192",       "model.intermediate_size=28672",
                         "model.num_attention_heads=64", "model.num_key_value_heads=8",
                         "model.head_dim=128",           "model.vocab_size=128256",
                         "model.num_hidden_layers=12",   "model.max_position_embeddings=131072",
                         "training.seq_len=4096"};
const Words kLlama405b = {"model.hidden_size=16384",
                          "model.intermediate_size=53248",
                          "model.num_attention_heads=128",
                          "model.num_key_value_heads=8",
                          "model.head_dim=128",
                          "model.vocab_size=128256",
                          "model.num_hidden_layers=4",
                          "model.max_position_embeddings=131072",
                          "training.seq_len=4096"};

struct Published {
  std::string name;
  Words keys;
  double step_seconds;
};
// Megatron on 8 x B200, sequences of 4,096 tokens (the last of 32,768); SimuMax v1.2, FULL_RESULTS, 2026-05.
std::vector<Published> published_steps() {
  const auto batch = [](int sequences) { return "training.global_batch_size=" + std::to_string(sequences); };
  const std::string tensor = "parallelism.tensor_parallel_degree=", zero = "parallelism.zero_stage=1";
  return {
      {"70B of 12 layers, tensor 2", with(kLlama70b, {tensor + "2", zero, batch(16)}), 0.7255},
      {"70B of 12 layers, tensor 8", with(kLlama70b, {tensor + "8", batch(4)}), 0.2809},
      {"70B of 12 layers, pipeline 2", with(kLlama70b, {"parallelism.pipeline_parallel_degree=2", zero, batch(32)}),
       1.4768},
      {"405B of 4 layers, tensor 4", with(kLlama405b, {tensor + "4", zero, batch(16)}), 0.8996},
      {"405B of 4 layers, tensor 2", with(kLlama405b, {tensor + "2", zero, batch(128)}), 6.6041},
      {"70B of 12 layers, ulysses 8",
       with(kLlama70b, {"training.seq_len=32768", "parallelism.context_parallel_ulysses=8", zero, batch(4)}), 1.7681}};
}

// The one value of [step] was fitted to these six steps, and everything else to kernels alone. A plan of another layout
// is farther off.
TEST(StepTime, IsThatOfPublishedStepsOnB200) {
  const Hardware b200 = load_hardware("b200-8x");
  for (const auto& [name, keys, seconds] : published_steps()) {
    const Plan plan = plan_on(b200, 8, keys);
    EXPECT_NEAR(plan.step_time->seconds / seconds, 1, 0.06) << name;
  }
  const auto& [name, keys, seconds] = published_steps()[1];
  EXPECT_GT(
      std::abs(plan_on(b200, 8, with(kLlama70b, {"training.global_batch_size=8"})).step_time->seconds / seconds - 1),
      0.06);
}

// A device of round rates: 1 TFLOP/s without losses, memory and links that take no time.
Hardware simple_hardware() {
  Hardware hardware = load_hardware("b200-8x");
  hardware.device.compute_units = 1;
  hardware.peak_flop_per_s = {.origin = "assumed: test", .bfloat16 = 1e12, .float32 = 1e12, .float64 = 1e12};
  hardware.memory = {.origin = "assumed: test", .bytes_per_s = 1e30, .share = 1, .latency_seconds = 0};
  hardware.products = {.origin = "assumed: test", .tile = {1, 1}};
  hardware.attention = {.origin = "assumed: test",
                        .forward = {.origin = "assumed: test", .tile_rows = 1},
                        .backward = {.origin = "assumed: test", .tile_rows = 1}};
  hardware.step.compute_share = 1;
  for (LinkTable* links : {&hardware.same_host, &hardware.between_hosts}) {
    links->bytes_per_s = 1e30;
    links->message = {.origin = "assumed: test", .share = 1};
    for (auto* list : {&links->all_reduce, &links->all_gather, &links->reduce_scatter, &links->all_to_all}) {
      *list = {{.origin = "assumed: test"}};
    }
  }
  return hardware;
}

const Words kSmall = {"model.hidden_size=64",        "model.intermediate_size=128", "model.num_attention_heads=4",
                      "model.num_key_value_heads=4", "model.vocab_size=256",        "model.num_hidden_layers=4",
                      "training.seq_len=32",         "training.global_batch_size=8"};

// Without latencies, memory traffic and messages, the products of a step take their FLOPs: 6 per weight and token.
TEST(StepTime, OfProductsIsTheirFlops) {
  const Plan plan = plan_on(simple_hardware(), 1, kSmall);
  const double weights = 4 * (4 * 64 * 64 + 3 * 64 * 128) + 256 * 64, tokens = 8 * 32;
  EXPECT_NEAR(plan.step_time->passes.products, 6 * weights * tokens / 1e12, 1e-12);
  EXPECT_GT(plan.step_time->passes.attention, 0);
  EXPECT_LT(plan.step_time->passes.kernels, 1e-18);
  Hardware slower = simple_hardware();
  slower.step.compute_share = 0.8, slower.step.bfloat16_share = 0.5;
  const TimeParts of_float32 = plan_on(slower, 1, with(kSmall, {"training.dtype=float32"})).step_time->passes,
                  of_bfloat16 = plan_on(slower, 1, with(kSmall, {"training.dtype=bfloat16"})).step_time->passes;
  EXPECT_NEAR(of_float32.products, plan.step_time->passes.products / 0.8, 1e-12);
  EXPECT_NEAR(of_bfloat16.products, plan.step_time->passes.products / 0.4, 1e-12);
  EXPECT_NEAR(of_bfloat16.attention, plan.step_time->passes.attention / 0.4, 1e-12);
  EXPECT_NEAR(plan.step_time->seconds, plan.step_time->passes.seconds(), 1e-12);
  EXPECT_NEAR(model_flops_utilization(plan, plan.step_time->passes.products, true),
              training_flops_per_token(plan.architecture, 32) * tokens * 1.0 / (6 * weights * tokens), 0.2);
}

// The parts of a step add up to it, in every kind of layout.
TEST(StepTime, IsTheSumOfItsParts) {
  const Hardware h100 = load_hardware("h100-8x");
  const std::vector<Words> layouts = {
      {},
      {"parallelism.tensor_parallel_degree=2"},
      {"parallelism.pipeline_parallel_degree=4"},
      {"parallelism.pipeline_parallel_degree=4", "parallelism.pipeline_parallel_schedule=1f1b",
       "parallelism.vocabulary_parallel=algorithm_2"},
      {"parallelism.zero_stage=3", "parallelism.zero_reshard=microbatch"},
      {"parallelism.zero_stage=1"},
      {"training.global_batch_size=20", "training.local_batch_size=2"},  // microbatches of 2, 2 and 1 sequences
      {"parallelism.pipeline_parallel_degree=4", "training.local_batch_size=3"},
      {"parallelism.context_parallel_ring=2"},
      {"parallelism.context_parallel_ulysses=2"},
      {"parallelism.data_parallel_replicate_degree=2", "parallelism.zero_stage=2"},
      {"parallelism.pipeline_parallel_degree=2", "parallelism.pipeline_parallel_post_validation=true",
       "parallelism.pipeline_parallel_schedule=zb_h2", "parallelism.zero_stage=1"}};
  for (const Words& keys : layouts) {
    const Plan plan = plan_on(h100, 4, with(kSmall, keys));
    const StepTime& step = *plan.step_time;
    double parts = 0;
    for (const auto& [name, part] : step.named_parts()) parts += part;
    EXPECT_NEAR(parts / step.seconds, 1, 1e-9) << (keys.empty() ? "" : keys.back());
    EXPECT_GE(step.exposed_communication(), 0);
  }
}

// Four ranks of data on two shared cores take twice as long as on four. A pipeline loses less, because idle ranks
// leave their cores to others. Two hosts of two cores each are as fast as four cores.
TEST(StepTime, RanksShareTheCoresOfTheirHost) {
  Hardware hardware = simple_hardware();
  hardware.device.communication_uses_compute = true;
  const auto seconds = [&](int64_t cores, int64_t per_host, const Words& keys) {
    hardware.device.shared_cores = cores;
    hardware.device.per_host = per_host;
    const Plan plan = plan_on(hardware, 4, with(kSmall, keys));
    const StepTime& step = *plan.step_time;
    double parts = 0;
    for (const auto& [name, part] : step.named_parts()) parts += part;
    EXPECT_NEAR(parts / step.seconds, 1, 1e-9);
    return step.seconds;
  };
  const Words data = {}, pipeline = {"parallelism.pipeline_parallel_degree=4"};
  for (const Words& keys : {data, pipeline}) {
    EXPECT_EQ(seconds(4, 4, keys), seconds(0, 4, keys));
    EXPECT_EQ(seconds(2, 2, data), seconds(0, 4, data));
  }
  EXPECT_NEAR(seconds(2, 4, data) / seconds(4, 4, data), 2, 1e-6);
  EXPECT_NEAR(seconds(1, 4, data) / seconds(4, 4, data), 4, 1e-6);
  EXPECT_GT(seconds(2, 4, pipeline), 1.05 * seconds(4, 4, pipeline));
  EXPECT_LT(seconds(2, 4, pipeline), 1.95 * seconds(4, 4, pipeline));
}

// Reductions between hosts wait for their link, and leave the cores to other ranks. Control: inside a host they copy,
// and take twice as long if two ranks share each core.
TEST(StepTime, ReductionsBetweenHostsLeaveCoresFree) {
  Hardware hardware = simple_hardware();
  hardware.device.communication_uses_compute = true;
  hardware.same_host.bytes_per_s = hardware.between_hosts.bytes_per_s = 1e6;  // messages take nearly all of the step
  const auto slower_on_half_of_the_cores = [&](int64_t per_host, int stage) {
    const auto seconds = [&](int64_t cores) {
      hardware.device.per_host = per_host, hardware.device.shared_cores = cores;
      return plan_on(hardware, 4, with(kSmall, {fmt::format("parallelism.zero_stage={}", stage)})).step_time->seconds;
    };
    return seconds(per_host / 2) / seconds(per_host);
  };
  for (const int stage : {0, 1, 3}) {
    EXPECT_NEAR(slower_on_half_of_the_cores(2, stage), 1, 0.05) << stage;
    EXPECT_NEAR(slower_on_half_of_the_cores(4, stage), 2, 0.05) << stage;
  }
}

// Software around messages takes its time at every message that a rank waits for. Operands that computation does not
// hide make products slower.
TEST(StepTime, CountsCallsAndOperands) {
  Hardware hardware = simple_hardware();
  const auto seconds = [&](const Words& keys) { return plan_on(hardware, 2, with(kSmall, keys)).step_time->seconds; };
  const Words data = {}, tensor = {"parallelism.tensor_parallel_degree=2"},
              ring = {"parallelism.context_parallel_ring=2"};
  const double before[] = {seconds(data), seconds(tensor), seconds(ring)};
  hardware.step.call_seconds = 1e-3;
  EXPECT_GT(seconds(data), before[0]);
  EXPECT_LT(seconds(data), before[0] + 8 * 1e-3);            // sums of gradients, and of the statistics of the step
  EXPECT_GT(seconds(tensor), before[1] + 8 * 4 * 4 * 1e-3);  // microbatches, layers, and at least 4 messages
  EXPECT_GT(seconds(ring), before[2] + 8 * 4 * 2 * 1e-3);
  hardware.step.call_seconds = 0;
  hardware.step.shared_call_seconds = 1e-3;
  EXPECT_EQ(seconds(tensor), before[1]);  // no cores are shared
  hardware.device.shared_cores = 2;
  EXPECT_EQ(seconds(tensor), before[1]);  // two ranks have a core each
  hardware.device.shared_cores = 1;
  const double shared = seconds(tensor);
  hardware.step.shared_call_seconds = 0;
  EXPECT_GT(shared, seconds(tensor) + 2 * 8 * 4 * 4 * 1e-3);  // in turns on one core
  hardware.device.shared_cores = 0;
  hardware.memory.bytes_per_s = 1e10;
  const double without_copies = seconds(tensor);
  hardware.step.message_traffic = 4;
  EXPECT_GT(seconds(tensor), 1.01 * without_copies);
  hardware.step.message_traffic = 0;
  const double hidden = seconds(data);
  hardware.products.operand_traffic = 2;
  EXPECT_GT(seconds(data), 1.2 * hidden);
}

// Messages that travel with others, which the ranks wait for anyway, take no time of the software: the weights that a
// mesh gathers over its rows.
TEST(StepTime, CountsNoCallsOfGatheredWeights) {
  const Words mesh = with(kSmall, {"parallelism.tensor_parallel_kind=2d", "parallelism.tensor_parallel_mesh=2,2,1"});
  Hardware hardware = simple_hardware();
  hardware.device.communication_uses_compute = true;  // nothing hides messages
  const double before = plan_on(hardware, 4, mesh).step_time->seconds;
  hardware.step.call_seconds = 1e-3;
  const Plan plan = plan_on(hardware, 4, mesh);
  int64_t calls = 0, of_weights = 0;
  for (const CommunicationEntry& entry : plan.communication) {
    (entry.what.starts_with("weights,") ? of_weights : calls) += plan.calls_of(entry, 0);
  }
  EXPECT_GT(of_weights, 100);
  EXPECT_NEAR(plan.step_time->seconds - before, 1e-3 * static_cast<double>(calls), 1e-9);  // rounding of a sum
}

// Slower links never make a step shorter. Ranks on several hosts take longer than ranks on one.
TEST(StepTime, GrowsWithSlowerLinks) {
  const Hardware fast = load_hardware("h100-8x");
  Hardware slow = fast, spread = fast;
  slow.same_host.bytes_per_s /= 10;
  spread.device.per_host = 1;
  for (const Words& keys :
       {Words{"parallelism.tensor_parallel_degree=4"}, Words{"parallelism.zero_stage=1"},
        Words{"parallelism.context_parallel_ulysses=4"}, Words{"parallelism.pipeline_parallel_degree=4"}}) {
    const double seconds = plan_on(fast, 4, with(kSmall, keys)).step_time->seconds;
    EXPECT_GT(plan_on(slow, 4, with(kSmall, keys)).step_time->seconds, seconds) << keys.back();
    EXPECT_GT(plan_on(spread, 4, with(kSmall, keys)).step_time->seconds, seconds) << keys.back();
  }
}

// Microbatches of uneven sizes take the time of their sequences: a last microbatch of one sequence is not a full one.
TEST(StepTime, CountsTheSequencesOfEachMicrobatch) {
  const Hardware simple = simple_hardware();
  const auto seconds = [&](int sequences) {
    return plan_on(
               simple, 1,
               with(kSmall, {"training.local_batch_size=4", "training.global_batch_size=" + std::to_string(sequences)}))
        .step_time->seconds;
  };
  EXPECT_NEAR(seconds(9) / seconds(8), 9.0 / 8, 1e-6);
}

// A plan has the schedule of the run, whatever hardware it is for.
TEST(StepTime, LeavesTheScheduleAsItIs) {
  const std::string schedule = "parallelism.pipeline_parallel_schedule=", order = "parallelism.vocabulary_parallel=";
  for (const Words& more : {Words{schedule + "zb_v"}, Words{schedule + "v_half", order + "algorithm_2"},
                            Words{schedule + "v_min", order + "algorithm_1"}}) {
    const Words keys = with(with(kSmall, {"parallelism.pipeline_parallel_degree=2"}), more);
    Plan other = plan_on(load_hardware("a100-pcie"), 2, keys);
    const Plan plan = make_plan(other.config, {.ranks = 2, .vocab_size = 256});
    EXPECT_EQ(plan.schedule, other.schedule) << more.front();
    EXPECT_FALSE(plan.step_time);
  }
}

// GPT models of the published experiments with vocabulary parallelism (Yeung et al. 2024, arXiv 2411.05288), on A100.
Words published_gpt(int ranks, int layers, int hidden, const Words& more) {
  return with({"parallelism.pipeline_parallel_degree=" + std::to_string(ranks),
               "model.num_hidden_layers=" + std::to_string(layers), "model.hidden_size=" + std::to_string(hidden),
               "model.intermediate_size=" + std::to_string(4 * hidden),
               "model.num_attention_heads=" + std::to_string(hidden / 128),
               "model.num_key_value_heads=" + std::to_string(hidden / 128), "model.mlp=gelu",
               "model.vocab_size=256000", "model.max_position_embeddings=2048", "training.seq_len=2048",
               "training.global_batch_size=128"},
              more);
}

// Zigzag gives 15 of 31 tokens to one rank and 16 to the other. The rank with most pairs counts, with its own queries.
TEST(StepTime, RingOfUnevenShards) {
  const auto hardware = std::make_shared<const Hardware>(load_hardware("h100-8x"));
  for (const char* objective : {"masked", "causal"}) {
    const auto step_seconds = [&](const std::string& seq_len) {
      const Words words = {"run.ranks=2",
                           "run.device=cuda",
                           "model.vocab_size=1000",
                           "training.seq_len=" + seq_len,
                           "parallelism.context_parallel_ring=2",
                           std::string("model.objective=") + objective};
      const Config config = parse_config("", "run.toml", words);
      return make_plan(config, {.ranks = 2, .vocab_size = 999, .hardware = hardware}).step_time->seconds;
    };
    // The rank has as many queries as with 32 tokens, and 31 of 32 keys.
    EXPECT_LE(step_seconds("31"), step_seconds("32")) << objective;
    EXPECT_GE(step_seconds("31"), step_seconds("32") * 31 / 32) << objective;
  }
}

double mfu(const Plan& plan) { return 100 * model_flops_utilization(plan, plan.step_time->seconds, true); }

// In the interlaced pipeline all ranks wait for collectives in every microbatch. Over 4 hosts this costs more than it
// does on one host; published are 3 points of MFU at 32 ranks against algorithm 1, and a gain of up to 1 point at 8.
TEST(StepTime, CountsTheBarriersOfTheVocabulary) {
  const Hardware a100 = load_hardware("a100-8x");
  const auto loss = [&](int ranks, int layers, int hidden, const Hardware& hardware) {
    const auto with_order = [&](const char* order) {
      const Words words = {std::string("parallelism.vocabulary_parallel=") + order};
      return mfu(plan_on(hardware, ranks, published_gpt(ranks, layers, hidden, words)));
    };
    return with_order("algorithm_1") - with_order("interlaced");
  };
  const double one_host = loss(8, 32, 3072, a100), four_hosts = loss(32, 64, 5120, a100);
  EXPECT_LT(one_host, 1);
  EXPECT_NEAR(four_hosts, 3, 1);
  // Control: if collectives take no time, the interlaced pipeline loses nothing.
  Hardware free = a100;
  for (LinkTable* links : {&free.same_host, &free.between_hosts}) {
    links->bytes_per_s = 1e30;
    links->message.latency_seconds = 0;
    for (auto* list : {&links->all_reduce, &links->all_gather, &links->reduce_scatter, &links->all_to_all}) {
      for (CollectiveTable& entry : *list) entry.latency_seconds = entry.step_seconds = 0;
    }
  }
  EXPECT_LT(loss(32, 64, 5120, free), 0.3);
}

// The passes of a sharded vocabulary take time, and each barrier that of its own collective.
TEST(StepTime, OfVocabularyPassesIsNotZero) {
  const Hardware a100 = load_hardware("a100-8x");
  const Plan plan = plan_on(a100, 8, published_gpt(8, 32, 3072, {"parallelism.vocabulary_parallel=algorithm_2"}));
  const VocabularyTimes times = PassTimer(plan, 1).vocabulary();
  for (const TimeParts* parts : {&times.lookup, &times.scatter, &times.logits, &times.gradients}) {
    EXPECT_GT(parts->kernels, 0);
  }
  using enum ActionKind;
  const std::map<ActionKind, double>& barriers = times.barriers;
  EXPECT_GT(barriers.at(S), barriers.at(TW));  // a residual stream, and three numbers a token
  EXPECT_EQ(barriers.at(S), barriers.at(EB));
  EXPECT_NEAR(barriers.at(B), barriers.at(F) + barriers.at(TW), 1e-12);
  Hardware spread = a100;
  spread.device.per_host = 2;
  const std::map<ActionKind, double> slow = PassTimer(plan_on(spread, 8, published_gpt(8, 32, 3072, {
                                                          "parallelism.vocabulary_parallel=algorithm_2"})), 1)
                                                .barriers();
  for (const auto& [kind, seconds] : barriers) EXPECT_GT(slow.at(kind), seconds);
  // The software around collectives is work of the passes that start them or wait for them, and no part of barriers.
  Hardware software = a100;
  software.step.call_seconds = 1;
  const Plan other = plan_on(software, 8, published_gpt(8, 32, 3072, {"parallelism.vocabulary_parallel=algorithm_2"}));
  const VocabularyTimes more = PassTimer(other, 1).vocabulary();
  EXPECT_NEAR(more.logits.seconds() - times.logits.seconds(), 3, 1e-9);
  EXPECT_NEAR(more.gradients.seconds() - times.gradients.seconds(), 1, 1e-9);
  EXPECT_NEAR(more.lookup.seconds() - times.lookup.seconds(), 1, 1e-9);
  EXPECT_NEAR(more.scatter.seconds() - times.scatter.seconds(), 1, 1e-9);
  EXPECT_EQ(more.barriers, times.barriers);
}

// With post-validation, the next step begins while the last ranks still work on this one. ZB-H2 gains from it, 1F1B
// does not.
TEST(StepTime, OfConsecutiveStepsOverlapsWithPostValidation) {
  const Hardware h100 = load_hardware("h100-8x");
  const auto seconds = [&](const std::string& schedule, bool post_validates) {
    return plan_on(h100, 4,
                   with(kLlama70b, {"parallelism.pipeline_parallel_degree=4", "model.vocab_size=1024",
                                    "parallelism.pipeline_parallel_schedule=" + schedule,
                                    "training.global_batch_size=16",
                                    std::string("parallelism.pipeline_parallel_post_validation=") +
                                        (post_validates ? "true" : "false")}))
        .step_time->seconds;
  };
  EXPECT_NEAR(seconds("zb_h2", false) / seconds("zb_h1", false), 1, 0.02);
  EXPECT_LT(seconds("zb_h2", true), 0.97 * seconds("zb_h1", true));
  EXPECT_LT(seconds("zb_h2", true), 0.97 * seconds("zb_h2", false));
  EXPECT_GT(seconds("1f1b", true), 0.99 * seconds("1f1b", false));
}

}  // namespace
}  // namespace orthant::step_time_test
