// Writes the sections of the text one after the other.
#include "advice/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <span>

#include "advice/alternatives.h"
#include "advice/answer.h"
#include "advice/layouts.h"
#include "advice/recomputation_choices.h"
#include "advice/schedule_choices.h"
#include "advice/tensor_choices.h"
#include "advice/vocabulary_choices.h"
#include "advice/zero_choices.h"
#include "base/text.h"
#include "base/text_table.h"
#include "config/from_config.h"
#include "plan/pipeline.h"
#include "plan/save_plan.h"
#include "plan/vocabulary.h"

namespace orthant {
namespace {

// Returns the ranks of a class as ranges, with their number: "0-3 (4)", "0, 2 (2)". Of more than 8 ranges it shows the
// first 6 and the last.
std::string rank_list(const RankClasses& classes, int index) {
  constexpr size_t kShown = 8;
  const std::vector<Range>& ranges = classes.ranges(index);
  const int count = classes.num_ranks(index);
  const std::string number = count > 1 ? fmt::format(" ({})", count) : "";
  if (ranges.size() <= kShown) return ranks_text(ranges) + number;
  return fmt::format("{}, ..., {}{}", ranks_text(std::span(ranges).first(kShown - 2)),
                     ranks_text(std::span(ranges).last(1)), number);
}

std::string explain_memory(const Plan& plan) {
  // Classes whose memory prints equally share a row. The largest total comes first.
  std::map<std::vector<std::string>, int> labels;
  std::vector<int> label_of_class;
  std::vector<std::pair<int64_t, std::vector<std::string>>> texts_of_row;  // by row: the largest total, and all texts
  for (const MemoryBytes& m : plan.memory) {
    std::vector<std::string> texts;
    for (const int64_t part : {m.total(), m.parameters, m.gradients, m.optimizer, m.activations, m.working, m.host,
                               m.host_copies}) {
      texts.push_back(format_bytes(static_cast<double>(part)));
    }
    texts.insert(texts.begin() + 1, m.peak ? to_string(*m.peak) : "update");
    const auto [label, is_new] = labels.try_emplace(texts, static_cast<int>(texts_of_row.size()));
    if (is_new) texts_of_row.emplace_back(m.total(), texts);
    int64_t& largest = texts_of_row[static_cast<size_t>(label->second)].first;
    largest = std::max(largest, m.total());
    label_of_class.push_back(label->second);
  }
  const RankClasses by_row = plan.classes.joined(label_of_class);
  std::vector<int> order(texts_of_row.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](int row) { return texts_of_row[static_cast<size_t>(row)].first; });
  std::vector<std::vector<std::string>> rows = {{"ranks", "total", "peak at", "parameters", "gradients", "optimizer",
                                                 "activations", "working", "on host", "copied"}};
  for (const int row : order) {
    const std::vector<std::string>& texts = texts_of_row[static_cast<size_t>(row)].second;
    rows.push_back({rank_list(by_row, row)});
    rows.back().insert(rows.back().end(), texts.begin(), texts.end());
  }
  if (!offloads(plan.config)) {
    for (auto& row : rows) row.resize(row.size() - 2);
  }
  return text_table(rows);
}

std::string explain_communication(const Plan& plan) {
  if (plan.communication.empty()) return "  none\n";
  std::vector<std::vector<std::string>> rows = {
      {"what", "collective", "axis", "calls", "bytes sent by a rank", "received"}};
  for (const CommunicationEntry& entry : plan.communication) {
    const std::string buckets = entry.buckets > 0 ? fmt::format(", {}", counted(entry.buckets, "bucket")) : "";
    rows.push_back({entry.what + buckets, entry.collective, entry.axis,
                    fmt::format("{}", std::ranges::max(entry.calls)), grouped(std::ranges::max(entry.bytes)),
                    grouped(std::ranges::max(entry.received))});
  }
  return text_table(rows);
}

// Describes the tokens that a token attends to.
std::string explain_attention(const Plan& plan) {
  const auto& a = plan.architecture;
  if (a.linformer_length > 0) {
    return fmt::format("masked: each token attends to {} learned summaries of its sequence", a.linformer_length);
  }
  std::string text = a.causal() ? "causal: each token attends to itself and earlier tokens"
                                : "masked: each token attends to earlier and later tokens";
  if (a.sliding_window > 0) {
    text += a.causal() ? fmt::format(", at most {} in all", a.sliding_window)
                       : fmt::format(", at most {} on each side", a.sliding_window - 1);
  }
  if (plan.config.data.mask_documents) text += ", of its document";
  if (a.attn_logit_softcapping > 0)
    text += fmt::format("; scores s capped to {0} tanh(s / {0})", a.attn_logit_softcapping);
  return text;
}

// Explains the letters of the vocabulary passes, in the order of the plan's algorithm; empty if it has none.
std::string vocabulary_passes(const Plan& plan) {
  const VocabularyAlgorithm* algorithm = algorithm_of(plan);
  if (algorithm == nullptr) return "";
  std::string text = ";\n  for a rank's vocabulary rows, E and EB are the embeddings and their gradient, S logits and ";
  if (algorithm->early()) return text + "the gradient of\n  their input, TW the gradient of the head's weights";
  if (algorithm->rounds() == 2) text += "maxima,\n  Z exponentials, ";
  return text + (algorithm->rounds() == 2 ? "" : "exponentials,\n  ") + "T the head's gradients";
}

// Describes the loss if it differs from the plain cross entropy of the logits.
std::string explain_loss(const Plan& plan) {
  const OutputLoss loss = make_output_loss(plan.config);
  std::vector<std::string> parts;
  if (loss.softcap > 0) parts.push_back(fmt::format("logits y capped to {0} tanh(y / {0})", loss.softcap));
  if (loss.smoothing > 0) parts.push_back(fmt::format("in training {} of each label spread evenly", loss.smoothing));
  if (loss.z_weight > 0) parts.push_back(fmt::format("in training {} of the squared log-sum-exp added", loss.z_weight));
  return parts.empty() ? "" : fmt::format("loss     cross entropy; {}\n", join(parts, "; "));
}

// Names the optimizer, and describes the update if it is not made after backward, or not clipped by its step's norm.
std::string explain_update(const Config& config) {
  std::vector<std::string> parts = {config.optimizer.name};
  if (config.optimizer.in_backward) parts.emplace_back("in backward, as soon as the gradients of a block are summed");
  if (config.training.clips_by_previous_norm()) parts.emplace_back("clipped by the gradient norm of the step before");
  return fmt::format("update   {}\n", join(parts, "; "));
}

// Says how many ranks write checkpoints, and the memory that this takes.
std::string explain_saving(const Plan& plan) {
  const SavePlan files = plan_files(plan);
  const bool in_background = plan.config.checkpoint.async_mode == "async";
  const bool is_one = files.writers == 1;
  std::string text =
      fmt::format("save     {} a checkpoint{}", is_one ? "1 rank writes" : counted(files.writers, "rank") + " write",
                  in_background ? " while training goes on" : "");
  if (files.memory_bytes > 0) {
    text += fmt::format(", and {} at most {} more{}", is_one ? "holds" : "each holds",
                        format_bytes(static_cast<double>(files.memory_bytes)),
                        plan.config.run.device == "cuda" ? " of host memory" : "");
  }
  return text + "\n";
}

// Describes the layouts of sharded parameters, one line for each layout.
std::string explain_split(const Plan& plan) {
  std::map<std::string, std::vector<std::string>> names;
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    const Layout& layout = plan.layouts[i];
    if (!(layout == unsharded_layout(static_cast<int>(layout.split.size()))))
      names[to_string(layout)].push_back(plan.parameters[i].name);
  }
  std::string text;
  for (const auto& [layout, members] : names) {
    text += fmt::format("split    {}: {}, the first {}\n", layout,
                        counted(static_cast<int64_t>(members.size()), "tensor"), members[0]);
  }
  if (!text.empty()) text += "         one entry per dimension: S(axis) sharded over that axis, - not sharded\n";
  return text;
}

