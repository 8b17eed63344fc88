# Defines orthant_allocator: a malloc that keeps large blocks instead of returning them to the kernel after each use. A
# program that links it uses it everywhere, libtorch included. ORTHANT_ALLOCATOR selects the library. With sanitizers
# the system's is used, because they bring their own malloc.
set(ORTHANT_ALLOCATOR "mimalloc" CACHE STRING "mimalloc | tcmalloc | system")
set_property(CACHE ORTHANT_ALLOCATOR PROPERTY STRINGS mimalloc tcmalloc system)
add_library(orthant_allocator INTERFACE)
if(ORTHANT_SANITIZE)
  set(_allocator system)
else()
  set(_allocator ${ORTHANT_ALLOCATOR})
endif()
if(_allocator STREQUAL "system")
  message(STATUS "allocator: the system's")
elseif(_allocator MATCHES "^(mimalloc|tcmalloc)$")
  find_library(ORTHANT_${_allocator}_LIBRARY NAMES ${_allocator} ${_allocator}_minimal)
  if(NOT ORTHANT_${_allocator}_LIBRARY)
    message(FATAL_ERROR "ORTHANT_ALLOCATOR=${_allocator}: lib${_allocator}.so not found. Install it "
                        "(Debian: libmimalloc-dev, libgoogle-perftools-dev), or pass -DORTHANT_ALLOCATOR=system.")
  endif()
  message(STATUS "allocator: ${ORTHANT_${_allocator}_LIBRARY}")
  # No code refers to a symbol of the library, so without --no-as-needed the linker would drop it.
  target_link_libraries(orthant_allocator INTERFACE
    -Wl,--push-state,--no-as-needed ${ORTHANT_${_allocator}_LIBRARY} -Wl,--pop-state)
else()
  message(FATAL_ERROR "ORTHANT_ALLOCATOR=${_allocator}: use mimalloc, tcmalloc or system")
endif()
