#!/usr/bin/env bash
# Builds the Python package as pip does, and installs it into the environment of its tests, build/deps/python, which
# scripts/setup.sh --python-tests makes. What is unchanged is not compiled again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=build/deps/python/bin/python
[[ -x $python ]] || {
  echo "install_python: there is no $python; to do: scripts/setup.sh --no-torch --python-tests" >&2
  exit 1
}
# The environment has no pip of its own; that of the python it was made from serves it.
pip=$("$python" -c 'import sys; print(sys._base_executable)')
log=build/install-python.log
if ! "$pip" -m pip --python "$python" install --no-build-isolation --no-deps --force-reinstall --disable-pip-version-check \
  --root-user-action=ignore --verbose . >"$log" 2>&1; then
  cat "$log" >&2
  echo "install_python: failed, see above" >&2
  exit 1
fi
