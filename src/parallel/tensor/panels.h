// The loop that hides communication: what the next panel needs is under way while the present one is multiplied, and
// the last one's sum goes where it belongs meanwhile (as van de Geijn and Watts 1997, "SUMMA", pipelined).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace orthant {

/// multiply(panel, arrive) for each panel in turn. start(panel) begins a move, anything with wait(); arrive(), to be
/// called once, returns what the present panel's brought, and starts the next: no more than two are alive.
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

/// Sums on their way to where they belong, one at a time.
template <class Move>
class PendingSum {
 public:
  /// begin() the move of the next sum, once the last has arrived; put(what it brings) when that has.
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
