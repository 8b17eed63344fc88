#include "runtime/snapshot_saver.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/errors.h"
#include "base/text.h"
#include "checkpoint/retention.h"
#include "data/chat_template.h"
#include "runtime/tensor_files.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFailureMark = '!';  // begins the text of a roll call that states a failure

// Calls the function. Returns the text that states its failure; empty if it succeeds.
template <class Function>
std::string failure_of(Function&& function) {
  try {
    function();
    return "";
  } catch (const std::exception& error) {
    return kFailureMark + brief(error);
  }
}

// The first failure that a rank states, with the rank; empty if there is none.
std::string first_failure(const std::vector<std::string>& texts) {
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].starts_with(kFailureMark))
      return fmt::format("{}rank {}: {}", kFailureMark, rank, texts[rank].substr(1));
  }
  return "";
}

// The config.json of checkpoints. A model that continues another with its tokenizer keeps the other's token ids.
HfConfig hf_config_of(const Plan& plan, const TrainingData& data) {
  HfConfig config{.model = plan.architecture};
  config.torch_dtype = plan.config.training.dtype;
  if (data.model_from) {
    config.bos_token_id = data.model_from->bos_token_id;
    config.eos_token_ids = data.model_from->eos_token_ids;
    config.pad_token_id = data.model_from->pad_token_id;
    config.generation_config = data.model_from->generation_config;
  }
  if (config.eos_token_ids.empty() && data.tokenizer->end_of_text() >= 0) {
    config.eos_token_ids = {data.tokenizer->end_of_text()};
  }
  if (!config.model.causal()) {
    config.other_keys = Json{{"mask_token_id", mask_token(data.tokenizer->vocab_size())}}.dump();
  }
  return config;
}

}  // namespace

struct SnapshotSaver::Save {
  const NewCheckpoint checkpoint;
  const CheckpointContent content;
  const int keep_latest_k;      // 0: all
  std::vector<RollCall> calls;  // before the first round, between rounds, and at the end
  RollCall after_failure;       // rank 0 does not come to this one: the others wait in it until rank 0 has reported
  std::vector<CollectedTensor> tensors;       // of the round
  std::unique_ptr<SafetensorsWriter> writer;  // of the file that this rank writes now
  Manifest part;                              // of the files that it has written
  std::string failure;                        // why it could not write one
  std::exception_ptr error;
  std::atomic<bool> ended = false, is_dropped = false;
  std::thread thread;
};

SnapshotSaver::SnapshotSaver(const Plan& plan, const TrainingData& data, Session& session, const SaveLimits& limits)
    : plan_(plan),
      data_(data),
      session_(session),
      in_background_(plan.config.checkpoint.async_mode == "async"),
      files_(plan_files(plan, limits)),
      collector_(plan, files_, session, in_background_) {}

SnapshotSaver::~SnapshotSaver() {
  if (!save_) return;
  save_->is_dropped = true;  // this rank fails, so the save must end soon
  if (save_->thread.joinable()) save_->thread.join();
}

CheckpointContent SnapshotSaver::content_of(const TrainState& state) const {
  const Config& config = plan_.config;
  const TrainingData& data = data_;
  CheckpointContent content;
  content.hf_config = hf_config_of(plan_, data);
  Json run = {{"step", state.step},
              {"next_sample", state.step * config.training.global_batch_size},
              {"tokens", state.tokens},
              {"seed", config.training.seed},
              {"global_batch_size", config.training.global_batch_size},
              {"seq_len", config.training.seq_len},
              {"mask_documents", config.data.mask_documents},
              {"masked_share", config.model.masked_share},
              {"dtype", config.training.dtype},
              {"data_xxh3", fmt::format("{:016x}", data.fingerprint)},
              {"text_xxh3", data.text_fingerprint ? fmt::format("{:016x}", *data.text_fingerprint) : ""},
              {"tokenizer_xxh3", fmt::format("{:016x}", data.tokenizer->fingerprint())},
              {"mesh", to_string(plan_.mesh)}};
  if (session_.last_norm()) run["gradient_norm"] = *session_.last_norm();
  if (session_.skipped_steps() > 0) run["skipped_steps"] = session_.skipped_steps();
  content.state_json = run.dump(2) + "\n";
  content.config_toml = print_config(config);
  content.write_extra_files = [&data](const std::string& directory) {
    data.tokenizer->save(directory);
    if (!data.chat_template.empty() && ChatTemplate::of_directory(directory).text() != data.chat_template) {
      write_file(directory + "/chat_template.jinja", data.chat_template);
    }
  };
  return content;
}

