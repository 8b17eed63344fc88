// Compares a checkpoint's state.json and config.json with a run. Each difference that would change the results is
// refused, with the key to set back.
#include "runtime/resume_check.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <type_traits>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"
#include "config/changes.h"
#include "config/table.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;

void refuse_other_model(const Architecture& saved, const Architecture& requested, const std::string& directory,
                        const Config& c) {
  Config of_checkpoint, of_run;
  static_cast<Architecture&>(of_checkpoint.model) = saved;
  static_cast<Architecture&>(of_run.model) = requested;
  for (const Key* key : model_keys()) {
    const std::string value = value_text(*key, of_checkpoint);
    const bool is_shape = key->name == "max_position_embeddings" && !saved.rotary();  // rows of learned positions
    if (!(key->must_match_on_resume || is_shape) || value == value_text(*key, of_run)) continue;
    throw ConfigError(fmt::format("{} differs from the checkpoint {}, which has {}; set it to that, or choose another "
                                  "job.dump_folder", c.locate(key->full_name()), directory, value));
  }
}

// Content of a checkpoint's state.json. get() refuses a checkpoint that lacks a field: another version wrote it.
class State {
 public:
  explicit State(const LoadedCheckpoint& checkpoint)
      : directory_(checkpoint.directory),
        source_(checkpoint.directory + "/orthant/state.json"),
        json_(parse_json(checkpoint.state_json, source_)) {
    if (const int64_t step = get<int64_t>("step"); step != checkpoint.step)
      throw DataError(fmt::format("{}: step is {}, but the manifest is of step {}", source_, step, checkpoint.step));
  }

  /// A field that not every checkpoint has; nullopt if it is missing.
  template <class T>
  std::optional<T> find(const char* field) const {
    const auto found = json_.find(field);
    const auto fits = [](const Json& value) {
      if (std::is_same_v<T, std::string>) return value.is_string();
      if (std::is_same_v<T, bool>) return value.is_boolean();
      return std::is_same_v<T, double> ? value.is_number() : value.is_number_integer();
    };
    return found != json_.end() && fits(*found) ? std::optional(found->get<T>()) : std::nullopt;
  }

  template <class T>
  T get(const char* field) const {
    if (const std::optional<T> found = find<T>(field)) return *found;
    throw DataError(
        fmt::format("{}: no field \"{}\": another version of Orthant wrote this checkpoint. Resume with that "
                    "one, or start from its weights: model.from = \"{}\", training.seed_weights = false",
                    source_, field, directory_));
  }

 private:
  std::string directory_, source_;
  Json json_;
};

void refuse_other_run(const State& state, const std::string& directory, const Config& c) {
  auto same = [&](const char* key, const auto& now, const char* why) {
    const auto then = state.get<std::decay_t<decltype(now)>>(std::strchr(key, '.') + 1);
    if (then == now) return;
    throw ConfigError(fmt::format(
        "{} differs from the checkpoint {}, where it was {}; with the new value, {}. Set it back, or choose another "
        "job.dump_folder",
        c.locate(key), directory, then, why));
  };
  same("training.seed", c.training.seed, "samples would have another order and other documents would be held out");
  same("training.global_batch_size", c.training.global_batch_size, "samples would be repeated or skipped");
  same("training.seq_len", c.training.seq_len, "the text would be split into other samples");
  same("data.mask_documents", c.data.mask_documents, "attention would see other tokens");
  if (c.model.objective == "masked") same("model.masked_share", c.model.masked_share, "other tokens would be masked");
  same("training.dtype", c.training.dtype, "the weights and the optimizer state would have another precision");
}

// The run file of the checkpoint, or nullopt if another version of Orthant wrote it.
std::optional<Config> checkpoint_config(const LoadedCheckpoint& checkpoint) {
  try {
    return parse_config(checkpoint.config_toml, checkpoint.directory + "/orthant/config.toml", {});
  } catch (const ConfigError&) {
    return {};
  }
}

