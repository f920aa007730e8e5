#!/bin/sh
# Fuzzes what reads untrusted bytes, or numbers from callers, with libFuzzer under the address and undefined-behaviour
# sanitizers. Corpus and crashes stay in build/fuzz/TARGET; replay a crash with TARGET_fuzz FILE, under
# build/release/tests. What is worth keeping goes to tests/corpus/TARGET_fuzz, where every test run replays it.
#
#   tools/fuzz.sh [TARGET [SECONDS]]     TARGET: gguf (default), tokenizer, kv_snapshot, kv_policy, shape, conllu, plan,
#                                        attention, or all; SECONDS: 60
set -eu
cd "$(dirname "$0")/.."
target=${1:-gguf} seconds=${2:-60}
case $seconds in *[!0-9]* | "") echo "fuzz.sh: SECONDS = '$seconds'; expected a whole number" >&2; exit 2 ;; esac
if [ "$target" = all ]; then
  for each in gguf tokenizer kv_snapshot kv_policy shape conllu plan attention; do "$0" $each "$seconds"; done
  exit
fi

# Instrumented: the target and the room it is about. The rest, with kernels that need flags of their own, is from the
# release build.
max_len=4096 libraries=""
platform="runtime/platform/file.cc runtime/platform/json.cc runtime/platform/mapped_file.cc runtime/platform/printable.cc"
case $target in
  gguf) sources="tests/formats/gguf_fuzz.cc runtime/formats/*.cc $platform" ;;
  tokenizer) sources="tests/text/tokenizer_fuzz.cc tests/text/vocab_files.cc runtime/text/*.cc runtime/formats/*.cc
             $platform" max_len=16384 libraries="-lgtest" ;;
  kv_snapshot) sources="tests/cache/kv_snapshot_fuzz.cc runtime/cache/*.cc runtime/platform/checksum.cc $platform"
               max_len=16384 ;;
  conllu) sources="tests/heads/conllu_fuzz.cc runtime/heads/conllu.cc $platform" ;;
  kv_policy) sources="tests/cache/kv_policy_fuzz.cc runtime/cache/*.cc $platform" ;;
  shape) sources="tests/memory/shape_fuzz.cc runtime/memory/*.cc $platform" ;;
  plan) sources="tests/attention/plan_fuzz.cc runtime/attention/*.cc" max_len=256 ;;
  attention) sources="tests/attention/attention_fuzz.cc tests/attention/attention_config.cc
             tests/support/attention_reference.cc tests/support/kv_reference.cc runtime/attention/*.cc"
             max_len=256 libraries="-lgtest" ;;
  *) echo "fuzz.sh: unknown target '$target'; its head lists them" >&2; exit 2 ;;
esac
clang=$(command -v clang++ || command -v clang++-14) || {
  echo "fuzz.sh: clang++ is missing: apt-get install clang" >&2
  exit 1
}
cmake --preset release >/dev/null
cmake --build build/release --target manyhead >/dev/null

dir=build/fuzz/$target
corpus=tests/corpus/${target}_fuzz
mkdir -p "$dir/corpus"
libraries="build/release/libmanyhead.a $libraries -ldnnl -lxxhash -lgomp"
# shellcheck disable=SC2086  # lists of files
"$clang" -std=c++20 -O1 -g -I. -Iinclude -DMANYHEAD_DCHECKS=1 -Wno-pragma-once-outside-header \
  -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all $sources $libraries -o "$dir/fuzz"
# shellcheck disable=SC2086
"$clang" -std=c++20 -O1 -I. -Iinclude -DMANYHEAD_DCHECKS=1 $sources tests/support/fuzz_main.cc $libraries \
  -o "$dir/replay"
"$dir/replay" --write-seeds "$dir/corpus"
if [ -d "$corpus" ]; then set -- "$corpus"; else set --; fi
"$dir/fuzz" -max_total_time="$seconds" -max_len="$max_len" -rss_limit_mb=768 -timeout=10 \
  -artifact_prefix="$dir/" -print_final_stats=1 "$dir/corpus" "$@"
