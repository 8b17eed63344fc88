#include "parallel/sequence/ring_plan.h"

#include "base/errors.h"

namespace orthant {

DoubleRing double_ring(int size, int index, int window) {
  ORTHANT_CHECK(window > 0 && size % window == 0, size, window);
  DoubleRing rings{.inner = {.members = {}, .index = index % window},
                   .outer = {.members = {}, .index = index / window},
                   .window = window};
  for (int i = 0; i < window; ++i) rings.inner.members.push_back(rings.member(index / window, i));
  for (int w = 0; w < size / window; ++w) rings.outer.members.push_back(rings.member(w, index % window));
  return rings;
}

}  // namespace orthant