// The names of a checkpoint's tensors begin with the names of the optimizer's state tensors.
void refuse_other_optimizer(const LoadedCheckpoint& checkpoint, const Config& c) {
  const std::vector<std::string> state = optimizer_spec(c.optimizer).state_names();
  const std::set<std::string> now(state.begin(), state.end());
  std::set<std::string> then;
  for (const std::string& name : checkpoint.optimizer.names()) then.insert(name.substr(0, name.find('.')));
  then.erase("master");
  if (then == now) return;
  const auto text = [](const std::set<std::string>& names) {
    return names.empty() ? "none" : join(std::vector<std::string>(names.begin(), names.end()), " and ");
  };
  const auto before = checkpoint_config(checkpoint);
  const bool same_name = before && before->optimizer.name == c.optimizer.name;
  throw ConfigError(
      fmt::format("{} differs from the checkpoint {}: the state tensors of the optimizer must be the same, but the "
                  "checkpoint has {}, and these settings need {}. Set [optimizer] back, or choose another "
                  "job.dump_folder",
                  c.locate(same_name ? "optimizer.momentum" : "optimizer.name"), checkpoint.directory,
                  text(then), text(now)));
}

// Compares only text with text. A Megatron PREFIX may hold tokens of the same text; its own fingerprint decides later.
void refuse_other_text(const LoadedCheckpoint& checkpoint, const State& state, std::optional<uint64_t> fingerprint,
                       const Config& c) {
  const std::string then = state.find<std::string>("text_xxh3").value_or("");
  if (then.empty() || !fingerprint || then == fmt::format("{:016x}", *fingerprint)) return;
  const auto before = checkpoint_config(checkpoint);
  if (before && (before->data.format != c.data.format || before->data.text_key != c.data.text_key)) {
    const bool format = before->data.format != c.data.format;
    throw ConfigError(
        fmt::format("{}, but {} for the checkpoint {}; set it back, or choose another job.dump_folder",
                    c.locate(format ? "data.format" : "data.text_key"),
                    format ? "it was \"" + before->data.format + "\"" : "it was \"" + before->data.text_key + "\"",
                    checkpoint.directory));
  }
  throw ConfigError(
      fmt::format("{} holds a different text from the one that the checkpoint {} was trained on{}, or its files have "
                  "changed since; name the same files, or choose another job.dump_folder",
                  c.locate("data.path"), checkpoint.directory,
                  before ? fmt::format(" ({})", join(before->data.path, ", ")) : ""));
}

[[noreturn]] void refuse_tokenizer(const std::string& directory, const Config& c) {
  throw ConfigError(
      fmt::format("{} differs from the tokenizer of the checkpoint {}; set it back, or choose "
                  "another job.dump_folder",
                  c.locate("data.tokenizer"), directory));
}

void refuse_other_tokenizer(const State& state, const Tokenizer& tokenizer, const std::string& directory,
                            const Config& c) {
  if (state.get<std::string>("tokenizer_xxh3") == fmt::format("{:016x}", tokenizer.fingerprint())) return;
  refuse_tokenizer(directory, c);
}

// For a tokenizer that is trained on the text and does not exist yet. On the same text, equal sizes give equal
// tokenizers.
void refuse_other_trained_tokenizer(const LoadedCheckpoint& checkpoint, const Config& c) {
  const auto before = checkpoint_config(checkpoint);
  if (!before || before->data.tokenizer == c.data.tokenizer) return;
  const bool a_file = before->data.tokenizer.ends_with(".model");  // may hold the tokenizer trained on this text
  if (!a_file) refuse_tokenizer(checkpoint.directory, c);
}

[[noreturn]] void refuse_data(const std::string& directory, const Config& c) {
  const bool is_chat = c.data.format == "chat";
  throw ConfigError(fmt::format(
      "{} (with {}{}) differs from the data of the checkpoint {}, or its files have changed since; name the same "
      "files, "
      "hold out the same fraction, {}or choose another job.dump_folder",
      c.locate("data.path"), c.locate("data.validation"), is_chat ? " and " + c.locate("data.chat_template") : "",
      directory, is_chat ? "use the same chat template, " : ""));
}

