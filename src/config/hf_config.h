// config.json of a Hugging Face directory of one of the families in hf_family.h, in the forms of transformers 4 and 5.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/architecture.h"

namespace orthant {

/// The values of LlamaConfig, which hold where a file omits a key.
Architecture llama_defaults();

/// A config.json: the model, and the facts that are not the model's. The table of config/table.h has the spelling of
/// the model's keys. `linformer_length` and `linformer_tokens` are keys of our own.
struct HfConfig {
  Architecture model = llama_defaults();
  std::optional<int64_t> bos_token_id = {};
  std::vector<int64_t> eos_token_ids = {};
  std::optional<int64_t> pad_token_id = {};
  std::string torch_dtype = "float32";  // of the stored weights: float32, float16, bfloat16 or float64
  std::string other_keys = "{}";        // JSON object of the keys that are not interpreted, kept for writing
  std::string generation_config = {};   // text of generation_config.json; empty: it follows from the token ids
  bool operator==(const HfConfig&) const = default;
};

/// The file's text: the form of transformers 4, plus an equal rope_parameters for transformers 5.
std::string config_json(const HfConfig& config);
/// generation_config.json: the text that was read, or else the token ids that start and end a text.
std::string generation_config_json(const HfConfig& config);
/// The token ids that end a text: those of generation_config.json, or else of config.json, or else `otherwise`. An id
/// of -1 stands for none.
std::vector<int64_t> end_tokens(const HfConfig& config, int64_t otherwise);
/// Throws DataError with file and key for a value that is missing, of the wrong type, contradictory, or not supported.
/// Not supported: a model_type without a row in hf_family.cc; settings that its row excludes; quantized weights; rope
/// types other than default, linear, llama3 and yarn; rope parameters or windows by layer type.
HfConfig parse_hf_config(const std::string& text, const std::string& source);
/// A warning that names the keys in other_keys that transformers does not write for these families, because they may
/// change what the model computes; empty if there are none. `source` names the file.
std::string unknown_keys_warning(const HfConfig& config, const std::string& source);
/// The end of a message that this path does not exist: if it has the form of a model's name on Hugging Face, how to
/// download the model; empty otherwise.
std::string how_to_download(const std::string& path);
/// `path` is the config.json, or the directory that contains it. A generation_config.json in the same directory is read
/// too.
HfConfig read_hf_config(const std::string& path);

}  // namespace orthant
