#!/bin/sh
# Fuzzes a reader of untrusted files with libFuzzer under the address and undefined-behaviour
# sanitizers. Corpus and crashes stay in build/fuzz/TARGET; replay a crash with
# build/release/tests/formats/gguf_fuzz FILE.
#
#   tools/fuzz.sh [TARGET [SECONDS]]        TARGET: gguf (default); SECONDS: 60
set -eu
cd "$(dirname "$0")/.."
target=${1:-gguf} seconds=${2:-60}

case $target in
  gguf) sources="tests/formats/gguf_fuzz.cc runtime/formats/gguf.cc runtime/formats/gguf_parse.cc
        runtime/formats/gguf_value.cc runtime/formats/printable.cc
        runtime/platform/file.cc runtime/platform/mapped_file.cc
        runtime/platform/memory.cc runtime/platform/types.cc" ;;
  *) echo "fuzz.sh: unknown target '$target'; expected gguf" >&2; exit 2 ;;
esac
clang=$(command -v clang++ || command -v clang++-14) || {
  echo "fuzz.sh: clang++ is missing: apt-get install clang" >&2
  exit 1
}

dir=build/fuzz/$target
mkdir -p "$dir/corpus"
# shellcheck disable=SC2086  # a list of files
"$clang" -std=c++20 -O1 -g -I. -Iinclude -DMANYHEAD_DCHECKS=1 \
  -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all $sources -o "$dir/fuzz"
# shellcheck disable=SC2086
"$clang" -std=c++20 -O1 -I. -Iinclude $sources tests/support/fuzz_main.cc -o "$dir/replay"
"$dir/replay" --write-seeds "$dir/corpus"
exec "$dir/fuzz" -max_total_time="$seconds" -max_len=4096 -rss_limit_mb=512 -timeout=5 \
  -artifact_prefix="$dir/" -print_final_stats=1 "$dir/corpus"
