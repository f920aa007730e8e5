#!/usr/bin/env bash
# Installs what is missing, builds everything, and runs every test. No arguments; safe to repeat.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/setup.sh
[ $# -eq 0 ] || die "takes no arguments"

install_packages "${packages[@]}" "${test_packages[@]}"
build_targets all

venv=build/venv
[ -x $venv/bin/python ] || run_logged venv python3 -m venv $venv

# Packages to build and test the Python package; without a network its tests are skipped.
python_packages=(nanobind scikit-build-core numpy ml_dtypes onnx gguf mypy)
if ! $venv/bin/python -c 'import nanobind, scikit_build_core, numpy, ml_dtypes, onnx, gguf, mypy' 2>/dev/null; then
  say "installing ${python_packages[*]} into $venv"
  $venv/bin/pip install -q "${python_packages[@]}" >"$logs/pip-install.log" 2>&1 ||
    say "cannot install them: tests of the Python package will be skipped (log: $logs/pip-install.log)"
fi

# The tests on real data need these; without a network they are skipped, and ctest says which.
for name in gemma3-270m llama-vocabs; do
  if ! $venv/bin/python tools/fetch_model.py "$name" >"$logs/fetch-$name.log" 2>&1; then
    say "cannot fetch $name: its tests will be skipped (log: $logs/fetch-$name.log)"
  fi
done

say "running the tests"
log=$logs/ctest.log
status=0
# Two programs of two threads on two cores: threads that wait must sleep, not spin.
OMP_WAIT_POLICY=passive ctest --test-dir "$build" -j2 --output-on-failure --no-tests=error >"$log" 2>&1 || status=$?
grep -E 'Skipped|\*\*\*|^[0-9]+% tests passed|Total Test time' "$log" || true
[ $status -eq 0 ] || die "tests failed (whole log: $log)"
# The short forms; both say what they run.
tools/sanitize.sh quick
tools/valgrind.sh quick
if ! grep -qw avx512vl /proc/cpuinfo; then
  say "this CPU has no AVX-512: its kernels run on an emulated one"
  for test in "attention *LengthsAround*/avx512:*EveryPairOfTypes/avx512:*AttentionReports*/avx512" \
    "platform *VectorKernels*/avx512" "cache *avx512*"; do
    program=${test%% *}
    run_logged "emulated-$program" tools/run_emulated.sh "$build/tests/$program/${program}_test" \
      --gtest_brief=1 "--gtest_filter=${test#* }"
    tail -n 1 "$logs/emulated-$program.log"
  done
fi
say "all tests passed (log: $log)"
