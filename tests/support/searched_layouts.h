// Runs of a small model, and all layouts of a small space of them, for tests of the search.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "hardware/hardware.h"
#include "plan/plan.h"

namespace orthant::searched_layouts {

using Words = std::vector<std::string>;

inline Config config_of(int ranks, Words words = {}) {
  words.insert(words.begin(),
               {"run.ranks=" + std::to_string(ranks), "run.device=cuda", "training.dtype=bfloat16",
                "model.vocab_size=32000", "model.hidden_size=2048", "model.intermediate_size=5632",
                "model.num_attention_heads=16", "model.num_key_value_heads=8", "model.head_dim=128",
                "model.num_hidden_layers=8", "model.max_position_embeddings=4096", "training.seq_len=4096",
                "training.local_batch_size=1", "training.global_batch_size=16", "validation.freq=0"});
  return parse_config("", "run.toml", words);
}

inline RunFacts facts_on(const Hardware& hardware, int ranks) {
  return {.ranks = ranks, .vocab_size = 32000, .hardware = std::make_shared<const Hardware>(hardware)};
}

inline Hardware h100_of(double memory_gib) {
  Hardware h100 = load_hardware("h100-8x");
  h100.device.memory_bytes = memory_gib * 0x1p30;
  return h100;
}

// Calls visit(config) for all combinations of the searched keys in a smaller space: 1-D tensor meshes, pipelines,
// Ulysses and rings on 4 ranks.
template <typename Visit>
void for_each_layout(const Config& base, Visit&& visit) {
  for (const auto& [tensor, pipeline, ulysses, ring] : std::vector<std::array<int, 4>>{{1, 1, 1, 1},
                                                                                       {2, 1, 1, 1},
                                                                                       {4, 1, 1, 1},
                                                                                       {1, 2, 1, 1},
                                                                                       {1, 4, 1, 1},
                                                                                       {2, 2, 1, 1},
                                                                                       {1, 1, 2, 1},
                                                                                       {1, 1, 1, 2},
                                                                                       {1, 2, 1, 2},
                                                                                       {1, 1, 2, 2},
                                                                                       {1, 1, 4, 1},
                                                                                       {1, 1, 1, 4},
                                                                                       {2, 1, 2, 1},
                                                                                       {2, 1, 1, 2},
                                                                                       {1, 2, 2, 1}}) {
    for (const auto& [stage, reshard] : std::vector<std::pair<int, std::string>>{
             {0, "step"}, {1, "step"}, {2, "step"}, {3, "step"}, {3, "never"}, {3, "microbatch"}}) {
      for (const ActivationCheckpointConfig& recompute :
           {ActivationCheckpointConfig{.mode = "none"},
            ActivationCheckpointConfig{.mode = "selective", .operations = {"norms", "swiglu"}},
            ActivationCheckpointConfig{.mode = "selective", .operations = {"norms", "attention", "swiglu"}},
            ActivationCheckpointConfig{.mode = "full"}}) {
        Config config = base;
        config.parallelism.tensor_parallel_degree = tensor;
        config.parallelism.pipeline_parallel_degree = pipeline;
        config.parallelism.context_parallel_ulysses = ulysses;
        config.parallelism.context_parallel_ring = ring;
        config.parallelism.zero_stage = stage;
        config.parallelism.zero_reshard = reshard;
        config.activation_checkpoint = recompute;
        visit(config);
      }
    }
  }
}

}  // namespace orthant::searched_layouts