void refuse_other_data(const State& state, uint64_t fingerprint, const std::string& directory, const Config& c) {
  if (state.get<std::string>("data_xxh3") != fmt::format("{:016x}", fingerprint)) refuse_data(directory, c);
}

// Another fraction of held-out documents leaves other documents to train on, and other weights change the order of
// samples, even if the text is the same.
void refuse_other_samples(const LoadedCheckpoint& checkpoint, const Config& c) {
  const auto before = checkpoint_config(checkpoint);
  if (!before) return;
  if (before->data.validation.fraction != c.data.validation.fraction) refuse_data(checkpoint.directory, c);
  if (before->data.weights == c.data.weights) return;
  throw ConfigError(
      fmt::format("{} differs from the checkpoint {}, where it was {}; samples would have another order. "
                  "Set it back, or choose another job.dump_folder",
                  c.locate("data.weights"), checkpoint.directory, value_text(*find_key("data.weights"), *before)));
}

}  // namespace

void check_resume_before_data(const LoadedCheckpoint& checkpoint, const Plan& plan) {
  const Config& config = plan.config;
  const State state(checkpoint);
  refuse_other_text(checkpoint, state, text_fingerprint(config.data.path, text_format(config)), config);
  if (config.data.tokenizer.starts_with("train:")) {
    refuse_other_trained_tokenizer(checkpoint, config);
  } else {
    refuse_other_tokenizer(state, *load_tokenizer(config.data.tokenizer, "", {}), checkpoint.directory, config);
  }
  refuse_other_model(checkpoint.hf_config.model, plan.architecture, checkpoint.directory, config);
  refuse_other_run(state, checkpoint.directory, config);
  refuse_other_optimizer(checkpoint, config);
  refuse_other_samples(checkpoint, config);
}

TrainState load_train_state(const LoadedCheckpoint& checkpoint, const Plan& plan, const TrainingData& data) {
  const Config& config = plan.config;
  const std::string& directory = checkpoint.directory;
  const State state(checkpoint);
  refuse_other_text(checkpoint, state, data.text_fingerprint, config);
  refuse_other_tokenizer(state, *data.tokenizer, directory, config);
  refuse_other_model(checkpoint.hf_config.model, plan.architecture, directory, config);
  refuse_other_run(state, directory, config);
  refuse_other_optimizer(checkpoint, config);
  refuse_other_data(state, data.fingerprint, directory, config);
  return {.step = checkpoint.step,
          .tokens = state.get<int64_t>("tokens"),
          .norm = state.find<double>("gradient_norm"),
          .skipped_steps = state.find<int64_t>("skipped_steps").value_or(0)};
}

std::vector<std::string> changes_since_checkpoint(const std::string& directory, const Config& config) {
  const std::string file = directory + "/orthant/config.toml";
  try {
    return config_changes(load_config(file, {}), config);
  } catch (const ConfigError&) {
    return {"unknown, because another version of Orthant wrote " + file};
  }
}

std::string learning_rate_change(const std::string& directory, const Config& config) {
  try {
    const LoadedCheckpoint checkpoint = open_checkpoint(directory, kNoFiles);
    const int64_t next = checkpoint.step + 1;
    if (next > config.training.steps) return "";
    const double then = learning_rate_of(parse_config(checkpoint.config_toml, directory, {}), next);
    const double now = learning_rate_of(config, next);
    if (then == now) return "";
    const bool decays = config.lr_scheduler.decay_type != "constant";
    return fmt::format("{:.2e} in step {}, {:.2e} without the changes{}", now, next, then,
                       decays ? fmt::format("; its decay now ends at step {}", config.training.steps) : "");
  } catch (const Error&) {
    return "";  // damage and other versions are reported elsewhere
  }
}

}  // namespace orthant
