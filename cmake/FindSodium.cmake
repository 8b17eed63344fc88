# Defines sodium::sodium, from which the room `launch` takes message authentication codes. The static library is
# preferred, because programs that contain it also run on machines where it is not installed. Installed programs of
# Orthant's library find it with this file too.
include(FindPackageHandleStandardArgs)

find_path(ORTHANT_SODIUM_INCLUDE sodium.h)
find_library(ORTHANT_SODIUM_LIBRARY NAMES libsodium.a sodium)
set(Sodium_REASON "Install libsodium (Debian: libsodium-dev).")
find_package_handle_standard_args(Sodium REQUIRED_VARS ORTHANT_SODIUM_LIBRARY ORTHANT_SODIUM_INCLUDE
  REASON_FAILURE_MESSAGE "${Sodium_REASON}")
if(Sodium_FOUND AND NOT TARGET sodium::sodium)
  add_library(sodium::sodium UNKNOWN IMPORTED GLOBAL)
  set_target_properties(sodium::sodium PROPERTIES IMPORTED_LOCATION ${ORTHANT_SODIUM_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${ORTHANT_SODIUM_INCLUDE})
endif()
