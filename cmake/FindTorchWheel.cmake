# Finds libtorch inside a PyTorch wheel and defines torchwheel::cpu (torchwheel::cuda: TorchCuda.cmake).
#
# ORTHANT_TORCH_DIR is the wheel's `torch` directory; `make setup` passes the one it chose. If it is not set, the torch
# that python3 imports is used, or else the one in .venv. Torch's own CMake package is not used: with a CUDA wheel it
# requires a CUDA toolkit and rewrites the compiler flags of the whole tree.

# Sets ORTHANT_TORCH_VERSION to the version of the wheel in this directory, or to an empty string if the directory holds
# no usable wheel.
function(orthant_torch_version dir)
  set(version "")
  if(EXISTS "${dir}/lib/libtorch_cpu.so" AND EXISTS "${dir}/include/ATen/ATen.h")
    file(STRINGS "${dir}/version.py" line REGEX "^__version__")
    string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" version "${line}")
    if(version VERSION_LESS 2.11 OR version VERSION_GREATER_EQUAL 2.14)
      message(STATUS "torch ${version} in ${dir} is passed over: Orthant supports 2.11 to 2.13")
      set(version "")
    endif()
  endif()
  set(ORTHANT_TORCH_VERSION "${version}" PARENT_SCOPE)
endfunction()

set(_torch_dirs "${ORTHANT_TORCH_DIR}")
if(NOT ORTHANT_TORCH_DIR)
  foreach(_python python3 ${CMAKE_SOURCE_DIR}/.venv/bin/python3)
    execute_process(
      COMMAND ${_python} -c "import os, torch; print(os.path.dirname(os.path.abspath(torch.__file__)))"
      OUTPUT_VARIABLE _torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND _torch_dirs ${_torch_dir})
  endforeach()
endif()
foreach(_torch_dir ${_torch_dirs})
  orthant_torch_version("${_torch_dir}")
  if(ORTHANT_TORCH_VERSION)
    set(ORTHANT_TORCH_DIR "${_torch_dir}" CACHE PATH "the torch directory of a PyTorch wheel" FORCE)
    break()
  endif()
endforeach()
if(NOT ORTHANT_TORCH_VERSION)
  message(FATAL_ERROR "no libtorch found (looked in: ${_torch_dirs}). Either run `make setup`, which installs torch==2.13.0 "
                      "into .venv, or pass -DORTHANT_TORCH_DIR=<site-packages>/torch of a torch 2.11 to 2.13.")
endif()
message(STATUS "libtorch ${ORTHANT_TORCH_VERSION}: ${ORTHANT_TORCH_DIR}")

add_library(torchwheel::c10 SHARED IMPORTED)
set_target_properties(torchwheel::c10 PROPERTIES IMPORTED_LOCATION "${ORTHANT_TORCH_DIR}/lib/libc10.so")
add_library(torchwheel::cpu SHARED IMPORTED)
set_target_properties(torchwheel::cpu PROPERTIES
  IMPORTED_LOCATION "${ORTHANT_TORCH_DIR}/lib/libtorch_cpu.so"
  INTERFACE_INCLUDE_DIRECTORIES "${ORTHANT_TORCH_DIR}/include;${ORTHANT_TORCH_DIR}/include/torch/csrc/api/include"
  INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO"
  INTERFACE_LINK_LIBRARIES torchwheel::c10)

# Links the wheel's OpenMP runtime, so that our parallel loops and torch's share one thread pool.
find_package(OpenMP REQUIRED COMPONENTS CXX)
file(GLOB _gomp "${ORTHANT_TORCH_DIR}/lib/libgomp*.so*" "${ORTHANT_TORCH_DIR}.libs/libgomp*.so*")
if(NOT _gomp)
  set(_gomp ${OpenMP_gomp_LIBRARY})
endif()
list(GET _gomp 0 _gomp)
add_library(torchwheel::openmp INTERFACE IMPORTED)
set_target_properties(torchwheel::openmp PROPERTIES
  INTERFACE_COMPILE_OPTIONS "-fopenmp" INTERFACE_LINK_LIBRARIES "${_gomp}")
