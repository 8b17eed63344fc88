// Layer redistribution: the vocabulary layers whole, on the first and the last stage, and fewer transformer layers
// beside them. What vocabulary parallelism is measured against (Yeung et al. 2024, arXiv 2411.05288): once the output
// layer alone takes longer than a balanced stage, the longest stage is that long.
#pragma once

#include <vector>

namespace orthant {

/// How many layers each stage gets so that the longest stage is as short as can be. `beside` is what each stage takes
/// besides its layers, in layers. Among the ways that are as good the last stage gets the fewest layers, and the others
/// as much as each other, as near as can be, the earlier ones more.
std::vector<int> redistributed(int layers, const std::vector<double>& beside);

/// What the longest stage takes, in layers.
double longest_stage(const std::vector<int>& layers, const std::vector<double>& beside);

}  // namespace orthant
