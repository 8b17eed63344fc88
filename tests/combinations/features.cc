// The table of features: for each level, the run-file settings that select it.
#include "tests/combinations/features.h"

#include "base/errors.h"
#include "parallel/pipeline/plan.h"
#include "tests/support/recomputations.h"

namespace orthant {
namespace {

std::string parallel(const std::string& key, const std::string& value) { return "parallelism." + key + "=" + value; }

Settings one_dimension(int columns, bool sequence) {
  return {parallel("tensor_parallel_degree", std::to_string(columns)),
          parallel("tensor_parallel_sequence", sequence ? "true" : "false")};
}

Settings grid(const std::string& mesh, const std::string& kind, const std::string& product = "stationary") {
  return {parallel("tensor_parallel_kind", kind), parallel("tensor_parallel_mesh", mesh),
          parallel("tensor_parallel_product", product)};
}

Settings ring(int ranks, const std::string& placement, const Settings& more = {}) {
  Settings settings = {parallel("context_parallel_ring", std::to_string(ranks)),
                       parallel("context_parallel_placement", placement)};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

Settings pipeline(int ranks, const Settings& more) {
  Settings settings = {parallel("pipeline_parallel_degree", std::to_string(ranks))};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

// Sharded states with two copies among the data ranks.
Settings copies(int data, const Settings& more) {
  Settings settings = {parallel("data_parallel_degree", std::to_string(data)),
                       parallel("data_parallel_replicate_degree", "2")};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

Feature vocabulary() {
  Feature feature{"vocabulary", {}};
  for (const char* how : {"naive", "algorithm_1", "algorithm_2", "redistribution", "interlaced"}) {
    feature.levels.push_back({how, pipeline(2, {parallel("vocabulary_parallel", how)})});
  }
  return feature;
}

Feature schedule() {
  Feature feature{"schedule", {}};
  for (const PipelineSchedule& each : pipeline_schedules()) {
    const std::string name(each.name);
    feature.levels.push_back({name, pipeline(2, {parallel("pipeline_parallel_schedule", name)})});
  }
  feature.levels.push_back({"1f1b, 3 ranks", pipeline(3, {})});
  feature.levels.push_back({"1f1b, layers by cost", pipeline(2, {parallel("pipeline_parallel_layers", "-1")})});
  return feature;
}

std::vector<Feature> make_features() {
  const std::string rsa = parallel("context_parallel_attention", "ring_self_attention");
  const std::string window = parallel("context_parallel_window", "2");
  const std::string summaries = "model.linformer_length=5", masked = "model.objective=masked";
  return {
      {"data",
       {{"data 2", {parallel("data_parallel_degree", "2")}},
        {"data 3", {parallel("data_parallel_degree", "3")}},
        {"data 2, outermost", {parallel("data_parallel_degree", "2"), parallel("outer_axis", "data")}}}},
      {"ZeRO",
       {{"ZeRO 1", {parallel("zero_stage", "1")}},
        {"ZeRO 2", {parallel("zero_stage", "2")}},
        {"ZeRO 3, never", {parallel("zero_stage", "3"), parallel("zero_reshard", "never")}},
        {"ZeRO 3, step", {parallel("zero_stage", "3")}},
        {"ZeRO 3, microbatch", {parallel("zero_stage", "3"), parallel("zero_reshard", "microbatch")}},
        {"ZeRO 2, 2 copies", copies(2, {parallel("zero_stage", "2")})},
        {"ZeRO 3, 2 copies of 2 shards", copies(4, {parallel("zero_stage", "3")})}}},
      {"ring",
       {{"ring 2", ring(2, "zigzag")},
        {"ring 2, stripe", ring(2, "stripe")},
        {"ring 3, contiguous", ring(3, "contiguous")},
        {"ring 4, double", ring(4, "zigzag", {window})}}},
      {"Ulysses", {{"Ulysses 2", {parallel("context_parallel_ulysses", "2")}}}},
      {"ring self-attention",
       {{"ring self-attention 2", ring(2, "zigzag", {rsa})},
        {"ring self-attention 3, all-reduce",
         ring(3, "contiguous", {rsa, parallel("context_parallel_reduction", "all_reduce")})}}},
      {"Linformer",
       {{"Linformer", {summaries, masked}},
        {"Linformer, ring 2",
         ring(2, "contiguous", {parallel("context_parallel_attention", "linformer"), summaries, masked})}}},
      {"tensor",
       {{"1d, 2 columns", {parallel("tensor_parallel_degree", "2")}},
        {"2d [2, 2, 1]", grid("[2,2,1]", "2d")},
        {"2d [2, 2, 1], summa", grid("[2,2,1]", "2d", "summa")},
        {"2d [1, 2, 1]", grid("[1,2,1]", "2d")},
        {"2d [2, 1, 1]", grid("[2,1,1]", "2d")},
        {"2.5d [1, 1, 2]", grid("[1,1,2]", "2.5d")},
        {"2.5d [2, 2, 2]", grid("[2,2,2]", "2.5d")},
        {"auto, 4 ranks", {parallel("tensor_parallel_kind", "auto"), parallel("tensor_parallel_degree", "4")}}}},
      {"sequence parallelism",
       {{"sequence parallelism on", one_dimension(2, true)}, {"sequence parallelism off", one_dimension(2, false)}}},
      vocabulary(),
      schedule(),
      {"recompute",
       {{"recompute", {"activation_checkpoint.mode=full"}},
        {"recompute norms and MLP", selective({"norms", "mlp"})},
        {"recompute attention, every 2 blocks", selective({"attention", "swiglu"}, 2)}}},
      {"dtype", {{"float32", {"training.dtype=float32"}}, {"bfloat16", {"training.dtype=bfloat16"}}}},
      {"optimizer", {{"SGD", {"optimizer.name=sgd"}}, {"Muon", {"optimizer.name=muon"}}}},
      {"update",
       {{"in backward",
         {"optimizer.in_backward=true", "training.max_norm=0", "training.local_batch_size=8",
          "training.global_batch_size=8"}},
        {"in backward, clipped by the previous norm",
         {"optimizer.in_backward=true", "training.max_norm=0.5", "training.clip_by=previous_norm",
          "training.local_batch_size=8", "training.global_batch_size=8"}}}},
      {"tied", {{"tied", {"model.tie_word_embeddings=true"}}}},
      {"biases",
       {{"attention biases", {"model.attention_bias=true"}},
        {"all biases", {"model.attention_bias=true", "model.mlp_bias=true"}}}},
      {"block",
       {{"head norms", {"model.qk_norm=true"}},
        {"layer norms and GELU", {"model.norm=layer_norm", "model.mlp=gelu_tanh"}}}},
      {"masked", {{"masked", {masked}}}},
      {"documents", {{"documents", {"data.mask_documents=true", "data.long_documents=cut"}}}},
      {"window", {{"window", {"model.sliding_window=5"}}}},
      {"capped scores", {{"capped scores", {"model.attn_logit_softcapping=0.5"}}}},
      {"capped logits",
       {{"capped logits", {"model.final_logit_softcapping=2"}},
        {"capped logits, smoothing, z loss",
         {"model.final_logit_softcapping=2", "training.label_smoothing=0.1", "training.z_loss=0.01"}}}},
      {"dropout", {{"dropout", {"model.dropout=0.2"}}}},
      {"uneven sizes",
       {{"15 tokens", {"training.seq_len=15"}},
        {"7 sequences", {"training.global_batch_size=7"}},
        {"1 sequence a microbatch", {"training.local_batch_size=1"}},
        {"one key head", {"model.num_key_value_heads=1"}}}},
  };
}

}  // namespace

const std::vector<Feature>& features() {
  static const std::vector<Feature> all = make_features();
  return all;
}

LevelId level_named(const std::string& name) {
  for (size_t f = 0; f < features().size(); ++f) {
    const auto& levels = features()[f].levels;
    for (size_t l = 0; l < levels.size(); ++l)
      if (levels[l].name == name) return {f, l};
  }
  throw LogicError("no level has the name " + name);
}

const Level& level_of(const LevelId& id) { return features().at(id.feature).levels.at(id.level); }

}  // namespace orthant
