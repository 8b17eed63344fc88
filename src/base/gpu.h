// The identity of a GPU.
#pragma once

#include <string>

namespace orthant {

/// Both texts are empty if there is none.
struct Gpu {
  std::string uuid;
  std::string model;  // such as "NVIDIA H200"
};

}  // namespace orthant
