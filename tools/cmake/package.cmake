# `cpack` in the build folder makes a Debian package of what is installed.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME manyhead)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGE_CONTACT "The manyhead authors")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
  "The library with its headers, packages for CMake and pkg-config, and the manyhead command\n with a small model.")
# Packages that binaries load, found by dpkg-shlibdeps (dpkg-dev); those that static linking needs too.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
if(library_type STREQUAL "STATIC_LIBRARY")
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libdnnl-dev, ocl-icd-opencl-dev, libpcre2-dev, libutf8proc-dev")
else()
  set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
endif()
include(CPack)
