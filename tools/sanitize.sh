#!/usr/bin/env bash
# Runs tests under the address and undefined-behaviour sanitizers of GCC: no invalid access, no leak, no undefined
# operation. Installs and builds what is missing.
#
#   tools/sanitize.sh [quick | all]
#
# quick (default)  the rooms that read what others wrote, and the C interface: damaged models, vocabularies, snapshots,
#                  policies, shapes and texts, then a decoded model; takes a minute or two
# all              everything instrumented, kernels too, in build/asan-ubsan, and all tests but those on fetched models;
#                  takes half an hour
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/setup.sh
what=${1:-quick}
case $what in quick | all) ;; *) die "'$what' is neither quick nor all" ;; esac
install_packages "${packages[@]}"
export UBSAN_OPTIONS=print_stacktrace=1 OMP_WAIT_POLICY=passive

if [ "$what" = all ]; then
  export MANYHEAD_MODEL_DIR=/nonexistent
  build=build/asan-ubsan
  [ -f $build/build.ninja ] || run_logged configure-sanitized cmake --preset asan-ubsan
  say "building $build"
  run_logged build-sanitized cmake --build $build
  say "running the tests"
  run_logged ctest-sanitized ctest --test-dir $build -j2 --output-on-failure -E '^(docs|format|layers|configure)$'
  say "the sanitizers found nothing (log: $logs/ctest-sanitized.log)"
  exit
fi

build_targets sanitized
for name in gguf tokenizer kv_snapshot kv_policy shape conllu; do
  say "sanitizers: $name"
  run_logged "sanitized-$name" "$build/tests/sanitized/${name}_sanitized" --variants 2000
  [ ! -d "tests/corpus/${name}_fuzz" ] ||
    run_logged "sanitized-$name" "$build/tests/sanitized/${name}_sanitized" "tests/corpus/${name}_fuzz"
done
say "sanitizers: the C interface"
run_logged sanitized-c-api "$build/tests/sanitized/c_api_sanitized" tools/models/bundled.gguf "$logs/sanitized-session"
say "the sanitizers found nothing"
