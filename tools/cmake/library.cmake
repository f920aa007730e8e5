# Properties of the library for programs that link it: its name's version and, where it is shared, the symbols it shows.
target_compile_features(manyhead PUBLIC cxx_std_20)

# Before 1.0 each minor version may change the binary interface. No DEFINE_SYMBOL: static and shared objects
# are the same, and a compiler cache serves both.
set_target_properties(manyhead PROPERTIES VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} DEFINE_SYMBOL "")

get_target_property(library_type manyhead TYPE)
if(library_type STREQUAL "SHARED_LIBRARY")
  # The standard library declares its own templates visible; a copy of them must not stand in for another's.
  target_link_options(manyhead PRIVATE -Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/exports.map)
  set_target_properties(manyhead PROPERTIES LINK_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/exports.map)
endif()
