# Defines the libraries of src/: each folder (a "room") is one static library. Libraries above the torch line do not
# link torch, so a call of torch there fails to link. A folder with both kinds of file (parallel/*, model) has two
# libraries: PLAN takes the files whose names match ORTHANT_PLAN_FILES, TORCH takes the others.
#
#   orthant_room(<folder> [PLAN | TORCH] [DEPENDS <folder>[/plan] | <target> ...])
#
# If ORTHANT_EXPORT is set, the library is installed with this export set; see cmake/InstallPackage.cmake.
#
# Example: the library of parallel/data is orthant_parallel_data, and its half without torch is
# orthant_parallel_data_plan.

# Names of the files in the half without torch: plan.* and *_plan.* in parallel/*, and architecture.* in model/.
set(ORTHANT_PLAN_FILES "(^|/)(plan|[a-z0-9_]+_plan|architecture)\\.(cc|h)$")

# Source files are compiled in batches, so that the headers of libtorch are read once for many files. A build from an
# empty compiler cache then takes a third of the processor time. Turn batches off to recompile single files while
# editing. CMake's own UNITY_BUILD is not used: it writes absolute paths, so a second clone could not reuse the objects
# in ccache.
option(ORTHANT_BATCHES "compile source files in batches" ON)
set(ORTHANT_BATCH_FILES 12)
# Matches the files that are compiled alone: those with their own compile options, and Highway's kernels, which include
# themselves once for each instruction set.
set(ORTHANT_ALONE "src/(comm/(gloo_transport|ordered_sum|ucx_[a-z]+|c10d_nccl)|model/kernels/[a-z0-9_]+)\\.cc$")

# missing-field-initializers is off because designated initializers may leave members at their defaults.
# subobject-linkage is off because of batches: a private struct with members of an anonymous namespace is correct, but
# the batch includes it from another file, and the compiler warns.
set(ORTHANT_WARNINGS -Wall -Wextra -Wshadow -Wno-missing-field-initializers -Wno-subobject-linkage -Werror)
if(ORTHANT_FUZZ)  # clang has other warnings; the build with g++ treats its own as errors
  set(ORTHANT_WARNINGS -w)
endif()

function(orthant_target_name folder out)
  string(REPLACE "/" "_" name ${folder})
  set(${out} orthant_${name} PARENT_SCOPE)
endfunction()

# Sets `out` to the files to compile for the given sources of a target: the files that are compiled alone, and batches
# of equal length. A batch includes its sources by their paths relative to src/, or to the root for other folders.
function(orthant_batches target out)
  set(batched ${ARGN})
  set(compiled ${ARGN})
  list(FILTER batched EXCLUDE REGEX ${ORTHANT_ALONE})
  list(LENGTH batched count)
  if(ORTHANT_BATCHES AND count GREATER 1)
    list(FILTER compiled INCLUDE REGEX ${ORTHANT_ALONE})
    math(EXPR batches "(${count} + ${ORTHANT_BATCH_FILES} - 1) / ${ORTHANT_BATCH_FILES}")
    math(EXPR length "(${count} + ${batches} - 1) / ${batches}")
    set(first 0)
    while(first LESS count)
      list(SUBLIST batched ${first} ${length} part)
      list(TRANSFORM part REPLACE "^${CMAKE_SOURCE_DIR}/(src/)?" "")
      list(TRANSFORM part REPLACE "(.+)" "#include \"\\1\"\n")
      list(JOIN part "" text)
      set(file ${CMAKE_BINARY_DIR}/batches/${target}_${first}.cc)
      file(CONFIGURE OUTPUT ${file} CONTENT "${text}")  # unlike WRITE, does not touch a file that would stay equal
      list(APPEND compiled ${file})
      math(EXPR first "${first} + ${length}")
    endwhile()
  endif()
  set(${out} ${compiled} PARENT_SCOPE)
endfunction()

function(orthant_room folder)
  cmake_parse_arguments(ROOM "PLAN;TORCH" "" "DEPENDS" ${ARGN})
  orthant_target_name(${folder} target)
  set(glob GLOB)
  if(folder MATCHES "^parallel/")  # folders below parallel/ have subfolders
    set(glob GLOB_RECURSE)
  endif()
  file(${glob} sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${folder}/*.cc)
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  if(ROOM_PLAN)
    list(FILTER sources INCLUDE REGEX ${ORTHANT_PLAN_FILES})
    set(target ${target}_plan)
  elseif(folder MATCHES "^(parallel/|model$)")
    list(FILTER sources EXCLUDE REGEX ${ORTHANT_PLAN_FILES})
  endif()

  if(sources)
    orthant_batches(${target} sources ${sources})
    add_library(${target} STATIC ${sources})
    set(scope PUBLIC)
    target_compile_options(${target} PRIVATE ${ORTHANT_WARNINGS})
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_compile_features(${target} ${scope} cxx_std_20)
  target_include_directories(${target} ${scope} $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/src>)
  foreach(dependency ${ROOM_DEPENDS})
    if(EXISTS ${CMAKE_SOURCE_DIR}/src/${dependency} OR dependency MATCHES "/plan$")
      orthant_target_name(${dependency} dependency)
    endif()
    target_link_libraries(${target} ${scope} ${dependency})
  endforeach()
  if(ROOM_TORCH)
    target_link_libraries(${target} ${scope} torchwheel::cpu)
    orthant_precompile(${target})
  endif()
  if(ORTHANT_EXPORT AND NOT ORTHANT_CUDA)
    install(TARGETS ${target} EXPORT ${ORTHANT_EXPORT} ARCHIVE DESTINATION lib INCLUDES DESTINATION include)
  endif()
endfunction()

# Makes a target use the precompiled header that all targets below the torch line share.
function(orthant_precompile target)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    return()
  endif()
  if(NOT TARGET orthant_pch)
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/pch.cc CONTENT "")  # unlike WRITE, does not touch a file that stays equal
    add_library(orthant_pch STATIC ${CMAKE_BINARY_DIR}/pch.cc)
    target_link_libraries(orthant_pch PUBLIC torchwheel::cpu torchwheel::openmp orthant_fmt)
    target_include_directories(orthant_pch PRIVATE ${CMAKE_SOURCE_DIR}/src)
    target_compile_options(orthant_pch PRIVATE ${ORTHANT_WARNINGS})
    target_precompile_headers(orthant_pch PRIVATE ${CMAKE_SOURCE_DIR}/cmake/torch_pch.h)
    if(CCACHE)
      target_compile_options(orthant_pch PRIVATE -fpch-preprocess)
    endif()
  endif()
  target_link_libraries(${target} PUBLIC torchwheel::openmp)
  target_precompile_headers(${target} REUSE_FROM orthant_pch)
  if(CCACHE)
    target_compile_options(${target} PRIVATE -fpch-preprocess)
  endif()
endfunction()
