// Definition of StoreHandle, for the .cc files of this room that pass a Store on to c10d.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace orthant {

struct StoreHandle {
  c10::intrusive_ptr<c10d::Store> store;
};

}  // namespace orthant
