// Tests that need a CUDA device are skipped without one.
#pragma once

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

#define REQUIRE_GPU() \
  if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "GPUs needed: 1, here: 0"