// Describes over which ranks ZeRO shards the states of rank 0, and which ranks hold copies of its shards; empty without
// ZeRO. Most parameters are in buckets like the largest one.
std::string explain_sharded_states(const Plan& plan) {
  if (!plan.shards_optimizer()) return "";
  const auto names = [](const std::vector<int>& ranks) {
    constexpr size_t kShown = 16;
    const size_t shown = std::min(ranks.size(), kShown);
    return fmt::format("{}{}", fmt::join(std::span(ranks).first(shown), " "),
                       shown < ranks.size() ? fmt::format(" ... {}", ranks.back()) : "");
  };
  const auto buckets = plan.buckets_of(0);
  const auto largest = std::ranges::max_element(buckets, {}, [](const auto& bucket) { return bucket.elements.size(); });
  const char* what = plan.shards_weights()     ? "weights, gradients and optimizer state"
                     : plan.shards_gradients() ? "gradients and optimizer state"
                                               : "optimizer state";
  std::string text = fmt::format("states   {} of rank 0: sharded over {} ({})", what,
                                 counted(plan.mesh.group_size(largest->axes), "rank"),
                                 names(plan.mesh.group(0, largest->axes)));
  if (const int copies = plan.mesh.axis_size(kReplica); copies > 1) {
    text += fmt::format("; {} copies (its shards are on ranks {})", copies, names(plan.mesh.group(0, {kReplica})));
  }
  return text + "\n";
}

