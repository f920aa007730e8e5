#!/bin/sh
# Builds and runs the GEMM tests against oneDNN 3 from the Python package index: Debian 12 has 2.6, and the
# adapter must compile with both. Needs: python3 with pip, unzip, network.
#
# usage: tools/check_onednn3.sh [BUILD_DIR]     (default build/onednn3)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$root/build/onednn3}
mkdir -p "$build/packages"
build=$(cd "$build" && pwd)
log=$build/check_onednn3.log
cd "$build/packages"
fail() {
  echo "check_onednn3: $1 failed; see $log" >&2
  exit 1
}
if [ ! -e prefix/lib/cmake/dnnl ]; then
  python3 -m pip download --quiet --no-deps onednn-devel-cpu-gomp onednn-cpu-gomp >"$log" 2>&1 || fail "pip download"
  for wheel in onednn*.whl; do unzip -qo "$wheel" -d unpacked; done
  mkdir -p prefix
  cp -a unpacked/*.data/data/. prefix/
fi
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -Ddnnl_DIR="$PWD/prefix/lib/cmake/dnnl" \
  -DMANYHEAD_BUILD_BENCH=OFF -DMANYHEAD_BUILD_TESTS=ON -DMANYHEAD_WERROR=ON >>"$log" 2>&1 || fail "cmake"
cmake --build "$build" --target gemm_test linear_test >>"$log" 2>&1 || fail "the build"
for test in gemm_test "linear_test --gtest_filter=*F32*"; do
  LD_LIBRARY_PATH="$PWD/prefix/lib" "$build"/tests/linear/$test --gtest_brief=1 >>"$log" 2>&1 || fail "$test"
done
LD_LIBRARY_PATH="$PWD/prefix/lib" ldd "$build/tests/linear/gemm_test" | grep -q 'libdnnl\.so\.3' || fail "linking oneDNN 3"
echo "check_onednn3: the adapter builds, links and passes with $(ls prefix/lib | grep -o 'libdnnl.so.3\.[0-9]*')"
