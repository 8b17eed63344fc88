# Finds libtorch inside a PyTorch wheel and defines torchwheel::cpu (and torchwheel::cuda, where the wheel has it).
#
# ORTHANT_TORCH_DIR names the wheel's `torch` directory; `make setup` passes the one it chose. Without it, the torch that
# `python3` imports is taken. Torch's own CMake package is not used: with a CUDA wheel it demands a CUDA toolkit and
# rewrites the flags of the whole tree.
if(NOT ORTHANT_TORCH_DIR)
  if(EXISTS ${CMAKE_SOURCE_DIR}/.venv/bin/python3)
    set(_python ${CMAKE_SOURCE_DIR}/.venv/bin/python3)
  else()
    set(_python python3)
  endif()
  execute_process(
    COMMAND ${_python} -c "import os, torch; print(os.path.dirname(torch.__file__))"
    OUTPUT_VARIABLE ORTHANT_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT EXISTS "${ORTHANT_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "no libtorch found. Either run `make setup`, which installs torch==2.13.0 into .venv, "
                      "or pass -DORTHANT_TORCH_DIR=<site-packages>/torch of a torch 2.11 to 2.13.")
endif()
set(ORTHANT_TORCH_DIR "${ORTHANT_TORCH_DIR}" CACHE PATH "the torch directory of a PyTorch wheel" FORCE)

file(STRINGS "${ORTHANT_TORCH_DIR}/version.py" _version REGEX "^__version__")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" ORTHANT_TORCH_VERSION "${_version}")
if(ORTHANT_TORCH_VERSION VERSION_LESS 2.11 OR ORTHANT_TORCH_VERSION VERSION_GREATER_EQUAL 2.14)
  message(FATAL_ERROR "torch ${ORTHANT_TORCH_VERSION} in ${ORTHANT_TORCH_DIR}: Orthant supports 2.11 to 2.13")
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

# The wheel's OpenMP runtime, so that our parallel loops and torch's share one thread pool.
find_package(OpenMP REQUIRED COMPONENTS CXX)
file(GLOB _gomp "${ORTHANT_TORCH_DIR}/lib/libgomp*.so*" "${ORTHANT_TORCH_DIR}.libs/libgomp*.so*")
if(NOT _gomp)
  set(_gomp ${OpenMP_gomp_LIBRARY})
endif()
list(GET _gomp 0 _gomp)
add_library(torchwheel::openmp INTERFACE IMPORTED)
set_target_properties(torchwheel::openmp PROPERTIES
  INTERFACE_COMPILE_OPTIONS "-fopenmp" INTERFACE_LINK_LIBRARIES "${_gomp}")
