#!/usr/bin/env bash
# Runs the command and the C interface on the bundled model under valgrind: no invalid access, no value used that
# nobody set, no leak. valgrind's CPU has AVX2. Builds what is missing.
#
#   tools/valgrind.sh [quick | all]     quick: the C interface alone, in seconds; all (default) takes minutes
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/setup.sh
what=${1:-all}
case $what in quick | all) ;; *) die "'$what' is neither quick nor all" ;; esac
install_packages "${packages[@]}" valgrind
build_targets manyhead_command c_api_test

check() {
  local name=$1
  shift
  say "valgrind: $name"
  run_logged "valgrind-$name" valgrind --quiet --error-exitcode=9 --leak-check=full \
    --errors-for-leak-kinds=definite "$@"
}
check c-api "$build/tests/c_api/c_api_test" tools/models/bundled.gguf "$logs/valgrind-session"
if [ "$what" = quick ]; then
  say "valgrind found nothing (log: $logs/valgrind-c-api.log)"
  exit
fi
for isa in scalar avx2; do
  export MANYHEAD_ISA=$isa
  check "generate-$isa" "$build/manyhead" generate -p 'x7k2qz x7k2qz x7k' -n 8 -t 2
done
check perplexity "$build/manyhead" perplexity -f tools/setup.sh -c 128
say "valgrind found nothing (logs: $logs/valgrind-*.log)"
