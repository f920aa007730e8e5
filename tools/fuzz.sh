#!/bin/sh
# Fuzzes what reads untrusted bytes, or numbers from callers, with libFuzzer under the address and undefined-behaviour
# sanitizers; all code is instrumented. It needs clang, libclang-rt-dev and libomp-dev.
#
#   tools/fuzz.sh [TARGET [SECONDS]]   TARGET: gguf (default), another tests/*/TARGET_fuzz.cc, or all; SECONDS: 60
#   tools/fuzz.sh keep TARGET          makes tests/corpus/TARGET_fuzz anew of the inputs that cover most code
#
# A finding fails the run and stays as build/fuzz/found/TARGET/crash-*; build/fuzz/tests/ROOM/TARGET_fuzz FILE replays it.
# Mend its whole kind and keep the input, in tests/corpus/TARGET_fuzz, which every test run replays, or as a unit test.
# A new target: tests/ROOM/TARGET_fuzz.cc with the functions of tests/support/fuzz.h, and manyhead_add_fuzz(...) in the
# CMakeLists.txt beside it. It does well when an input of a few bytes reaches far: make checksums right in the target.
set -eu
cd "$(dirname "$0")/.."
build=build/fuzz mode=run
if [ "${1:-}" = keep ]; then mode=keep; shift; fi
targets=${1:-gguf} seconds=${2:-60}
case $seconds in *[!0-9]* | "") echo "fuzz.sh: SECONDS = '$seconds'; expected a whole number" >&2; exit 2 ;; esac
all=$(find tests -name "*_fuzz.cc" | sed "s:.*/\(.*\)_fuzz.cc:\1:" | sort)
if [ "$targets" = all ]; then targets=$all; fi
for target in $targets; do
  if ! echo "$all" | grep -qx "$target"; then
    echo "fuzz.sh: TARGET = '$target'; expected all or one of" >&2
    echo "$all" >&2
    exit 2
  fi
done
command -v clang++ >/dev/null || { echo "fuzz.sh: clang++ is missing: apt-get install clang libclang-rt-dev libomp-dev" >&2; exit 1; }
cmake --preset fuzz >/dev/null

# Builds $target, and makes its folders; sets `program`, `inputs`, `kept` and `found`.
prepare() {
  cmake --build "$build" --target "${target}_fuzz" >"$build/$target.build.log" || {
    cat "$build/$target.build.log" >&2
    exit 1
  }
  program=$(ls "$build"/tests/*/"${target}_fuzz")
  corpus=$build/corpus/$target found=$build/found/$target kept=tests/corpus/${target}_fuzz
  mkdir -p "$corpus" "$found"
  "$program" --write-seeds "$corpus"
  inputs=$corpus
  if [ -d "$kept" ]; then inputs="$corpus $kept"; fi
}

if [ "$mode" = keep ]; then
  for target in $targets; do
    prepare
    control=$build/$target.merge
    rm -rf "$control" "$build/merged"
    mkdir "$build/merged"
    # shellcheck disable=SC2086  # folders
    "$program" -merge=1 -use_counters=0 -max_len=16384 -merge_control_file="$control" \
      "$build/merged" $inputs 2>"$found/merge.log"
    python3 tests/support/fuzz_keep.py "$control" "$kept"
  done
  exit
fi

failed=0
for target in $targets; do
  prepare
  rc=0
  # shellcheck disable=SC2086
  "$program" -max_total_time="$seconds" -rss_limit_mb=1024 -timeout=20 -artifact_prefix="$found/" \
    $inputs >"$found/log" 2>&1 || rc=$?
  # The last line of progress: #RUNS ... cov: EDGES ft: FEATURES corp: INPUTS/SIZE ...
  reached=$(sed -n 's/^#\([0-9]*\).*\(cov: [0-9]* ft: [0-9]* corp: [^ ]*\).*/\1 runs \2/p' "$found/log" | tail -1)
  printf '%-12s %s%s\n' "$target" "$([ "$rc" -eq 0 ] || echo "FINDING in $found; ")" "${reached:-0 runs}"
  if [ "$rc" -ne 0 ]; then
    failed=1
    grep -n -m 40 -A 40 -e '==ERROR' -e '==.*ERROR' -e 'runtime error' -e 'a check failed' "$found/log" || tail -40 "$found/log"
  fi
done
exit $failed
