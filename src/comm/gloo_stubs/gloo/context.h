// See gloo/algorithm.h. An inline function of c10d's header calls this member, which libtorch_cpu exports.
#pragma once

#include <chrono>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
}  // namespace gloo
