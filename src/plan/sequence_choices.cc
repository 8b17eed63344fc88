#include "plan/sequence_choices.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "plan/text_table.h"

namespace orthant {
namespace {

SequenceChoice choice_of(const Plan& plan, const SequencePlan& cut) {
  SequenceChoice choice{.plan = cut};
  int64_t largest = 0;
  for (const Range& microbatch : plan.shares[0].microbatches) largest = std::max(largest, microbatch.size());
  const SequenceAttention attention = attention_of(plan, largest);
  for (int u = 0; u < cut.ulysses; ++u) {
    for (int r = 0; r < cut.ring; ++r) {
      const SequenceTraffic traffic = sequence_traffic(cut, attention, u, r);
      int64_t forward = 0, backward = 0;
      for (const auto& messages : traffic.forward) forward += messages.bytes;
      for (const auto& messages : traffic.backward) backward += messages.bytes;
      if (forward + backward > choice.sent_bytes()) {
        choice.forward_bytes = forward;
        choice.backward_bytes = backward;
      }
      choice.kept_bytes = std::max(choice.kept_bytes, sequence_memory(cut, attention, u, r).kept_bytes);
    }
  }
  return choice;
}

std::string name_of(const SequencePlan& cut) {
  if (cut.self_attention) return fmt::format("ulysses {} x ring {}, ring self-attention", cut.ulysses, cut.ring);
  return fmt::format("ulysses {} x ring {}{}", cut.ulysses, cut.ring,
                     cut.window > 0 ? fmt::format(" in windows of {}", cut.window) : "");
}

}  // namespace

std::vector<SequenceChoice> sequence_choices(const Plan& plan) {
  std::vector<SequenceChoice> choices;
  const SequencePlan& own = plan.sequence;
  const int ranks = own.ulysses * own.ring;
  if (ranks == 1) return choices;
  const SequencePlacement placement = own.ring > 1 ? own.placement : SequencePlacement::zigzag;
  for (int ulysses = ranks; ulysses >= 1; --ulysses) {
    if (ranks % ulysses != 0 || ulysses > plan.architecture.num_attention_heads) continue;
    SequencePlan cut{.ulysses = ulysses, .ring = ranks / ulysses, .placement = placement};
    if (cut.ring == 1) cut.placement = SequencePlacement::contiguous;
    if (2 * cut.ring * ulysses > plan.config.training.seq_len && cut.ring > 1) continue;
    for (const bool self_attention : {false, true}) {
      if (self_attention && cut.ring == 1) continue;
      cut.self_attention = self_attention;
      const bool same = ulysses == own.ulysses && self_attention == own.self_attention;
      choices.push_back(choice_of(plan, same ? own : cut));
      choices.back().chosen = same;
    }
  }
  return choices;
}

const SequenceChoice& best_of(const std::vector<SequenceChoice>& choices) {
  return *std::min_element(choices.begin(), choices.end(), [](const SequenceChoice& a, const SequenceChoice& b) {
    return a.sent_bytes() != b.sent_bytes() ? a.sent_bytes() < b.sent_bytes() : a.kept_bytes < b.kept_bytes;
  });
}

std::string explain_sequences(const Plan& plan) {
  const auto choices = sequence_choices(plan);
  if (choices.empty()) return "";
  const SequenceChoice& best = best_of(choices);
  std::vector<std::vector<std::string>> rows = {{"cut", "sent forward", "sent backward", "kept", ""}};
  const auto bytes = [](int64_t count) { return human_bytes(static_cast<double>(count)); };
  for (const SequenceChoice& choice : choices) {
    std::string remark = choice.chosen ? "as planned" : "";
    if (&choice == &best) remark += remark.empty() ? "sends least" : ", sends least";
    rows.push_back({name_of(choice.plan), bytes(choice.forward_bytes), bytes(choice.backward_bytes), bytes(choice.kept_bytes), remark});
  }
  std::string text = text_table(rows);
  if (best.chosen) return text + "  Nothing sends fewer bytes: the plan is the best of these.\n";
  for (const SequenceChoice& choice : choices) {
    if (!choice.chosen) continue;
    text += fmt::format("  {} sends {:.2g} times the bytes of the best, {}; it may still be faster where the ring hides behind\n"
                        "  compute and the all-to-all does not.\n",
                        name_of(choice.plan), static_cast<double>(choice.sent_bytes()) / static_cast<double>(best.sent_bytes()),
                        name_of(best.plan));
  }
  return text;
}

}  // namespace orthant
