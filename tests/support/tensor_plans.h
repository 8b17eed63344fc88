// Plans of a model that tensor meshes can shard in many ways.
#pragma once

#include <fmt/format.h>

#include "advice/advised_plan.h"
#include "plan/plan.h"

namespace orthant {

/// keys: settings of [parallelism], without the section's name; more: settings of any section, with its name.
inline Plan plan_of(int ranks, const std::vector<std::string>& keys, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {"model.hidden_size=32",         "model.num_attention_heads=8",
                                    "model.num_key_value_heads=4",  "training.seq_len=32",
                                    "training.global_batch_size=8", "training.local_batch_size=2",
                                    "data.path=text.txt",           "model.max_position_embeddings=64"};
  words.push_back(fmt::format("run.ranks={}", ranks));
  for (const std::string& key : keys) words.push_back("parallelism." + key);
  words.insert(words.end(), more.begin(), more.end());
  const Config config = parse_config("", "run.toml", words);
  check_with_advice(config);
  return advised_plan(config, {.ranks = ranks, .vocab_size = 257});
}

}  // namespace orthant
