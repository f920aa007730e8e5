#!/bin/sh
# Fuzzes a reader of untrusted files with libFuzzer under the address and undefined-behaviour
# sanitizers. Corpus and crashes stay in build/fuzz/TARGET; replay a crash with TARGET_fuzz FILE, under
# build/release/tests.
#
#   tools/fuzz.sh [TARGET [SECONDS]]        TARGET: gguf (default) or snapshot; SECONDS: 60
set -eu
cd "$(dirname "$0")/.."
target=${1:-gguf} seconds=${2:-60}
libraries="" max_len=4096

case $target in
  gguf) sources="tests/formats/gguf_fuzz.cc runtime/formats/gguf.cc runtime/formats/gguf_parse.cc
        runtime/formats/gguf_value.cc runtime/formats/printable.cc
        runtime/platform/file.cc runtime/platform/mapped_file.cc
        runtime/platform/memory.cc runtime/platform/types.cc" ;;
  snapshot) sources="tests/cache/kv_snapshot_fuzz.cc runtime/cache/*.cc runtime/platform/checksum.cc
        runtime/platform/file.cc"
        # Kernels, each of which needs flags of its own, come from the release build.
        cmake --preset release >/dev/null && cmake --build build/release --target manyhead
        libraries="build/release/libmanyhead.a -lgomp" max_len=16384 ;;
  *) echo "fuzz.sh: unknown target '$target'; expected gguf or snapshot" >&2; exit 2 ;;
esac
clang=$(command -v clang++ || command -v clang++-14) || {
  echo "fuzz.sh: clang++ is missing: apt-get install clang" >&2
  exit 1
}

dir=build/fuzz/$target
mkdir -p "$dir/corpus"
# shellcheck disable=SC2086  # a list of files
"$clang" -std=c++20 -O1 -g -I. -Iinclude -DMANYHEAD_DCHECKS=1 \
  -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all $sources $libraries -o "$dir/fuzz"
# shellcheck disable=SC2086
"$clang" -std=c++20 -O1 -I. -Iinclude $sources tests/support/fuzz_main.cc $libraries -o "$dir/replay"
"$dir/replay" --write-seeds "$dir/corpus"
exec "$dir/fuzz" -max_total_time="$seconds" -max_len="$max_len" -rss_limit_mb=512 -timeout=5 \
  -artifact_prefix="$dir/" -print_final_stats=1 "$dir/corpus"
