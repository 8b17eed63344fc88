// OutputLoss: the parameters of the loss per token. Kernels, plans and layers share this one definition.
#pragma once

namespace orthant {

/// The loss of a token is l - (1 - s) z[label] - s mean(z) + w l^2. Here z are its logits after soft-capping, and l is
/// their log-sum-exp. Soft-capping: Gemma 2, arXiv 2408.00118. Label smoothing: as in torch's cross_entropy.
/// Z-loss w l^2: PaLM, arXiv 2204.02311.
struct OutputLoss {
  double softcap = 0;    // c: z = c tanh(y / c), where y = x W^T is the uncapped logit; 0: z = y
  double smoothing = 0;  // s, label smoothing
  double z_weight = 0;   // w, weight of the z-loss

  /// Numbers that ranks exchange per token: maximum, sum of exponentials, z[label], and with smoothing the sum of z.
  int statistics() const { return smoothing > 0 ? 4 : 3; }
  /// Numbers saved per logit until the softmax over the full vocabulary is known. One is its exponential. The other is
  /// its slope dz/dy, only if capping and smoothing are both on, since smoothing needs the slope of every logit.
  int kept_of_logit() const { return softcap > 0 && smoothing > 0 ? 2 : 1; }
  /// The loss for evaluation: cross entropy without smoothing and z-loss. Soft-capping stays, as part of the model.
  OutputLoss plain() const { return {.softcap = softcap}; }
};

}  // namespace orthant
