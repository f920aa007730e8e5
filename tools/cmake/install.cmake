# Installs the library, its headers, packages for find_package and pkg-config, the command and its model.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/manyhead)
target_include_directories(manyhead PUBLIC $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
install(TARGETS manyhead EXPORT manyhead)
install(DIRECTORY include/manyhead DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)
install(EXPORT manyhead NAMESPACE manyhead:: FILE manyheadTargets.cmake DESTINATION ${package_folder})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/manyheadConfig.cmake.in
  ${PROJECT_BINARY_DIR}/manyheadConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/manyheadConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/manyheadConfig.cmake ${PROJECT_BINARY_DIR}/manyheadConfigVersion.cmake
  DESTINATION ${package_folder})

# Folders relative to the file itself: a package may be unpacked anywhere.
set(pc_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  set(pc_prefix ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH pc_prefix /${pc_folder} /)
  set(pc_prefix "\${pcfiledir}/${pc_prefix}")
endif()
set(pc_dependencies "")
set(pc_requires "")
if(library_type STREQUAL "STATIC_LIBRARY")
  list(TRANSFORM OpenMP_CXX_LIB_NAMES PREPEND -l OUTPUT_VARIABLE openmp_libraries)
  list(JOIN openmp_libraries " " openmp_libraries)
  set(pc_requires "libpcre2-8 libutf8proc")
  set(pc_dependencies "-L$<TARGET_LINKER_FILE_DIR:DNNL::dnnl> -ldnnl ${openmp_libraries} -lstdc++ -lm")
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/manyhead.pc.in ${PROJECT_BINARY_DIR}/manyhead.pc.in @ONLY)
file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/manyhead.pc INPUT ${PROJECT_BINARY_DIR}/manyhead.pc.in)
install(FILES ${PROJECT_BINARY_DIR}/manyhead.pc DESTINATION ${pc_folder})

if(TARGET manyhead_command)
  set_target_properties(manyhead_command PROPERTIES
    INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS manyhead_command)
  # OPTIONAL: the command works without it when it is given a model.
  install(FILES tools/models/bundled.gguf DESTINATION ${CMAKE_INSTALL_DATADIR}/manyhead OPTIONAL)
endif()
