// What the output layer makes of a token's logits: one value for kernels, plans and layers.
#pragma once

namespace orthant {

/// Of a token with logits z, after capping, and log-sum-exp l: l - (1 - s) z[label] - s mean(z) + w l^2.
/// Capping: Gemma 2, arXiv 2408.00118; smoothing as in torch's cross_entropy; w l^2 ("z-loss"): PaLM, arXiv 2204.02311.
struct OutputLoss {
  double softcap = 0;    // c: z = c tanh(y / c) of the product y; 0: z = y
  double smoothing = 0;  // s
  double z_weight = 0;   // w

  /// Numbers that ranks tell each other of a token: maximum, sum of exponentials, the label's z, and the sum of z.
  int statistics() const { return smoothing > 0 ? 4 : 3; }
  /// Numbers kept of each logit until the whole softmax is known: its exponential; and its slope, where smoothing asks
  /// for those of all.
  int kept_of_logit() const { return softcap > 0 && smoothing > 0 ? 2 : 1; }
  /// What is judged by where nothing is learnt: the cross entropy of the model as it is.
  OutputLoss plain() const { return {.softcap = softcap}; }
};

}  // namespace orthant
