// The loop that hides communication behind products. The next panel's move and the last result's sum run while the
// present panel is multiplied (van de Geijn and Watts 1997, "SUMMA", pipelined).
//
//   next = start(panel 0)
//   for each panel:
//     operand = next.wait();  next = start(following panel)     # both inside arrive()
//     result = operand x other operand                          # the following panel moves meanwhile
//     pending.finish();  pending = start the sum of result      # PendingSum::next(); runs during the next product
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace orthant {

/// Calls multiply(panel, arrive) for each panel in turn. start(panel) begins a move and returns an object with wait().
/// multiply must call arrive() exactly once: it returns the present panel's operand and starts the next panel's move.
/// At most two panels are in memory.
template <class Panel, class Start, class Multiply>
void for_panels(const std::vector<Panel>& panels, Start start, Multiply multiply) {
  auto next = start(panels.front());
  for (size_t t = 0; t < panels.size(); ++t) {
    multiply(panels[t], [&] {
      auto now = next.wait();
      if (t + 1 < panels.size()) next = start(panels[t + 1]);
      return now;
    });
  }
}

/// Sums under way to the ranks that keep them, one at a time.
template <class Move>
class PendingSum {
 public:
  /// Finishes the last sum, then starts the next one with begin(). put(result) is called when that has arrived.
  template <class Begin>
  void next(Begin begin, std::function<void(const at::Tensor&)> put) {
    finish();
    move_.emplace(begin());
    put_ = std::move(put);
  }
  void finish() {
    if (!move_) return;
    put_(move_->wait());
    move_.reset();
  }

 private:
  std::optional<Move> move_;
  std::function<void(const at::Tensor&)> put_;
};

}  // namespace orthant
