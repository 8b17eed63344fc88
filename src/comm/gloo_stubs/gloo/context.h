// See gloo/algorithm.h. Both members are non-virtual functions that libtorch_cpu exports; the object itself is never
// built or copied here, so its layout does not matter.
#pragma once

#include <chrono>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
  void closeConnections();
};
}  // namespace gloo
