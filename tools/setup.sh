# Code that tools/quickstart.sh and tools/test.sh share: the Debian packages, logs, the build. Sourced by them
# with the working directory at the top of the tree.

packages=(
  g++ cmake ninja-build ccache pkg-config binutils
  libdnnl-dev ocl-icd-opencl-dev  # oneDNN, whose CMake file asks for OpenCL
  libxsimd-dev libxxhash-dev libpcre2-dev libutf8proc-dev nlohmann-json3-dev libcli11-dev libeigen3-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  python3 python3-pip ca-certificates
)
test_packages=(python3-dev python3-venv clang-format-14 doxygen dpkg-dev file chromium)

build=build/release
logs=build/logs
mkdir -p "$logs"

say() { printf '%s\n' "$*"; }

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# run_logged NAME COMMAND...: the output goes to build/logs/NAME.log, which is named if the command fails.
run_logged() {
  local log=$logs/$1.log
  shift
  if ! "$@" >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    die "failed: $* (whole log: $log)"
  fi
}

missing_packages() {
  local package
  for package in "$@"; do
    case $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) in
      *' installed') ;;
      *) printf '%s\n' "$package" ;;
    esac
  done
}

# install_packages PACKAGE...: nothing is asked of apt when all are there.
install_packages() {
  local missing as_root=()
  command -v dpkg-query >/dev/null || {
    say "not a Debian system: these packages are needed by their names elsewhere: $*"
    return
  }
  mapfile -t missing < <(missing_packages "$@")
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "run as root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${#missing[@]} packages: ${missing[*]}"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q)
  # A mirror that cannot be reached matters only if the install then fails.
  "${apt[@]}" update >"$logs/apt-update.log" 2>&1 || true
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >"$logs/apt-install.log" 2>&1 ||
    die "cannot install, try by hand: apt-get update && apt-get install ${missing[*]} (log: $logs/apt-install.log)"
}

# build_targets TARGET...: configures once; CMake itself notices what changed later.
build_targets() {
  if [ ! -f "$build/build.ninja" ]; then
    say "configuring $build"
    # Debian 12's compiler is the one this tree is free of warnings with; another may know new ones.
    local werror=OFF
    [ "$(g++ -dumpversion)" != 12 ] || werror=ON
    run_logged configure cmake --preset release -DMANYHEAD_WERROR=$werror
  fi
  say "building $*"
  run_logged build cmake --build "$build" --target "$@"
}
