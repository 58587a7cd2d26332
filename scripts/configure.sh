#!/usr/bin/env bash
# Configures a preset. Quiet when it works, all of CMake's words when it does not.
#
#   scripts/configure.sh PRESET [further arguments of cmake]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=${1:?name a preset: release, debug, asan, tsan or runtime-only}
shift
mkdir -p build
log="build/configure-$preset.log"
if ! cmake --preset "$preset" "$@" >"$log" 2>&1; then
  cat "$log" >&2
  echo "configure: preset '$preset' failed, see above" >&2
  echo "configure: to do: after a change of compiler or torch, make clean PRESET=$preset and try again" >&2
  exit 1
fi