// Returns the Actions of a single pipeline rank in order. The middle of a long row is left out.
std::string explain_rows(const std::vector<Action>& row) {
  constexpr size_t kShown = 12;
  std::string out = " ";
  for (size_t i = 0; i < row.size(); ++i) {
    const bool cut = row.size() > 2 * kShown && i >= kShown && i < row.size() - kShown;
    if (!cut) out += " " + to_string(row[i]);
    if (cut && i == kShown) out += fmt::format(" ... {} more ...", row.size() - 2 * kShown);
  }
  return out + "\n";
}

// Returns the sequences of each microbatch: "2 2 1". More than 12 microbatches are counted by their sequences:
// "1000 of 2, 24 of 1".
std::string explain_sizes(const DataShard& data_shard) {
  constexpr size_t kShown = 12;
  std::vector<std::string> sizes;
  if (data_shard.microbatches.size() <= kShown) {
    for (const Range& m : data_shard.microbatches) sizes.push_back(fmt::format("{}", m.size()));
    return join(sizes, " ");
  }
  for (const auto& [size, count] : microbatch_sizes(data_shard)) {
    sizes.insert(sizes.begin(), fmt::format("{} of {}", count, size));
  }
  return sizes.empty() ? "none" : join(sizes, ", ");
}

std::string explain_data_shards(const Plan& plan) {
  std::vector<std::string> axes;
  for (const std::string& axis : batch_axes(plan.mesh)) {
    if (plan.mesh.axis_size(axis) > 1) axes.push_back(axis);
  }
  const bool data = axes.empty() || axes == kOverData;
  std::vector<std::vector<std::string>> rows = {
      {data ? "data rank" : "data shard over " + join(axes, "+"), "sequences", "sequences of each microbatch"}};
  for (size_t coord = 0; coord < plan.data_shards.size(); ++coord) {
    rows.push_back({fmt::format("{}", coord), fmt::format("{}", plan.data_shards[coord].sequences.size()),
                    explain_sizes(plan.data_shards[coord])});
    if (coord == 7 && plan.data_shards.size() > 8) {
      rows.push_back({"...", "", ""});
      break;
    }
  }
  return text_table(rows);
}

// Describes the run: model, batch, attention, loss, update and layout.
std::string explain_run(const Plan& plan) {
  const auto& a = plan.architecture;
  const auto& t = plan.config.training;
  const std::string recomputes = recomputation_text(plan.config);
  std::string out =
      fmt::format("model    {} parameters in {} tensors; {}, hidden {}, {} ({} key-value), vocabulary {}\n",
                  grouped(plan.num_parameters()), plan.parameters.size(), counted(a.num_hidden_layers, "layer"),
                  a.hidden_size, counted(a.num_attention_heads, "head"), a.num_key_value_heads, a.vocab_size);
  out +=
      fmt::format("batch    {} of {} a step, microbatches of at most {}, {}{}\n",
                  counted(t.global_batch_size, "sequence"), counted(t.seq_len, "token"), t.local_batch_size, t.dtype,
                  recomputes.empty() ? "" : "; " + recomputes);
  out += fmt::format("attends  {}\n", explain_attention(plan));
  out += explain_loss(plan);
  out += explain_update(plan.config);
  out += explain_saving(plan);
  const std::string split = explain_split(plan);
  out += fmt::format("mesh     {}: {}{}\n{}", plan.mesh_and_kind(), counted(plan.mesh.size(), "rank"),
                     !split.empty() || plan.shards_weights() ? ""
                     : plan.schedule.rows.size() > 1 ? "; every rank holds all parameters of its stages"
                                                     : "; every rank holds all parameters",
                     split);
  return out + explain_sharded_states(plan);
}

