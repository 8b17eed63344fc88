# Installs the CMake package Orthant: headers, static libraries, and the targets Orthant::plan (the libraries above the
# torch line) and Orthant::orthant (all libraries). The package can be moved. A build with CUDA installs the program
# only. docs/library.md says how to use the package.
include(CMakePackageConfigHelpers)

add_library(orthant_package_plan INTERFACE)
target_link_libraries(orthant_package_plan INTERFACE orthant_library)
set_target_properties(orthant_package_plan PROPERTIES EXPORT_NAME plan)
add_library(orthant_package_orthant INTERFACE)
target_link_libraries(orthant_package_orthant INTERFACE orthant_runtime orthant_calibrate orthant_package_plan)
set_target_properties(orthant_package_orthant PROPERTIES EXPORT_NAME orthant)

set(_package lib/cmake/Orthant)
install(TARGETS orthant_fmt orthant_package_plan EXPORT OrthantPlan)
install(TARGETS orthant_package_orthant EXPORT OrthantTorch)
install(EXPORT OrthantPlan NAMESPACE Orthant:: DESTINATION ${_package})
install(EXPORT OrthantTorch NAMESPACE Orthant:: DESTINATION ${_package})
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/OrthantConfig.cmake.in ${CMAKE_BINARY_DIR}/OrthantConfig.cmake
  INSTALL_DESTINATION ${_package} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/OrthantConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/OrthantConfig.cmake ${CMAKE_BINARY_DIR}/OrthantConfigVersion.cmake
  DESTINATION ${_package})
install(FILES ${CMAKE_SOURCE_DIR}/cmake/FindTorchWheel.cmake ${CMAKE_SOURCE_DIR}/cmake/FindTextLibraries.cmake
  ${CMAKE_SOURCE_DIR}/cmake/FindSodium.cmake DESTINATION ${_package}/modules)

# Headers are installed as <orthant/ROOM/...>. In their #include lines, "ROOM/..." becomes "orthant/ROOM/...", because a
# program that uses them may have a file of the same name.
install(DIRECTORY src/ DESTINATION include/orthant FILES_MATCHING PATTERN *.h
  PATTERN app EXCLUDE PATTERN cuda EXCLUDE PATTERN gloo_stubs EXCLUDE PATTERN profiles EXCLUDE
  PATTERN ucx_*.h EXCLUDE PATTERN *-inl.h EXCLUDE)
install(CODE [[execute_process(COMMAND_ERROR_IS_FATAL ANY
  COMMAND find "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/include/orthant" -name *.h -exec sed -i "s|^#include \"\\(orthant/\\)\\{0,1\\}|#include \"orthant/|" {} +)]])
install(DIRECTORY ${CMAKE_BINARY_DIR}/fmt_first/fmt/ DESTINATION include/orthant_fmt/fmt FILES_MATCHING PATTERN *.h)
