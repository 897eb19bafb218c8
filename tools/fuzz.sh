#!/usr/bin/env bash
# Runs every fuzz target under libFuzzer with sanitizers, each for its share of the minutes:
#     tools/fuzz.sh MINUTES [TARGET ...]
# Wants clang (Debian: clang libclang-rt-14-dev). What ends a target is left in build-fuzz/found.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${1:?usage: tools/fuzz.sh MINUTES [TARGET ...]}
shift
cmake --preset fuzz >/dev/null
targets=("$@")
[ ${#targets[@]} -gt 0 ] || for file in tests/fuzz/*_fuzz.cpp; do targets+=("$(basename "$file" _fuzz.cpp)"); done
cmake --build --preset fuzz --target "${targets[@]/%/_fuzz}"
seconds=$((minutes * 60 / ${#targets[@]}))
mkdir -p build-fuzz/found
failed=0
for target in "${targets[@]}"; do
  grown=build-fuzz/corpus/$target
  mkdir -p "$grown"
  echo "== $target for $seconds s"
  "build-fuzz/tests/fuzz/${target}_fuzz" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="build-fuzz/found/$target-" "$grown" "tests/fuzz/corpus/$target" 2>&1 |
    { grep -E '^(stat::|SUMMARY|==)|ERROR|does not hold|artifact' || true; } || failed=1
done
exit $failed
