#!/usr/bin/env bash
# Lints compiled C++ files with clang-tidy: all of a build, those named, or those that were changed. The build needs to be
# configured, not made; build/tidy is for this (make tidy).
#
#   scripts/tidy.sh BUILD_FOLDER [FILE...]
#   scripts/tidy.sh BUILD_FOLDER --changed [BASE]
#
# Changed is what differs from where this branch left BASE: the default branch of origin, else main, else master. On that
# branch itself it is what the commits of the last day changed, counted from the last commit. A header that was changed is seen through one source that includes it.
# With ANALYZE set, by the static analyzer, too. With TIDY_SECONDS set, no file is begun after so many seconds; how many were left is said. Every other file is of
# those that changed last; the rest comes in an order that differs from commit to commit, so that in time all are looked at.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=${1:?name the build folder, for example build/release}
shift
tool=build/deps/clang-tidy/clang_tidy/data/bin/clang-tidy
if [[ ! -x $tool ]]; then
  echo "tidy: there is no clang-tidy in build/deps; to do: scripts/setup.sh --checks" >&2
  exit 1
fi
if [[ ! -f $build/compile_commands.json ]]; then
  echo "tidy: $build is not a configured build; to do: scripts/configure.sh tidy" >&2
  exit 1
fi
# Without what the build itself wrote. The fuzz targets are compiled by rules of their own: clang-tidy takes the command line
# of a neighbour.
mapfile -t compiled < <({
  sed -n 's/^ *"file": "\(.*\)",*$/\1/p' "$build/compile_commands.json" | grep -v "^$PWD/build/"
  printf '%s\n' "$PWD"/tests/fuzz/*.cc
} | sort -u)

# default_base: the commit to compare with; nothing if the clone has only one.
default_base() {
  local branch commit
  for branch in origin/HEAD origin/main origin/master main master; do
    commit=$(git merge-base HEAD "$branch" 2>/dev/null) || continue
    if [[ $commit == "$(git rev-parse HEAD)" ]]; then break; fi
    echo "$commit"
    return
  done
  commit=$(git rev-list -1 --before=$(($(git show -s --format=%ct HEAD) - 24 * 60 * 60)) HEAD)
  echo "${commit:-$(git rev-parse --quiet --verify HEAD~1)}"
}

# changed_files [BASE]: of the project, with what is not committed yet.
changed_files() {
  local base
  if (($#)); then
    base=$(git merge-base HEAD "$1") || {
      echo "tidy: git knows no common commit of $1 and HEAD" >&2
      return 1
    }
  else
    base=$(default_base)
  fi
  if [[ -n $base ]]; then
    git diff --name-only --diff-filter=d "$base"
  else
    git ls-files
  fi
  git ls-files --others --exclude-standard
}

# source_with HEADER: the header's own source, or the first that includes it.
source_with() {
  local header=$1 name=${1#src/} source
  name=${name#include/}
  for source in "${header%.h}.cc" "${header%.h}_test.cc"; do
    if [[ -f $source ]]; then
      echo "$source"
      return
    fi
  done
  grep -rl --include='*.cc' -F "#include \"$name\"" apps bench src tests | head -n 1 || true
}

# sources: the files read as sources, in the same order; those that are no more, and all that is not C++, are left out.
sources() {
  local file
  while read -r file; do
    [[ -f $file ]] || continue
    case $file in
      *.cc) echo "$PWD/$file" ;;
      *.h) source_with "$file" | sed "s|^.|$PWD/&|" ;;
    esac
  done
}

# in_turn FILE...: one of those that were changed last, one of all, and so on. A commit without parents is where the history
# of the clone begins: it does not tell what changed.
in_turn() {
  paste -d '\n' \
    <({ git diff --name-only HEAD && git log --min-parents=1 --format= --name-only; } | awk '!seen[$0]++' | sources) \
    <(printf '%s\n' "$@" | shuf --random-source=<(yes "$(git rev-parse HEAD)")) |
    awk '!seen[$0]++' | grep -Fx -f <(printf '%s\n' "$@")
}

if [[ ${1:-} == --changed ]]; then
  shift
  changed=$(changed_files "$@")
  mapfile -t wanted < <(sources <<<"$changed" | sort -u)
  # Of sources that this build does not compile there is no command line.
  mapfile -t files < <(comm -12 <(printf '%s\n' "${compiled[@]}") <(printf '%s\n' "${wanted[@]}"))
  echo "tidy: ${#files[@]} changed files"
  if ((!${#files[@]})); then exit 0; fi
elif (($#)); then
  files=("$@")
else
  files=("${compiled[@]}")
fi

if [[ -n ${TIDY_SECONDS:-} ]]; then
  deadline=$(($(date +%s) + TIDY_SECONDS))
  mapfile -t files < <(in_turn "${files[@]}")
fi
# The analyzer takes most of the time, and would follow the paths through every assertion of a test for nothing. A test may call
# a shell and have texts that are made before main.
not_of_sources=-clang-analyzer-*
if [[ -n ${ANALYZE:-} ]]; then not_of_sources=; fi
not_of_tests=-clang-analyzer-*,-bugprone-command-processor,-bugprone-throwing-static-initialization
left=$(mktemp)
trap 'rm -f "$left"' EXIT
lint() {
  # What the build's own compiler understands and clang does not is no finding; nor is what libstdc++ itself calls
  # deprecated. LibTorch's headers ask for omp.h where OpenMP is on, and do without where it is not.
  local arguments=(--extra-arg=-Wno-{unknown-warning-option,ignored-gch,deprecated-declarations} --extra-arg=-fno-openmp)
  if [[ -n $deadline ]] && (($(date +%s) >= deadline)); then
    echo "$1" >>"$left"
    return
  fi
  local without=$not_of_sources
  if [[ ${1#"$PWD/"} == tests/* || $1 == *_test.cc ]]; then without=$not_of_tests; fi
  if [[ -n $without ]]; then arguments+=("--checks=$without"); fi
  "$tool" -p "$build" --quiet "${arguments[@]}" "$1"
}
export -f lint
export build deadline=${deadline:-} left not_of_sources not_of_tests tool
status=0
printf '%s\0' "${files[@]}" | xargs -0 -I {} -P "$(nproc)" bash -c 'lint "$1"' lint {} || status=$?
if [[ -s $left ]]; then echo "tidy: no time for $(wc -l <"$left") of ${#files[@]} files"; fi
exit "$status"
