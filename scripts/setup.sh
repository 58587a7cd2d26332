#!/usr/bin/env bash
# Installs what the build needs and is not there yet: Debian packages, and into build/deps what pip has.
#
#   scripts/setup.sh [--tests] [--checks] [--oracle] [--python] [--python-tests] [--server] [--no-torch]
#
#   --tests      also what only the tests need (clang with libFuzzer, chromium to look at the report)
#   --checks     also what looks at the sources: clang-format and clang-tidy
#   --oracle     also the Python packages that the oracle tests compare with, in build/deps/oracle
#   --python     also what `pip install .` needs besides the libraries: Python's headers
#   --python-tests  also the packages that the tests of the Python package need, in build/deps/python
#   --server     also the Python packages that the server's tests ask it with, in build/deps/server
#   --no-torch   leave LibTorch out, for presets without the train half
#
# Run it as often as you like: what is there is neither fetched nor installed again. LibTorch is taken from the first of
#   1. whatever CMake finds already (CMAKE_PREFIX_PATH, Torch_DIR, Torch_ROOT, system folders)
#   2. the pip wheel, unpacked into build/deps (pip's own settings apply)
#   3. Debian's libtorch-dev, where it is recent enough
set -euo pipefail

readonly TORCH_VERSION=2.13.0
readonly TIDY_VERSION=23.1.4 # 19 took two to three times as long for what is not the analyzer
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly root deps="$root/build/deps"
readonly torch_home="$deps/torch-$TORCH_VERSION"
readonly tidy_home="$deps/clang-tidy-$TIDY_VERSION"
readonly torch_stamp="$deps/torch-found"
readonly oracle_packages="$root/tests/oracle/requirements.txt"
readonly python_packages="$root/python/requirements.txt"
readonly server_packages="$root/tests/server/requirements.txt"

want_tests=false
want_checks=false
want_oracle=false
want_python=false
want_python_tests=false
want_server=false
want_torch=true
for argument in "$@"; do
  case $argument in
    --tests) want_tests=true ;;
    --checks) want_checks=true ;;
    --oracle) want_oracle=true ;;
    --python) want_python=true ;;
    --python-tests) want_python=true want_python_tests=true ;;
    --server) want_server=true ;;
    --no-torch) want_torch=false ;;
    *)
      echo "setup: unknown argument '$argument'; known are --tests, --checks, --oracle, --python, --python-tests, \
--server and --no-torch" >&2
      exit 2
      ;;
  esac
done

say() { echo "setup: $*" >&2; }

# fail WHAT TO_DO: the step that failed, and what to do about it.
fail() {
  say "failed: $1"
  say "to do:  $2"
  exit 1
}

# Debian packages ------------------------------------------------------------------------------------------------------

installed() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# True if command $1 is there and at least version $2.
recent() {
  local have
  have=$("$1" --version 2>/dev/null | grep -oE '[0-9]+(\.[0-9]+)+' | head -n1) || return 1
  [[ $(printf '%s\n%s\n' "$2" "$have" | sort -V | head -n1) == "$2" ]]
}

missing_packages() {
  # Tools count wherever they come from; libraries must be Debian's, or be found by CMake on a system without dpkg.
  recent g++ 12 || echo build-essential
  recent cmake 3.25 || echo cmake
  command -v ninja >/dev/null || echo ninja-build
  local package
  for package in libhwy-dev libopenblas-dev libcli11-dev nlohmann-json3-dev libfmt-dev liblzma-dev \
    libsentencepiece-dev libgtest-dev libboost1.81-dev; do
    installed "$package" || echo "$package"
  done
  if $want_tests; then
    command -v clang++-19 >/dev/null || echo clang-19
    installed libclang-rt-19-dev || echo libclang-rt-19-dev
    command -v chromium >/dev/null || echo chromium
  fi
  if $want_checks; then
    # The version matters: another one formats differently.
    command -v clang-format-19 >/dev/null || echo clang-format-19
  fi
}

# apt_install PACKAGE...
apt_install() {
  local apt=(apt-get install -y --no-install-recommends "$@") sudo=()
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null ||
      fail "installing $*: not root, and there is no sudo" "run as root: apt-get update && ${apt[*]}"
    sudo=(sudo)
  fi
  say "installing $*"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q >&2 ||
    fail "apt-get update" "check the network and /etc/apt, then run this again"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive "${apt[@]}" -q >&2 ||
    fail "${apt[*]}" "read apt's message above; then run that command by hand, or this again"
}

