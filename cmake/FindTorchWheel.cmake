# Finds libtorch inside a PyTorch wheel and defines torchwheel::cpu and torchwheel::openmp (torchwheel::cuda:
# TorchCuda.cmake). The build and the programs that use the installed library find it with
# find_package(TorchWheel VERSIONS).
#
# ORTHANT_TORCH_DIR is the wheel's `torch` directory; `make setup` passes the one it chose. If it is not set, the torch
# that python3 imports is used, or else the one in .venv. Torch's own CMake package is not used: with a CUDA wheel it
# requires a CUDA toolkit and rewrites the compiler flags of the whole tree.
include(FindPackageHandleStandardArgs)

# Sets ORTHANT_TORCH_VERSION to the version of the wheel in this directory, or to an empty string if the directory holds
# no wheel of a requested version.
function(orthant_torch_version dir)
  set(version "")
  if(EXISTS "${dir}/lib/libtorch_cpu.so" AND EXISTS "${dir}/include/ATen/ATen.h")
    file(STRINGS "${dir}/version.py" line REGEX "^__version__")
    string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" version "${line}")
    find_package_check_version("${version}" usable HANDLE_VERSION_RANGE)
    if(NOT usable)
      if(NOT TorchWheel_FIND_QUIETLY)
        message(STATUS "torch ${version} in ${dir} is passed over: Orthant needs ${TorchWheel_FIND_VERSION_COMPLETE}")
      endif()
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
# Our parallel loops and torch's share the thread pool of the wheel's OpenMP runtime.
find_package(OpenMP QUIET COMPONENTS CXX)
file(GLOB _gomp "${ORTHANT_TORCH_DIR}/lib/libgomp*.so*" "${ORTHANT_TORCH_DIR}.libs/libgomp*.so*")
if(NOT _gomp)
  set(_gomp ${OpenMP_gomp_LIBRARY})
endif()
if(_torch_dirs)
  list(JOIN _torch_dirs " or " _torch_dirs)
  set(_torch_dirs "in ${_torch_dirs}")
else()
  set(_torch_dirs "found: python3 imports no torch, and neither does .venv/bin/python3")
endif()
set(TorchWheel_REASON "no torch ${TorchWheel_FIND_VERSION_COMPLETE} ${_torch_dirs}. Pass \
-DORTHANT_TORCH_DIR=<site-packages>/torch of such a torch. In Orthant's own tree, `make setup` installs one into .venv.")
find_package_handle_standard_args(TorchWheel
  REQUIRED_VARS ORTHANT_TORCH_DIR ORTHANT_TORCH_VERSION OpenMP_CXX_FOUND VERSION_VAR ORTHANT_TORCH_VERSION
  HANDLE_VERSION_RANGE
  REASON_FAILURE_MESSAGE "${TorchWheel_REASON}")
if(NOT TorchWheel_FOUND OR TARGET torchwheel::cpu)
  return()
endif()

add_library(torchwheel::c10 SHARED IMPORTED)
set_target_properties(torchwheel::c10 PROPERTIES IMPORTED_LOCATION "${ORTHANT_TORCH_DIR}/lib/libc10.so")
add_library(torchwheel::cpu SHARED IMPORTED)
set_target_properties(torchwheel::cpu PROPERTIES
  IMPORTED_LOCATION "${ORTHANT_TORCH_DIR}/lib/libtorch_cpu.so"
  INTERFACE_INCLUDE_DIRECTORIES "${ORTHANT_TORCH_DIR}/include;${ORTHANT_TORCH_DIR}/include/torch/csrc/api/include"
  INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO"
  INTERFACE_LINK_LIBRARIES torchwheel::c10)

list(GET _gomp 0 _gomp)
add_library(torchwheel::openmp INTERFACE IMPORTED)
set_target_properties(torchwheel::openmp PROPERTIES
  INTERFACE_COMPILE_OPTIONS "-fopenmp" INTERFACE_LINK_LIBRARIES "${_gomp}")
