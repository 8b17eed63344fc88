#include "advice/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "advice/fit.h"
#include "advice/fitting_changes.h"
#include "base/errors.h"
#include "base/terminal_text.h"
#include "base/text.h"
#include "config/from_config.h"
#include "config/table.h"
#include "hardware/hardware.h"
#include "parallel/pipeline/plan.h"

namespace orthant {
namespace {

// "measured", "all values assumed", or the parts of the profile that have assumed values.
std::string origin_text(const Hardware& hardware) {
  const std::vector<TableOrigin> tables = origins(hardware);
  const auto measured = std::ranges::count(tables, true, &TableOrigin::measured);
  if (measured == 0) return "all values assumed";
  if (measured == std::ssize(tables)) return "measured";
  std::vector<std::string> assumed;
  for (const TableOrigin& table : tables) {
    const std::string part = table.table.substr(0, table.table.find('.'));
    if (!table.measured && std::ranges::count(assumed, part) == 0) assumed.push_back(part);
  }
  return fmt::format("{} of {} tables measured; assumed in {}", measured, tables.size(), join(assumed, ", "));
}

// Returns "LABEL    TEXT" in lines of at most 100 columns, the later ones indented.
std::string labelled(const std::string& label, const std::string& text) {
  constexpr size_t kIndent = 9, kMostColumns = 100;
  std::string out = fmt::format("{:<{}}", label, kIndent);
  size_t column = kIndent;
  std::vector<std::string> words;  // a number and its unit are one word
  for (const std::string& word : split(text, ' ')) {
    const bool follows_number = !words.empty() && std::isdigit(static_cast<unsigned char>(words.back().back())) != 0;
    const std::string unit = word.substr(0, word.find_first_of(",:;)"));
    if (follows_number && (unit == "s" || unit == "ms" || unit == "%" || unit == "B" || unit.ends_with("iB"))) {
      words.back() += " " + word;
    } else {
      words.push_back(word);
    }
  }
  for (const std::string& word : words) {
    const bool is_first = column == kIndent;
    if (!is_first && column + 1 + word.size() > kMostColumns) {
      out += "\n" + std::string(kIndent, ' ');
      column = kIndent;
    } else if (!is_first) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out + "\n";
}

std::string step_text(const Plan& plan) {
  const StepTime& step = *plan.step_time;
  const double tokens = static_cast<double>(plan.tokens_per_step()) / step.seconds;
  const std::string text = fmt::format("{}: {} tokens/s, {} on each device; {:.1f} % of the devices' peak FLOP/s (MFU)",
                                       precise_seconds(step.seconds), grouped(std::llround(tokens)),
                                       grouped(std::llround(tokens / plan.mesh.size())),
                                       100 * model_flops_utilization(plan, step.seconds, false));
  if (plan.architecture.sliding_window > 0) return text;  // most pairs of tokens are no work
  return fmt::format("{}, {:.1f} % if attention counts all pairs of tokens", text,
                     100 * model_flops_utilization(plan, step.seconds, true));
}

// The parts of the step, as fractions of it. Parts below 0.05 % are left out.
std::string time_text(const Plan& plan) {
  const StepTime& step = *plan.step_time;
  std::vector<std::string> parts;
  for (const auto& [name, seconds] : step.named_parts()) {
    const double percent = 100 * seconds / step.seconds;
    if (percent >= 0.05) parts.push_back(fmt::format("{} {:.1f} %", name, percent));
  }
  return join(parts, ", ");
}

// Names what takes a rank's memory at the peak, the largest first. Parts below 1 % are added up.
std::string parts_text(const Plan& plan, const MemoryBytes& memory) {
  std::vector<std::pair<int64_t, std::string>> parts = {
      {memory.parameters, "weights"}, {memory.gradients, "gradients"}, {memory.optimizer, "optimizer state"}};
  if (memory.peak) {
    const auto& [kind, stage, number] = *memory.peak;
    const bool has_logits = kind == ActionKind::S || (kind == ActionKind::F && plan.vocabulary.empty() &&
                                                      plan.stages[static_cast<size_t>(stage)].last);
    parts.insert(parts.end(),
                 {{memory.at_peak.activations, "activations"},
                  {memory.at_peak.messages, "messages"},
                  {memory.at_peak.partial_sums, "partial sums of gradients"},
                  {memory.at_peak.units, "gathered weights and their gradients"},
                  {memory.at_peak.temporaries, has_logits ? "logits and other temporaries" : "temporaries"}});
  } else {
    parts.emplace_back(memory.activations + memory.working, "temporaries of the update");
  }
  std::ranges::sort(parts, std::greater());
  std::vector<std::string> texts;
  const auto add = [&](const std::string& name, int64_t bytes) {
    texts.push_back(fmt::format("{} {}", name, format_bytes(static_cast<double>(bytes))));
  };
  int64_t others = 0;
  for (const auto& [bytes, name] : parts) {
    100 * bytes >= memory.total() ? add(name, bytes) : void(others += bytes);
  }
  if (others > 0) add("others", others);
  return join(texts, ", ");
}

// Names a stage, or its layer if each layer is a stage of its own.
std::string stage_text(const Plan& plan, int index) {
  const Stage& stage = plan.stages[static_cast<size_t>(index)];
  if (!plan.has_gradients_by_unit()) return fmt::format("stage {}", index);
  if (stage.layers.size() == 1) return fmt::format("layer {}", stage.layers.begin);
  return stage.last ? "output layer" : stage.first ? "embedding" : fmt::format("stage {}", index);
}

std::string action_text(const Plan& plan, const Action& action) {
  const int microbatch = microbatch_of(action);
  return fmt::format("at {} ({}, {}{})", to_string(action), facts(action.kind).meaning, stage_text(plan, action.stage),
                     microbatch < 0 ? "" : fmt::format(", microbatch {}", microbatch));
}

std::string memory_text(const Plan& plan) {
  const int rank = plan.worst_rank();
  const MemoryBytes& memory = plan.memory_of(rank);
  const double limit_gib = plan.config.run.memory_gib_per_rank;
  const std::string needs =
      fmt::format("rank {} needs most, {} of tensors{} {}", rank, format_bytes(static_cast<double>(memory.total())),
                  limit_gib > 0 ? fmt::format(" (at most run.memory_gib_per_rank = {:g} GiB)", limit_gib) : "",
                  memory.peak ? action_text(plan, *memory.peak) : "in the update");
  const std::string parts = ": " + parts_text(plan, memory);
  if (!plan.facts.hardware) return needs + parts + "; the process with libtorch needs more";
  const Fit fit = fit_of(plan);
  const std::string spare = format_bytes(std::abs(static_cast<double>(fit.spare_bytes())));
  const char* owner = plan.facts.hardware->device.shared_cores > 0 ? "a rank's part of the host" : "a device";
  return fmt::format(
      "{}: {}, and about {} more for context, communicators and allocator, of the {} of {}{}",
      fit.fits() ? fmt::format("fits with {} to spare", spare) : fmt::format("does not fit, lacks {}", spare), needs,
      format_bytes(static_cast<double>(fit.other_bytes)), format_bytes(static_cast<double>(*fit.device_bytes)), owner,
      parts);
}

// The change is on a line of its own, to be copied.
std::string change_text(const Plan& plan) {
  const std::optional<Alternative> change = fastest_that_fits(plan);
  if (!change) {
    return labelled("change",
                    "no change of ZeRO, recomputation, tensor and pipeline ranks that was compared fits; use more "
                    "devices, or let --search find a layout");
  }
  return labelled("change", fmt::format("it fits with a step of {} ({:+.1f} %) if the command line also has the words "
                                        "below; --search compares many more layouts",
                                        precise_seconds(change->step_seconds),
                                        100 * (change->step_seconds / plan.step_time->seconds - 1))) +
         fmt::format("         {}\n", change->change);
}

// The bytes that the busiest rank sends in a step, and how many of them over which axis. If some rank receives more,
// the largest number received too.
std::string sent_text(const Plan& plan) {
  const std::vector<int64_t> sent = plan.communication_bytes();
  const auto busiest = static_cast<size_t>(std::ranges::max_element(sent) - sent.begin());  // its class
  std::map<std::string, int64_t> by_axis;
  for (const CommunicationEntry& entry : plan.communication) by_axis[entry.axis] += entry.bytes[busiest];
  std::vector<std::string> parts;
  for (const auto& [axis, bytes] : by_axis) {
    if (bytes > 0) parts.push_back(fmt::format("{} over {}", format_bytes(static_cast<double>(bytes)), axis));
  }
  const int64_t received = std::ranges::max(plan.received_bytes());
  const std::string more = received > sent[busiest]
                               ? fmt::format("; a rank receives up to {}", format_bytes(static_cast<double>(received)))
                               : "";
  return fmt::format("{} in a step by the busiest rank{}{}", format_bytes(static_cast<double>(sent[busiest])),
                     parts.size() > 1 ? ": " + join(parts, ", ") : "", more);
}

}  // namespace

std::string timeline_text(const Plan& plan, double time) {
  return plan.step_time ? precise_seconds(time) : fmt::format("{:.2f}", time);
}

std::string explain_answer(const Plan& plan) {
  std::string text;
  if (plan.step_time) text += labelled("step", step_text(plan)) + labelled("time", time_text(plan));
  if (plan.step_time && plan.mesh.size() > 1 && plan.config.run.device == "cuda" && !uses_nccl(plan.config)) {
    text +=
        labelled("note", fmt::format("{}: tensors of GPUs are copied through host memory; the time of these copies is "
                                     "not counted",
                                     plan.config.locate("run.transport")));
  }
  if (offloads(plan.config)) {
    text += labelled("note",
                     "offloading is only planned, and no training has it; the time of copies to the host and back is "
                     "not counted");
  }
  text += labelled("memory", memory_text(plan));
  if (plan.facts.hardware && !fit_of(plan).fits()) text += change_text(plan);
  if (plan.mesh.size() > 1) text += labelled("sent", sent_text(plan));
  if (plan.facts.hardware) {
    const Hardware& hardware = *plan.facts.hardware;
    const char* by_default = plan.config.run.hardware.empty() ? " (--hardware names another)" : "";
    text += labelled("hardware", fmt::format("{}{}, {}: {}", escape_line(hardware.name), by_default,
                                             origin_text(hardware), escape_line(hardware.description)));
    text += labelled("errors", "docs/plan-errors.md compares planned with measured times and memory");
  }
  return text;
}

}  // namespace orthant
