// Layer redistribution: the vocabulary layers stay unsharded on the first and the last stage, which get fewer
// transformer layers. It is the baseline of vocabulary parallelism (Yeung et al. 2024, arXiv 2411.05288). Its limit:
// the longest stage is at least as long as the output layer, even if that alone exceeds a balanced stage.
#pragma once

#include <vector>

namespace orthant {

/// Number of layers of each stage that makes the longest stage as short as possible. `beside`: work of each stage in
/// addition to its layers, in units of one layer. Among equally good splits, the last stage gets the fewest layers if
/// it has other work, and the other stages are as equal as possible. The first of these gets fewest: it holds the
/// embedding and, in 1F1B, the most microbatches. The stages after it get most: their longer passes fill the time in
/// which they wait for the first backward. So the step is shorter than with long stages near the end.
std::vector<int> redistributed(int layers, const std::vector<double>& beside);

/// Work of the longest stage, in units of one layer.
double longest_stage(const std::vector<int>& layers, const std::vector<double>& beside);

}  // namespace orthant
