#!/usr/bin/env bash
# pack.sh [FOLDER [BUILD_FOLDER]]: builds (target gpu_run) and writes FOLDER/pack.tar.xz (default: build-gpu-run), what
# tools/gpu/first_run.sh needs, so that it can be carried to a machine with a GPU that has none of our libraries: the
# program, liboutrider_cuda.so, gpu_probe, the GPU tests, COMMIT, and under lib/ the shared libraries they need but for
# the C and C++ runtimes. Symbols are stripped. An error when pack and repository together are too large to travel.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${1:-$root/build-gpu-run}
build=${2:-$root/build}
limit_mib=${PACK_LIMIT_MIB:-60}
cmake --build "$build" --target gpu_run
files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
mkdir "$files/lib"
git -C "$root" describe --always --dirty --exclude '*' >"$files/COMMIT" 2>/dev/null || echo unknown >"$files/COMMIT"

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
  { grep -Ev '/(ld-linux|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)[-.]' || true; } |
  while read -r library; do cp -L "$library" "$files/lib/"; done
rm -rf "$folder"
mkdir -p "$folder"
# Tests share most of their code: a dictionary that holds them all makes less than half of what xz -T0 makes.
XZ_OPT=--lzma2=preset=6,dict=128MiB tar -C "$files" -cJf "$folder/pack.tar.xz" .

pack_bytes=$(stat -c %s "$folder/pack.tar.xz")
tracked_bytes=$(cd "$root" && { git ls-files -z | xargs -0 -r stat -c %s || true; } 2>/dev/null |
  awk '{ sum += $1 } END { print sum + 0 }')
mib() { awk -v bytes="$1" 'BEGIN { printf "%.1f MiB", bytes / 1048576 }'; }
sizes="$(mib "$pack_bytes"), with the repository's files $(mib $((pack_bytes + tracked_bytes)))"
echo "packed $num_tests GPU tests, commit $(cat "$files/COMMIT"), $(du -sh "$files" | cut -f1), into $folder/pack.tar.xz: $sizes"
if [ $((pack_bytes + tracked_bytes)) -gt $((limit_mib << 20)) ]; then
  echo "pack: $sizes, more than the $limit_mib MiB that travel" >&2
  exit 1
fi