setup_packages() {
  local missing
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "not a Debian system: CMake will name what is missing"
    return
  fi
  mapfile -t missing < <(missing_packages)
  if ((${#missing[@]})); then apt_install "${missing[@]}"; fi
}

# LibTorch -------------------------------------------------------------------------------------------------------------

# Configures, builds and runs a program of one line against the Torch that CMake finds; prints its folder.
probe_torch() {
  local build="$deps/torch-probe"
  rm -rf "$build"
  cmake -S "$root/cmake/torch_probe" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Debug >"$deps/torch-probe.log" 2>&1 &&
    cmake --build "$build" >>"$deps/torch-probe.log" 2>&1 &&
    "$build/torch_probe" >>"$deps/torch-probe.log" 2>&1 &&
    sed -n 's/^Torch_DIR:PATH=//p' "$build/CMakeCache.txt" &&
    rm -rf "$build"
}

# A python3 with pip that is new enough for the wheels.
find_python() {
  local python
  for python in "${PYTHON:-}" python3 /usr/bin/python3; do
    [[ -n $python ]] && command -v "$python" >/dev/null || continue
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue
    "$python" -m pip --version >/dev/null 2>&1 || continue
    echo "$python"
    return
  done
  return 1
}

# find_python; installs one if there is none.
need_python() {
  find_python && return
  if ! command -v apt-get >/dev/null; then
    say "there is no python3 with pip"
    return 1
  fi
  apt_install python3 python3-pip
  find_python
}

# pip_install PYTHON FOLDER WHAT...: unpacks these wheels, and none that they ask for.
pip_install() {
  "$1" -m pip install --no-deps --no-compile --only-binary=:all: --quiet --disable-pip-version-check \
    --root-user-action=ignore --target "$2" "${@:3}" >&2
}

# unpack_wheel FOLDER WHAT SIZE: unpacks the wheel beside its final place and renames it, so that a kill leaves either
# nothing or all of it.
unpack_wheel() {
  local python staging
  python=$(need_python) || return 1
  staging=$(mktemp -d "$deps/staging.XXXXXX") && mkdir "$staging/tmp" || return 1
  say "fetching $2 with pip ($3, once)"
  if TMPDIR="$staging/tmp" pip_install "$python" "$staging/site" "$2"; then
    mv -T "$staging/site" "$1" && rm -rf "$staging"
  else
    rm -rf "$staging"
    return 1
  fi
}

setup_torch() {
  local found
  if [[ -f $torch_stamp ]] && [[ $(head -n1 "$torch_stamp") == "$(torch_request)" ]] &&
    [[ -f "$(tail -n1 "$torch_stamp")/TorchConfig.cmake" ]]; then
    return
  fi
  say "looking for LibTorch"
  if ! found=$(probe_torch); then
    if [[ ! -d $torch_home ]] && unpack_wheel "$torch_home" "torch==$TORCH_VERSION" "some hundred MB" && found=$(probe_torch); then
      :
    else
      say "the pip wheel torch==$TORCH_VERSION could not be had or not be used from C++; trying Debian's libtorch-dev"
      [[ ! -d $torch_home ]] || mv "$torch_home" "$(mktemp -d "$deps/unusable.XXXXXX")"
      command -v apt-get >/dev/null || fail "LibTorch" "$torch_advice"
      apt_install libtorch-dev
      found=$(probe_torch) || fail "LibTorch (messages in build/deps/torch-probe.log)" "$torch_advice"
    fi
  fi
  printf '%s\n%s\n' "$(torch_request)" "$found" >"$torch_stamp.new"
  mv "$torch_stamp.new" "$torch_stamp"
  say "LibTorch: $found"
}
readonly torch_advice="unpack a LibTorch and set CMAKE_PREFIX_PATH to its folder, or do without the train half:\
 make build PRESET=runtime-only"

# What the user asked for; another answer asks the question anew.
torch_request() { echo "${CMAKE_PREFIX_PATH:-}|${Torch_DIR:-}|${Torch_ROOT:-}"; }

# clang-tidy -----------------------------------------------------------------------------------------------------------

# build/deps/clang-tidy is the one in use.
setup_tidy() {
  if [[ ! -d $tidy_home ]]; then
    unpack_wheel "$tidy_home" "clang-tidy==$TIDY_VERSION" "some tens of MB" ||
      fail "clang-tidy $TIDY_VERSION" "read pip's message above; check the network and pip's settings"
  fi
  ln -sfn "${tidy_home##*/}" "$deps/clang-tidy"
}

# Environments of Python -----------------------------------------------------------------------------------------------

# A python3 that has the headers of its C interface, for the Python package.
need_python_headers() {
  local python
  python=$(need_python) || fail "a python3 with pip" "install python3 (3.10 or later) and pip"
  if python_has_headers "$python"; then return; fi
  if command -v apt-get >/dev/null && [[ $(command -v "$python") == /usr/bin/* ]]; then apt_install python3-dev python3-venv; fi
  python_has_headers "$python" ||
    fail "the C headers of $(command -v "$python")" "install them, or name another python3 with PYTHON=..."
}

python_has_headers() {
  "$1" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}

# Whether an environment with these modules has torch.
has_torch() { [[ ", $1" == *", torch"* ]]; }

# What an environment with the packages of file $1 and modules $2 is made of; another list makes it anew.
environment_request() {
  cat "$1"
  if has_torch "$2"; then echo "torch==$TORCH_VERSION"; fi
}

# environment_is_there HOME PACKAGES MODULES
environment_is_there() {
  local link
  [[ -f $1/made-of ]] && environment_request "$2" "$3" | cmp -s - "$1/made-of" || return 1
  "$1/bin/python" -c '' 2>/dev/null || return 1 # the python that made it may be gone, and
  link=$(echo "$1"/lib/python*/site-packages/torch.pth)
  [[ ! -f $link || -d $(<"$link")/torch ]] # the torch it borrows
}

# setup_environment NAME PACKAGES MODULES: build/deps/NAME with the packages of that file, and torch if it is a module; the modules must load.
# Made beside its final place and renamed, as the wheel is.
setup_environment() {
  local name=$1 packages=$2 modules=$3 home="$deps/$1" python staging site torch=()
  if environment_is_there "$home" "$packages" "$modules"; then return; fi
  python=$(need_python) || fail "the environment of $name" "install python3 (3.10 or later) and pip"
  staging=$(mktemp -d "$deps/staging.XXXXXX")
  mkdir "$staging/tmp"
  "$python" -m venv --without-pip "$staging/$name" >&2 ||
    fail "$python -m venv" "read python's message above; PYTHON=... names another python3"
  site=$(echo "$staging/$name"/lib/python*/site-packages)
  if has_torch "$modules"; then
    if [[ -d $torch_home/torch ]]; then
      echo "$torch_home" >"$site/torch.pth"
    else
      torch=("torch==$TORCH_VERSION")
    fi
  fi
  say "fetching the Python packages of $name with pip (tens of MB${torch:+, and some hundred for torch}, once)"
  TMPDIR="$staging/tmp" pip_install "$python" "$site" -r "$packages" "${torch[@]}" ||
    fail "pip install -r $packages" "read pip's message above; check the network and pip's settings"
  "$staging/$name/bin/python" -Bc "import $modules" >&2 ||
    fail "the packages of $name do not load" "read python's message above. If torch lacks libraries, it is not the \
build for the CPU: let pip find one of torch $TORCH_VERSION; remove $torch_home if it is for another python"
  environment_request "$packages" "$modules" >"$staging/$name/made-of"
  [[ ! -e $home ]] || mv -T "$home" "$staging/before"
  mv -T "$staging/$name" "$home"
  rm -rf "$staging"
  say "$name: $home"
}

mkdir -p "$deps"
exec 9>"$deps/lock"
flock 9 # one at a time
rm -rf "$deps"/staging.*
setup_packages
if $want_torch; then setup_torch; fi
if $want_checks; then setup_tidy; fi
if $want_oracle; then setup_environment oracle "$oracle_packages" "safetensors, tokenizers, torch, transformers"; fi
if $want_python; then need_python_headers; fi
if $want_python_tests; then setup_environment python "$python_packages" "mypy, nanobind, numpy, pytest, scikit_build_core, torch"; fi
if $want_server; then setup_environment server "$server_packages" "openai, jinja2"; fi
