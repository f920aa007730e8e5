#!/usr/bin/env bash
# Installs what is missing, builds the manyhead command, and decodes a prompt with the bundled model.
# No arguments; safe to repeat.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/setup.sh
[ $# -eq 0 ] || die "takes no arguments"

install_packages "${packages[@]}"
build_targets manyhead_command
say "running $build/manyhead generate"
say
exec "$build/manyhead" generate -n 200 -p 'Once upon a time'
