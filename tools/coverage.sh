#!/usr/bin/env bash
# Which lines of runtime/ and kernels/ the tests run: the share of each folder and the files with the most lines that
# none runs; fails below 90 % in either. Those lines are listed in build/coverage/lines.txt. Installs what is missing.
#
#   tools/coverage.sh [--real]     --real: with the tests on fetched models too, which take many minutes
#
# Looked at and left: messages for system calls that fail on a file which has just been opened (runtime/platform/file.cc),
# for an expression that this PCRE2 refuses and its lack of memory (runtime/text/pretokenizer.cc), and what runs in forked
# children, which tests end without writing their counts (runtime/platform/team.cc).
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/setup.sh
case "${1:-}" in
  --real) ;;
  '') export MANYHEAD_MODEL_DIR=/nonexistent ;;
  *) die "unknown argument '$1'; its head lists them" ;;
esac
least=90
install_packages "${packages[@]}" python3-venv python3-pip

# Debian 12's gcovr does not get over functions that are compiled once for each instruction set.
venv=build/venv
[ -x $venv/bin/python ] || run_logged venv python3 -m venv $venv
[ -x $venv/bin/gcovr ] || run_logged pip-install $venv/bin/pip install -q 'gcovr>=8'

build=build/coverage
[ -f $build/build.ninja ] || run_logged configure-coverage cmake --preset coverage
say "building $build"
run_logged build-coverage cmake --build $build

find $build -name '*.gcda' -delete # counts of earlier runs
say "running the tests"
# Not those that build the library once more or read its sources.
OMP_WAIT_POLICY=passive run_logged ctest-coverage ctest --test-dir $build -j2 --output-on-failure \
  -E '^(isa_symbols\..*|install.*|package|python.*|configure|docs|format|layers|fetch_model|soak)$'

# Threads may lose a count to each other, or leave a negative one, but not all counts of a line. A line of a template
# counts once, whichever instance runs it.
run_logged gcovr $venv/bin/gcovr -j 2 --root . --filter runtime/ --filter kernels/ --gcov-ignore-parse-errors=all \
  --merge-mode-functions=separate --merge-lines --txt $build/lines.txt --csv $build/lines.csv $build
awk -F, -v least=$least '
  NR > 1 {
    folder = substr($1, 1, index($1, "/") - 1)
    total[folder] += $2; covered[folder] += $3
    printf "%6d  %5.1f %%  %s\n", $2 - $3, 100 * $3 / $2, $1 | "sort -rn | head -n 15"
  }
  END {
    close("sort -rn | head -n 15")
    for (folder in total) {
      share = 100 * covered[folder] / total[folder]
      printf "%s: %.1f %% of %d lines\n", folder, share, total[folder]
      if (share < least) failed = 1
    }
    exit failed
  }' <(grep -v '^[^,]*,0,' $build/lines.csv) || die "less than $least % of the lines of a folder run"
