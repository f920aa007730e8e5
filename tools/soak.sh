#!/usr/bin/env bash
# Decodes 100,000 tokens (or $1) of many texts with the bundled model, and fails where memory, threads or
# descriptors grow; tests/embedding/soak.cc says how. Builds what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/setup.sh
[[ $# -le 1 && ${1:-1} =~ ^[1-9][0-9]*$ ]] || die "usage: soak.sh [TOKENS], TOKENS a whole number above 0"
install_packages "${packages[@]}"
build_targets soak
exec "$build/tests/embedding/soak" tools/models/bundled.gguf "${1:-100000}"
