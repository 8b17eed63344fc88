// The elements of weights or gradients that a rank keeps between the passes of a step.
#pragma once

namespace orthant {

/// all: of its full shards. owned: only those whose optimizer state it keeps. Elements that the rank does not keep
/// exist while a pass needs them.
enum class KeptElements { all, owned, none };

}  // namespace orthant
