#!/usr/bin/env bash
# pack.sh [FOLDER [BUILD_FOLDER]]: builds (target gpu_run) and writes FOLDER/pack.tar.gz (default: build-gpu-run), what
# tools/gpu/first_run.sh needs, so that it can be carried to a machine with a GPU that has none of our libraries: the
# program, liboutrider_cuda.so, gpu_probe, the GPU tests, and under lib/ the shared libraries they need but for the C and
# C++ runtimes. Symbols are stripped.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${1:-$root/build-gpu-run}
build=${2:-$root/build}
cmake --build "$build" --target gpu_run
files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
mkdir "$files/lib"

put() {  # put FILE: into the same place in the pack
  local to=$files/${1#"$build"/}
  mkdir -p "$(dirname "$to")"
  strip -o "$to" "$1"
}

num_tests=0
for file in outrider {.,late,unwaited}/liboutrider_cuda.so tools/gpu/probe/gpu_probe; do
  put "$build/$file"
done
for file in "$build"/tests/gpu/*_gpu_test; do
  [ -x "$file" ] || { echo "pack: no GPU tests in $build: build them where nvcc is" >&2; exit 1; }
  put "$file"
  num_tests=$((num_tests + 1))
done

find "$files" -type f -perm -u+x -exec ldd {} + | awk '$3 ~ /^\// { print $3 }' | sort -u |
  grep -Ev '/(ld-linux|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)[-.]' |
  while read -r library; do cp -L "$library" "$files/lib/"; done
rm -rf "$folder"
mkdir -p "$folder"
tar -C "$files" -czf "$folder/pack.tar.gz" .
echo "packed $num_tests GPU tests, $(du -sh "$files" | cut -f1), into $folder/pack.tar.gz: $(du -h "$folder/pack.tar.gz" | cut -f1)"
