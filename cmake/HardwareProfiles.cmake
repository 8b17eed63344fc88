# Compiles the hardware profiles, src/hardware/profiles/*.toml, into the library of src/hardware: writes a source file
# that defines shipped_profiles() (src/hardware/shipped.h). The file is written again when a profile changes.
function(orthant_hardware_profiles target)
  file(GLOB profiles CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/hardware/profiles/*.toml)
  list(SORT profiles)
  set(entries "")
  foreach(profile ${profiles})
    set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${profile})
    get_filename_component(name ${profile} NAME_WE)
    file(READ ${profile} text)
    string(APPEND entries "    {\"${name}\", R\"toml(${text})toml\"},\n")
  endforeach()
  set(file ${CMAKE_BINARY_DIR}/hardware_profiles.cc)
  file(CONFIGURE OUTPUT ${file} @ONLY CONTENT "// Written by cmake/HardwareProfiles.cmake.
#include \"hardware/shipped.h\"

namespace orthant {

std::span<const ShippedProfile> shipped_profiles() {
  static constexpr ShippedProfile profiles[] = {
${entries}  };
  return profiles;
}

}  // namespace orthant
")
  target_sources(${target} PRIVATE ${file})
endfunction()
