#!/usr/bin/env bash
# Records token ids and checksums of logits, and later tells which of them a change of the code has changed.
# Cases: every model here (the bundled one, and those that tools/fetch_model.py has fetched), each instruction set
# that this CPU runs, both math modes, caches of f16, f32 and int8, prompts of 1 to 700 tokens, with policies, an
# ablation and a snapshot. Large models take fewer cases, and the scalar kernels short prompts only. It takes
# minutes.
#
#   tools/golden_ids.sh record FILE [MODEL...]    MODEL: some of the names only, e.g. bundled
#   tools/golden_ids.sh compare FILE [MODEL...]   fails where a case changed that has steps of one row only, or where
#                                                 a changed case's mean NLL moved by more than 0.002
set -euo pipefail
usage="usage: golden_ids.sh record|compare FILE [MODEL...]"
file=$(realpath -m -- "${2:?$usage}")
cd "$(dirname "$0")/.."
source tools/setup.sh
case $1 in record | compare) ;; *) die "$usage" ;; esac

known=(gemma3-270m qwen2.5-coder-0.5b qwen2.5-coder-1.5b)
folder=${MANYHEAD_MODEL_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/manyhead/models}
names=("${@:3}")
[ ${#names[@]} -gt 0 ] || names=(bundled "${known[@]}")
models=()
for name in "${names[@]}"; do
  path=$folder/$name.gguf
  [ "$name" != bundled ] || path=tools/models/bundled.gguf
  if [ -e "$path" ]; then
    models+=("$name=$path")
  elif [ $# -gt 2 ]; then
    die "there is no $path"
  else
    say "left out: $name, which is not in $folder"
  fi
done

install_packages "${packages[@]}"
build_targets golden_ids
exec "$build/bench/golden_ids" "$1" "$file" "${models[@]}"
