#!/usr/bin/env bash
# clang-tidy over the C++ files that differ from a base commit, or over all.
# usage: tools/tidy.sh [BASE | --all]      (default: the files changed since HEAD~1)
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang-tidy >/dev/null || { echo "tidy.sh: apt-get install clang-tidy" >&2; exit 1; }
build=build/release
[ -f $build/compile_commands.json ] || cmake --preset release >/dev/null
if [ "${1:-}" = --all ]; then
  mapfile -t files < <(git ls-files '*.cc')
else
  mapfile -t files < <(git diff --name-only --diff-filter=d "${1:-HEAD~1}" -- '*.cc')
fi
[ ${#files[@]} -gt 0 ] || { echo "no C++ files changed"; exit 0; }
printf '%s\n' "${files[@]}" | xargs -P 2 -n 4 clang-tidy -p $build --quiet --warnings-as-errors='*' 2>/dev/null
