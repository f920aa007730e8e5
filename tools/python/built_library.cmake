# The library as an existing build of this tree has it, so that it is not compiled twice: by default build/release, which
# tools/quickstart.sh makes. It is used only where compiling it here would give the same, and never stale: building the
# package first brings it up to date there.
set(MANYHEAD_BUILT_IN "" CACHE PATH "Build folder whose library the Python package takes; \"none\": it compiles its own")

# Sets `out` to the build folder, or to nothing where there is none that was configured from this tree as this build is.
function(manyhead_find_built_library out)
  set(${out} "" PARENT_SCOPE)
  get_filename_component(root ../.. ABSOLUTE)
  set(folder "${MANYHEAD_BUILT_IN}")
  if(NOT folder)
    set(folder ${root}/build/release)
  endif()
  if(NOT EXISTS ${folder}/CMakeCache.txt OR NOT EXISTS ${folder}/build.ninja OR NOT EXISTS ${folder}/libmanyhead.a)
    return()
  endif()
  load_cache(${folder} READ_WITH_PREFIX built_ CMAKE_HOME_DIRECTORY CMAKE_CXX_COMPILER
    CMAKE_CXX_FLAGS CMAKE_BUILD_TYPE BUILD_SHARED_LIBS MANYHEAD_SANITIZE MANYHEAD_DCHECKS dnnl_DIR)
  # Another build type, as for coverage, may have flags of its own that linking needs too.
  if(NOT "${built_CMAKE_HOME_DIRECTORY}" STREQUAL "${root}" OR built_BUILD_SHARED_LIBS
      OR NOT CMAKE_BUILD_TYPE MATCHES "^(Release|RelWithDebInfo)$")
    return()
  endif()
  file(REAL_PATH ${built_CMAKE_CXX_COMPILER} built_CMAKE_CXX_COMPILER) # c++ and g++ are one program
  file(REAL_PATH ${CMAKE_CXX_COMPILER} CMAKE_CXX_COMPILER)
  foreach(name CMAKE_CXX_COMPILER CMAKE_CXX_FLAGS CMAKE_BUILD_TYPE MANYHEAD_SANITIZE)
    if(NOT "${built_${name}}" STREQUAL "${${name}}")
      message(STATUS "manyhead: ${folder} has ${name}='${built_${name}}', not '${${name}}': not used")
      return()
    endif()
  endforeach()
  if((built_MANYHEAD_DCHECKS AND NOT MANYHEAD_DCHECKS) OR (MANYHEAD_DCHECKS AND NOT built_MANYHEAD_DCHECKS))
    return()
  endif()
  set(manyhead_built_dnnl_DIR "${built_dnnl_DIR}" PARENT_SCOPE)
  set(${out} ${folder} PARENT_SCOPE)
endfunction()

# Defines manyhead::manyhead as the library in `folder`, with what a static library leaves to whoever links it.
macro(manyhead_import_built_library folder)
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  find_package(dnnl REQUIRED CONFIG HINTS "${manyhead_built_dnnl_DIR}")
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
  pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
  # The file, not the target, whose name is also that of the command's file.
  add_custom_target(manyhead_up_to_date COMMAND ${CMAKE_COMMAND} --build ${folder} --target libmanyhead.a
    BYPRODUCTS ${folder}/libmanyhead.a VERBATIM)
  add_library(manyhead::manyhead STATIC IMPORTED)
  set_target_properties(manyhead::manyhead PROPERTIES IMPORTED_LOCATION ${folder}/libmanyhead.a)
  target_include_directories(manyhead::manyhead INTERFACE ${CMAKE_CURRENT_SOURCE_DIR}/../../include)
  target_link_libraries(manyhead::manyhead INTERFACE OpenMP::OpenMP_CXX DNNL::dnnl PkgConfig::PCRE2 PkgConfig::UTF8PROC)
  add_dependencies(manyhead::manyhead manyhead_up_to_date)
endmacro()
