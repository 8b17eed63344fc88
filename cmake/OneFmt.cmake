# Makes the whole program use one version of fmt. The torch wheel ships fmt's headers too, and a file takes those on its
# first include path. A folder with a link to one fmt therefore comes before all other include paths: Debian's fmt, or
# the wheel's headers, header-only, if Debian's is not installed. The installed library has a copy of these headers,
# which its users take before all system headers.
find_package(fmt 9 QUIET)
add_library(orthant_fmt INTERFACE)
set(_fmt_first ${CMAKE_BINARY_DIR}/fmt_first)
file(MAKE_DIRECTORY ${_fmt_first})
if(fmt_FOUND)
  find_path(_fmt_headers fmt/core.h PATHS /usr/include REQUIRED)
  target_link_libraries(orthant_fmt INTERFACE fmt::fmt)
else()
  set(_fmt_headers ${ORTHANT_TORCH_DIR}/include)
  target_compile_definitions(orthant_fmt INTERFACE FMT_HEADER_ONLY=1)
endif()
file(CREATE_LINK ${_fmt_headers}/fmt ${_fmt_first}/fmt SYMBOLIC)
include_directories(BEFORE SYSTEM ${_fmt_first})
target_include_directories(orthant_fmt INTERFACE $<INSTALL_INTERFACE:include/orthant_fmt>)
set_target_properties(orthant_fmt PROPERTIES EXPORT_NO_SYSTEM ON)
