#!/usr/bin/env bash
# Lints every compiled C++ file with clang-tidy.
#
#   scripts/tidy.sh BUILD_FOLDER [FILE...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=${1:?name the build folder, for example build/release}
shift
tool=$(command -v clang-tidy-19 || command -v clang-tidy) || {
  echo "tidy: there is no clang-tidy; to do: apt-get install clang-tidy-19" >&2
  exit 1
}
if (($#)); then
  files=("$@")
else
  mapfile -t files < <(sed -n 's/^ *"file": "\(.*\)",*$/\1/p' "$build/compile_commands.json" | sort -u)
fi
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" "$tool" -p "$build" --quiet