void SnapshotSaver::save(const TrainState& state, bool keeps_old) {
  wait();
  save_ = std::make_unique<Save>(NewCheckpoint(plan_.config.job.dump_folder + "/checkpoints", state.step),
                                 content_of(state),
                                 keeps_old ? 0 : static_cast<int>(plan_.config.checkpoint.keep_latest_k));
  save_->part.step = state.step;
  const auto open_roll_call = [this, &save = *save_] {
    RollCall call =
        session_.comm().open_roll_call(fmt::format("write its part of the checkpoint of step {}", save.part.step));
    call.check = [&save, check = call.check] {
      if (save.is_dropped) throw CommError("the save has been dropped");
      if (check) check();
    };
    return call;
  };
  for (int i = 0; i <= files_.rounds; ++i) save_->calls.push_back(open_roll_call());
  save_->after_failure = open_roll_call();
  if (in_background_) save_->tensors = collector_.collect(0);
  const auto carry_out_and_end = [this, &save = *save_] {
    try {
      carry_out(save);
    } catch (...) {
      save.error = std::current_exception();
      if (session_.comm().rank() == 0) (void)save.checkpoint.abandon("");
    }
    save.ended = true;
  };
  if (in_background_) {
    save_->thread = std::thread(carry_out_and_end);
  } else {
    const auto advancing = session_.comm().keep_advancing();
    carry_out_and_end();
    throw_if_failed();
  }
}

// Runs on the rank's thread, or on one of its own if there is only one round, whose tensors are collected already.
void SnapshotSaver::carry_out(Save& save) {
  std::string failure =
      call_roll(save.calls.front(), "", [&](const auto&) { return failure_of([&] { save.checkpoint.begin(); }); });
  for (int round = 0; round < files_.rounds && failure.empty(); ++round) {
    if (round > 0) failure = call_roll(save.calls[static_cast<size_t>(round)], save.failure, first_failure);
    if (!failure.empty()) break;
    if (!in_background_) save.tensors = collector_.collect(round);
    save.failure = failure_of([&] { write(save); });
    save.tensors.clear();
  }
  if (failure.empty()) {
    const std::string own = save.failure.empty() ? manifest_json(save.part) : save.failure;
    failure = call_roll(save.calls.back(), own, [&](const std::vector<std::string>& of_ranks) {
      return failure_of([&] { complete(save, of_ranks); });
    });
  }
  if (failure.empty()) return;
  if (session_.comm().rank() != 0) call_roll(save.after_failure);  // throws
  throw save.checkpoint.abandon(failure.substr(1));
}

// Writes this rank's tensors of a round, and frees each.
void SnapshotSaver::write(Save& save) const {
  for (CollectedTensor& tensor : save.tensors) {
    const SavedFile& file = *tensor.file;
    const std::string path = save.checkpoint.directory() + "/" + file.name;
    if (save.is_dropped) throw CommError("the save has been dropped");
    if (!save.writer) save.writer = std::make_unique<SafetensorsWriter>(path, headers_of(file));
    save.writer->write(bytes_of(tensor.content));
    tensor.content.reset();
    if (tensor.tensor != &file.tensors.back()) continue;
    add_file(save.part, file.name, save.writer->commit());
    save.writer.reset();
  }
}

std::vector<TensorBytes> SnapshotSaver::headers_of(const SavedFile& file) const {
  std::vector<TensorBytes> headers;
  for (const SavedTensor& tensor : file.tensors) {
    headers.push_back({.name = tensor.stored.name,
                       .dtype = dtype_of(collector_.dtype_of_parts(tensor)),
                       .shape = tensor.stored.shape});
  }
  return headers;
}

// Completes the checkpoint. The text of a rank is the manifest of its files, or the reason why it could not write them.
void SnapshotSaver::complete(Save& save, const std::vector<std::string>& of_ranks) const {
  std::vector<Manifest> parts;
  if (const std::string failure = first_failure(of_ranks); !failure.empty()) throw DataError(failure.substr(1));
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    parts.push_back(parse_manifest(of_ranks[rank], fmt::format("the files of rank {}", rank)));
  }
  save.checkpoint.complete(save.content, parts, save.keep_latest_k);
}

void SnapshotSaver::wait() {
  if (!save_) return;
  const auto advancing = session_.comm().keep_advancing();
  if (save_->thread.joinable()) save_->thread.join();
  throw_if_failed();
}

void SnapshotSaver::throw_if_failed() {
  if (!save_ || !save_->ended) return;
  if (save_->thread.joinable()) save_->thread.join();
  const std::unique_ptr<Save> save = std::move(save_);
  if (save->error) std::rethrow_exception(save->error);
  last_saved_ = save->checkpoint.target();
}

}  // namespace orthant
