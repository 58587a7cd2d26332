#!/usr/bin/env bash
# Runs the fuzz targets of a build, one per core at a time, each for some seconds. What they find new goes to
# BUILD_FOLDER/fuzz/TARGET and is where the next run goes on from. The first finding ends it.
#
#   scripts/fuzz.sh BUILD_FOLDER SECONDS [TARGET...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=${1:?name the build folder, for example build/release}
seconds=${2:?say for how many seconds each target runs}
shift 2
if [[ ! $seconds =~ ^[1-9][0-9]*$ ]]; then
  echo "fuzz: SECONDS is '$seconds'; give a whole number of seconds from 1 on" >&2
  exit 2
fi
targets=("$@")
if ((!$#)); then
  mapfile -t targets < <(find "$build/bin" -name '*_fuzz' -printf '%f\n' | sort)
fi
if ((!${#targets[@]})); then
  echo "fuzz: $build has no fuzz targets; to do: scripts/setup.sh --tests, then make fuzz" >&2
  exit 1
fi

# run TARGET: 255 tells xargs to start no more.
run() {
  local folder="$build/fuzz/$1" log="$build/fuzz/$1.log"
  mkdir -p "$folder"
  if "$build/bin/$1" -max_total_time="$seconds" -timeout=10 -print_final_stats=1 \
    -artifact_prefix="$build/fuzz/$1-" "$folder" >"$log" 2>&1; then
    echo "fuzz: $1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs, nothing found"
    return
  fi
  grep -E 'CHECK failed|SUMMARY|ERROR: libFuzzer' "$log" >&2 || true
  echo "fuzz: $1 found $(sed -n 's/.*Test unit written to //p' "$log"); the whole report is $log" >&2
  return 255
}
export -f run
export build seconds
printf '%s\0' "${targets[@]}" | xargs -0 -I {} -P "$(nproc)" bash -c 'run {}'
