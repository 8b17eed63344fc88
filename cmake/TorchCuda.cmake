# ORTHANT_CUDA=ON builds with NCCL, for ranks that hold CUDA tensors: defines torchwheel::cuda from a CUDA wheel of
# torch, and orthant_cuda_kernels() for our own kernels. The build needs a CUDA compiler (nvcc) of the wheel's major
# version, but no GPU. Headers come from the nvidia packages that pip installs next to the wheel; the headers that these
# packages lack (crt/) come from the compiler's toolkit.
option(ORTHANT_CUDA "build with CUDA and NCCL (needs a CUDA wheel of torch)" OFF)
if(NOT ORTHANT_CUDA)
  return()
endif()

enable_language(CUDA)
# CMake before 3.26 does not know this option of nvcc.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
if(NOT EXISTS "${ORTHANT_TORCH_DIR}/lib/libtorch_cuda.so")
  message(FATAL_ERROR "ORTHANT_CUDA=ON: ${ORTHANT_TORCH_DIR} is a wheel without CUDA. Pass -DORTHANT_TORCH_DIR=<site-packages>/"
                      "torch of one with CUDA (pip install torch), or -DORTHANT_CUDA=OFF.")
endif()
get_filename_component(_site "${ORTHANT_TORCH_DIR}" DIRECTORY)
file(GLOB _nvidia_includes "${_site}/nvidia/cu*/include")
file(GLOB _nvidia_libraries "${_site}/nvidia/cu*/lib")
find_path(ORTHANT_NCCL_INCLUDE_DIR nccl.h HINTS "${_site}/nvidia/nccl/include")
set(_toolkits "$ENV{CUDA_HOME}" /usr/local/cuda)
set(ORTHANT_CUDA_INCLUDE_DIRS "")
set(_missing "")
foreach(_header cuda_runtime_api.h cusparse.h cublas_v2.h cusolverDn.h crt/host_defines.h)
  string(MAKE_C_IDENTIFIER "ORTHANT_${_header}_DIR" _variable)
  find_path(${_variable} ${_header} HINTS ${_nvidia_includes} PATHS ${_toolkits} PATH_SUFFIXES include)
  mark_as_advanced(${_variable})
  if(${_variable})
    list(APPEND ORTHANT_CUDA_INCLUDE_DIRS "${${_variable}}")
  else()
    list(APPEND _missing ${_header})
  endif()
endforeach()
if(NOT ORTHANT_NCCL_INCLUDE_DIR)
  list(APPEND _missing nccl.h)
endif()
# The wheels contain the libraries under their versioned names only.
find_library(ORTHANT_CUDART_LIBRARY NAMES libcudart.so.13 libcudart.so.12 HINTS ${_nvidia_libraries}
             PATHS ${_toolkits} PATH_SUFFIXES lib64)
if(NOT ORTHANT_CUDART_LIBRARY)
  list(APPEND _missing libcudart.so)
else()
  string(REGEX MATCH "[0-9]+$" _cudart_major "${ORTHANT_CUDART_LIBRARY}")
  if(NOT CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL "${_cudart_major}" OR
     CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL "${_cudart_major}.99")
    message(FATAL_ERROR "ORTHANT_CUDA=ON: the CUDA compiler has version ${CMAKE_CUDA_COMPILER_VERSION}, but torch was built with CUDA "
                        "${_cudart_major}. Put nvcc of CUDA ${_cudart_major} first on the PATH.")
  endif()
endif()
if(_missing)
  list(JOIN _missing ", " _missing)
  message(FATAL_ERROR "ORTHANT_CUDA=ON: not found: ${_missing} (looked in ${_site}/nvidia, $CUDA_HOME, /usr/local/cuda). "
                      "pip install torch brings most of them; crt/ comes with a CUDA toolkit of the same major version.")
endif()
list(REMOVE_DUPLICATES ORTHANT_CUDA_INCLUDE_DIRS)

# ProcessGroupNCCL::Options contains a struct of nccl.h. With another version of this header than torch's own, the build
# would succeed and the run would crash, so the versions are compared here.
file(STRINGS "${ORTHANT_NCCL_INCLUDE_DIR}/nccl.h" _lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) ")
string(REGEX MATCHALL "[0-9]+" _nccl_version "${_lines}")
list(JOIN _nccl_version "." _nccl_version)
file(GLOB _metadata "${_site}/torch-${ORTHANT_TORCH_VERSION}*.dist-info/METADATA")
if(_metadata)
  list(GET _metadata 0 _metadata)
  file(STRINGS "${_metadata}" _needed REGEX "^Requires-Dist: nvidia-nccl-cu[0-9]+==")
  string(REGEX MATCH "==([0-9.]+)" _needed "${_needed}")
  if(CMAKE_MATCH_1 AND NOT _nccl_version VERSION_EQUAL CMAKE_MATCH_1)
    message(FATAL_ERROR "ORTHANT_CUDA=ON: this torch was built with NCCL ${CMAKE_MATCH_1}, but ${ORTHANT_NCCL_INCLUDE_DIR}/nccl.h "
                        "is ${_nccl_version}. Pass -DORTHANT_NCCL_INCLUDE_DIR=<folder of the right nccl.h>.")
  endif()
endif()
message(STATUS "CUDA: NCCL ${_nccl_version}, headers in ${ORTHANT_NCCL_INCLUDE_DIR};${ORTHANT_CUDA_INCLUDE_DIRS}")

add_library(torchwheel::c10_cuda SHARED IMPORTED)
set_target_properties(torchwheel::c10_cuda PROPERTIES
  IMPORTED_LOCATION "${ORTHANT_TORCH_DIR}/lib/libc10_cuda.so" INTERFACE_LINK_LIBRARIES torchwheel::c10)
# CUDA's operators register themselves when the library is loaded, so it must be loaded although no code refers to it.
# The libraries that it depends on are found through its own RPATH at run time, so the linker may leave them unresolved.
add_library(torchwheel::cuda SHARED IMPORTED)
set_target_properties(torchwheel::cuda PROPERTIES
  IMPORTED_LOCATION "${ORTHANT_TORCH_DIR}/lib/libtorch_cuda.so"
  INTERFACE_LINK_LIBRARIES "torchwheel::cpu;torchwheel::c10_cuda;${ORTHANT_CUDART_LIBRARY}"
  INTERFACE_LINK_OPTIONS "-Wl,--no-as-needed,--allow-shlib-undefined")

# Machine code for GPUs from A100 (80) to B200 (100), and intermediate code of the last for later ones.
set(ORTHANT_CUDA_ARCHITECTURES "80-real;90-real;100" CACHE STRING "GPU architectures to compile kernels for")

# orthant_cuda_kernels(<target> <folder>): a static library of the .cu files of a folder.
function(orthant_cuda_kernels target folder)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cu)
  add_library(${target} STATIC ${sources})
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${ORTHANT_CUDA_ARCHITECTURES}" CUDA_STANDARD 20
                        CUDA_RUNTIME_LIBRARY None POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE --expt-relaxed-constexpr -DORTHANT_CUDA)
  # The updates of optimizers name their fused multiply-adds, so that they have the bits of the CPU's kernels.
  set_source_files_properties(${CMAKE_SOURCE_DIR}/${folder}/elementwise.cu PROPERTIES COMPILE_OPTIONS -fmad=false)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${target} PUBLIC ${ORTHANT_CUDART_LIBRARY})
endfunction()
