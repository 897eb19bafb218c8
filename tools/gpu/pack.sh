#!/usr/bin/env bash
# pack.sh [FOLDER [BUILD_FOLDER]]: builds (target gpu_run) and puts what tools/gpu/first_run.sh needs into FOLDER (default: build-gpu-run), so that
# it can be carried to a machine with a GPU that has none of our libraries: the program, liboutrider_cuda.so, gpu_probe,
# the GPU tests, and under lib/ the shared libraries they need but for the C and C++ runtimes. Symbols are stripped.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${1:-$root/build-gpu-run}
build=${2:-$root/build}
cmake --build "$build" --target gpu_run
rm -rf "$folder"
mkdir -p "$folder/lib"

put() {  # put FILE: into the same place under FOLDER
  local to=$folder/${1#"$build"/}
  mkdir -p "$(dirname "$to")"
  strip -o "$to" "$1"
}

num_tests=0
for file in outrider {.,late,unwaited}/liboutrider_cuda.so runtime/ops/cuda/probe/gpu_probe; do
  put "$build/$file"
done
for file in "$build"/tests/gpu/*_gpu_test; do
  [ -x "$file" ] || { echo "pack: no GPU tests in $build: build them where nvcc is" >&2; exit 1; }
  put "$file"
  num_tests=$((num_tests + 1))
done

find "$folder" -type f -perm -u+x -exec ldd {} + | awk '$3 ~ /^\// { print $3 }' | sort -u |
  grep -Ev '/(ld-linux|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)[-.]' |
  while read -r library; do cp -L "$library" "$folder/lib/"; done
echo "packed $num_tests GPU tests into $folder: $(du -sh "$folder" | cut -f1)"
