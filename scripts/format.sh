#!/usr/bin/env bash
# Formats every C++ file in place; with --check only says which files differ, and fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tool=$(command -v clang-format-19 || command -v clang-format) || {
  echo "format: there is no clang-format; to do: scripts/setup.sh --checks" >&2
  exit 1
}
mode=(-i)
if [[ ${1:-} == --check ]]; then mode=(--dry-run -Werror); fi
find apps bench include python src tests \( -name '*.h' -o -name '*.cc' \) -print0 | xargs -0 "$tool" "${mode[@]}"
