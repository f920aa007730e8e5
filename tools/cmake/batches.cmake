# Compiles the library in batches of eight source files, so that the compiler reads the headers of the standard library
# once for a batch, which halves its time. Files whose local names clash with those of their neighbours stand in `alone`:
# add a file there when a batch reports that a name is redefined.
# Off by default: the sanitized tests replace single object files of the library, and a changed file should compile alone.
option(MANYHEAD_BATCHES "Compile the library in batches of source files" OFF)
if(NOT MANYHEAD_BATCHES)
  return()
endif()

set(alone
  architecture/hf_config.cc architecture/tensor_table.cc calibrate/calibrate.cc formats/safetensors.cc
  heads/circuits/circuits_terms.cc heads/observe/row_stats.cc heads/prune/prune.cc heads/prune/prune_file.cc
  platform/team_openmp.cc session/generate.cc session/session.cc text/pair_model.cc text/word_splitter.cc)
list(TRANSFORM alone PREPEND ${PROJECT_SOURCE_DIR}/runtime/)
set_source_files_properties(${alone} TARGET_DIRECTORY manyhead PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
set_target_properties(manyhead PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
