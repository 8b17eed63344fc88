# A room is a folder of src/ and one static library. Rooms above the torch line do not link torch, so a torch call there
# does not link. A folder that holds both kinds of file (parallel/*, model) has two libraries: PLAN takes the files listed
# in ORTHANT_PLAN_FILES below by name, TORCH the rest.
#
#   orthant_room(<folder> [PLAN | TORCH] [DEPENDS <folder>[/plan] | <target> ...])
#
# Library of folder parallel/data: orthant_parallel_data; of its pure half: orthant_parallel_data_plan.

# The pure half of a folder: in parallel/* the files plan.* and *_plan.*, in model/ the files architecture.*.
set(ORTHANT_PLAN_FILES "(^|/)(plan|[a-z0-9_]+_plan|architecture)\\.(cc|h)$")

# Several source files are compiled as one, so that the headers of libtorch are read once for many files: a build from an
# empty compiler cache takes a third of the processor time. Switch it off to recompile single files while editing.
option(ORTHANT_UNITY "compile the files of each room in batches" ON)
set(ORTHANT_UNITY_BATCH 12)

# A designated initializer that leaves members at their defaults is the house style, not an oversight.
set(ORTHANT_WARNINGS -Wall -Wextra -Wshadow -Wno-missing-field-initializers -Werror)

function(orthant_target_name folder out)
  string(REPLACE "/" "_" name ${folder})
  set(${out} orthant_${name} PARENT_SCOPE)
endfunction()

function(orthant_room folder)
  cmake_parse_arguments(ROOM "PLAN;TORCH" "" "DEPENDS" ${ARGN})
  orthant_target_name(${folder} target)
  set(glob GLOB)
  if(folder MATCHES "^parallel/")  # a family of ideas has a folder for each
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
    add_library(${target} STATIC ${sources})
    set(scope PUBLIC)
    target_compile_options(${target} PRIVATE ${ORTHANT_WARNINGS})
    orthant_unity(${target})
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope} ${CMAKE_SOURCE_DIR}/src)
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
endfunction()

# Compiles the files of the target in batches. A file with compile options or includes of its own stays alone (CMake does
# so for those that set COMPILE_OPTIONS, COMPILE_DEFINITIONS or INCLUDE_DIRECTORIES), and so do Highway's kernels, which
# include themselves once for each instruction set.
function(orthant_unity target)
  if(ORTHANT_UNITY AND NOT target STREQUAL "orthant_model_kernels")
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${ORTHANT_UNITY_BATCH})
    # A private struct with members of an anonymous namespace is harmless in a file of its own, which a batch hides.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# One precompiled header for every target below the torch line.
function(orthant_precompile target)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    return()
  endif()
  if(NOT TARGET orthant_pch)
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/pch.cc CONTENT "")  # unlike WRITE, leaves an equal file alone
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