std::string memory_section(const Plan& plan) {
  std::string out = "\npeak memory of a rank's tensors (the process with libtorch needs more)\n" + explain_memory(plan);
  if (offloads(plan.config)) out += "  on host: offloaded to host memory; copied: to and from the host in a step\n";
  if (const std::string choices = explain_zero_choices(plan); !choices.empty()) {
    out += "\nstages of ZeRO: bytes that a rank keeps between steps, holds at the peak, and sends per step for weights "
           "and gradients\n" +
           choices;
  }
  return out + "\nrecomputation: operations of each block that backward runs again, [activation_checkpoint]\n" +
         explain_recomputation_choices(plan);
}

std::string schedule_section(const Plan& plan) {
  std::string out = "\ndata shards of a step\n" + explain_data_shards(plan);
  if (plan.schedule.rows.size() == 1) {
    const char* gathers = plan.shards_weights() ? "; UNSHARD gathers weights, RESHARD frees them" : "";
    return out +
           fmt::format(
               "\nschedule of a rank: stage, Action (F forward, B backward, REDUCE_GRAD{}), microbatch or bucket\n",
               gathers) +
           explain_rows(plan.schedule.rows[0]);
  }
  out += fmt::format(
      "\nschedule {}, drawn with passes of equal length\n"
      "  stage, pass (F forward, B backward; I computes the gradient of its input, W that of its weights{}), "
      "microbatch\n{}",
      schedule_text(plan.config), vocabulary_passes(plan), explain_pipeline(plan));
  if (const std::string choices = explain_schedule_choices(plan); !choices.empty()) {
    out += fmt::format("\nall schedules for {} pipeline ranks\n{}", plan.schedule.rows.size(), choices);
  }
  if (const std::string choices = explain_vocabulary_choices(plan); !choices.empty()) {
    out +=
        fmt::format("\nplacements of the vocabulary layers on {} pipeline ranks: parallelism.vocabulary_parallel\n{}",
                    plan.schedule.rows.size(), choices);
  }
  return out;
}

std::string layouts_section(const Plan& plan) {
  std::string out;
  if (const std::string layouts = explain_layouts(plan); !layouts.empty()) {
    out += fmt::format("\nlayouts of {}, per rank and step; without ZeRO where none is named\n{}",
                       counted(plan.mesh.size(), "rank"), layouts);
  }
  if (const std::string choices = explain_tensor_choices(plan); !choices.empty()) {
    out +=
        fmt::format("\nall tensor meshes of {}, per rank and step\n{}", counted(plan.tensor.ranks(), "rank"), choices);
  }
  std::vector<Alternative> rows = alternatives_to(plan);
  rows.insert(rows.begin(), alternative("as planned", plan));
  return out + "\nalternatives\n" + alternatives_table(plan, "change", rows);
}

}  // namespace

Sections Sections::named(const std::vector<std::string>& names) {
  Sections sections;
  for (const std::string& name : names) {
    if (name == "all") return all();
    ORTHANT_CHECK(name == "memory" || name == "communication" || name == "schedule" || name == "layouts", name);
    (name == "memory"          ? sections.memory
     : name == "communication" ? sections.communication
     : name == "schedule"      ? sections.schedule
                               : sections.layouts) = true;
  }
  return sections;
}

std::string explain(const Plan& plan, const Sections& sections) {
  std::string out = explain_answer(plan) + explain_run(plan);
  if (sections.memory) out += memory_section(plan);
  if (sections.communication) out += "\ncommunication per step\n" + explain_communication(plan);
  if (sections.schedule) out += schedule_section(plan);
  if (sections.layouts) out += layouts_section(plan);
  return out;
}

}  // namespace orthant
