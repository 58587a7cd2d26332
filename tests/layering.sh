#!/usr/bin/env bash
# Dependencies point one way: core < kernels < methods < runtime < server, and core < tokenizer < data, pretrained, runtime,
# and all of core, kernels, methods, tokenizer, data < train; experiments stand above all of them. Torch is included by train and apps
# alone, and linked by their targets alone. The library (include, src) neither prints nor exits; src/core/check.cc alone
# does, on bugs, and src/core/process.cc, in the process it forks.
#
#   tests/layering.sh sources ROOT               check the #include lines below ROOT, and that its library is silent
#   tests/layering.sh binaries FILE...           check that no FILE (program or archive) needs torch
set -euo pipefail

failures=0
complain() {
  echo "layering: $*" >&2
  failures=$((failures + 1))
}

# What the files of each folder may include of the project, besides tensorcache/*.h; tensorcache/kernels/*.h belong to
# kernels.
allowed_from() {
  case $1 in
    include/*) echo "" ;;
    src/core/*) echo "core" ;;
    src/kernels/*) echo "core kernels" ;;
    src/tokenizer/*) echo "core tokenizer" ;;
    src/data/*) echo "core tokenizer data" ;;
    src/methods/*) echo "core kernels methods" ;;
    src/pretrained/*) echo "core tokenizer methods pretrained" ;;
    src/runtime/*) echo "core kernels tokenizer methods runtime" ;;
    src/server/*) echo "core kernels tokenizer methods runtime server" ;;
    src/train/*) echo "core kernels tokenizer data methods train" ;;
    src/experiments/*) echo "core kernels tokenizer data methods runtime train experiments" ;;
    src/testing/*) echo "core kernels testing" ;;
    python/*) echo "core kernels tokenizer methods pretrained runtime" ;;
    bench/*) echo "core kernels bench" ;;
    *) echo "core kernels tokenizer data methods pretrained runtime server train experiments testing bench apps" ;; # apps, tests
  esac
}

check_include() { # FILE HEADER
  local file=$1 header=$2 layer=${2%%/*} allowed
  case $header in
    torch/* | ATen/* | c10/* | caffe2/*)
      case $file in
        src/train/* | apps/* | cmake/torch_probe/*) ;;
        *) complain "$file includes $header; only src/train and apps may include torch" ;;
      esac
      return
      ;;
    ../* | ./* | */../*)
      complain "$file includes $header; write the path from src/"
      return
      ;;
    tensorcache/kernels/*)
      [[ $file != include/tensorcache/kernels/* ]] || return 0
      layer=kernels
      ;;
    core/* | kernels/* | methods/* | tokenizer/* | data/* | pretrained/* | runtime/* | server/* | train/* | experiments/* | testing/* | bench/* | apps/*) ;;
    *) return ;;
  esac
  allowed=" $(allowed_from "$file") "
  case $file in
    *_test.cc | *_testing.h | *_testing.cc) allowed+="testing " ;;
    *_bench.cc) allowed+="bench " ;;
  esac
  [[ $allowed == *" $layer "* ]] || complain "$file includes $header; from there only:$allowed"
}

check_sources() {
  cd "$1"
  local file header count=0
  while IFS=$'\t' read -r file header; do
    check_include "${file#./}" "$header"
    count=$((count + 1))
  done < <(find . -path ./build -prune -o -path ./.git -prune -o -type f \
    \( -name '*.h' -o -name '*.cc' -o -name '*.cpp' -o -name '*.hpp' -o -name '*.in' \) -print0 |
    xargs -0 grep -HE '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]' |
    sed -E 's/^([^:]*):[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]([^>"]*)[>"].*$/\1\t\2/')
  ((count > 0)) || complain "no #include line found below $1"
  check_silence
  echo "layering: $count includes checked"
}

# Below the current folder.
check_silence() {
  local line
  while read -r line; do
    complain "${line%%:*} prints or exits; the library leaves that to its caller: ${line#*:}"
  done < <(find include src -type f \( -name '*.h' -o -name '*.cc' \) ! -name '*_test.cc' ! -name '*_testing.*' \
    ! -path src/core/check.cc ! -path src/core/process.cc ! -path 'src/testing/*' -print0 2>/dev/null |
    xargs -0 -r grep -HnE '\b(printf|fprintf|puts|fputs|perror)\(|std::c(out|err|log)\b|fmt::print\(|\b(_exit|exit|abort|terminate)\(\)?' |
    grep -vE '(->|\.)abort\(' || true)
}

check_binaries() {
  local file needs
  for file in "$@"; do
    if [[ ! -f $file ]]; then
      complain "$file is not built"
      continue
    fi
    case $file in
      # An archive has no list of libraries; it betrays torch by the symbols it leaves open.
      *.a) needs=$(nm -C -u "$file" 2>/dev/null | grep -oE '\b(at|c10|torch)::[A-Za-z_:]+' | head -n1) || true ;;
      *) needs=$(readelf -d "$file" | grep NEEDED | grep -oE 'lib(torch|c10|caffe2)[^]]*' | head -n1) || true ;;
    esac
    [[ -z $needs ]] || complain "$file needs $needs; torch belongs to train"
  done
  echo "layering: $# binaries checked"
}

case ${1:-} in
  sources) check_sources "$2" ;;
  binaries) check_binaries "${@:2}" ;;
  *)
    echo "usage: layering.sh sources ROOT | binaries FILE..." >&2
    exit 2
    ;;
esac
((failures == 0))
