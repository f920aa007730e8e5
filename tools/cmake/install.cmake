# Installs the library, its headers, a package for find_package(manyhead), the command and its model.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/manyhead)
target_include_directories(manyhead PUBLIC $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(manyhead PUBLIC cxx_std_20)
# No DEFINE_SYMBOL: static and shared objects are the same, and a compiler cache serves both.
set_target_properties(manyhead PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
  DEFINE_SYMBOL "")
install(TARGETS manyhead EXPORT manyhead)
install(DIRECTORY include/manyhead DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT manyhead NAMESPACE manyhead:: FILE manyheadTargets.cmake DESTINATION ${package_folder})

get_target_property(library_type manyhead TYPE)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/manyheadConfig.cmake.in
  ${PROJECT_BINARY_DIR}/manyheadConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/manyheadConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/manyheadConfig.cmake ${PROJECT_BINARY_DIR}/manyheadConfigVersion.cmake
  DESTINATION ${package_folder})

if(TARGET manyhead_command)
  set_target_properties(manyhead_command PROPERTIES
    INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS manyhead_command)
  # OPTIONAL: the command works without it when it is given a model.
  install(FILES ${PROJECT_SOURCE_DIR}/tools/models/bundled.gguf
    DESTINATION ${CMAKE_INSTALL_DATADIR}/manyhead OPTIONAL)
endif()
