#!/usr/bin/env bash
# build_kernels.sh OUT_FOLDER [-DNAME[=VALUE]...] [-- NINJA_OPTION...]: compiles this repository's kernels, with those
# definitions, into OUT_FOLDER/liboutrider_cuda.so, for sm_90a alone. Wants nvcc, cmake and ninja and none of our
# libraries, so that it runs on a machine with a GPU, and variants are measured there in one go:
#   FIRST_RUN_KERNELS="OUT_FOLDER ANOTHER" FIRST_RUN_PARTS=decode tools/gpu/first_run.sh RESULTS
set -euo pipefail

folder=${1:?usage: build_kernels.sh OUT_FOLDER [-DNAME[=VALUE]...] [-- NINJA_OPTION...]}
root=$(cd "$(dirname "$0")/../.." && pwd)
shift
definitions=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  [[ $1 == -D* ]] || { echo "build_kernels: '$1' is no -DNAME[=VALUE]" >&2; exit 2; }
  definitions+=("$1")
  shift
done
cmake -S "$root/tools/gpu/kernels" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_CUDA_ARCHITECTURES=90a-real "-DCMAKE_CUDA_FLAGS=${definitions[*]}"
cmake --build "$folder" --target outrider_cuda "$@"
