#!/usr/bin/env bash
# Runs every fuzz target under libFuzzer with ASan and UBSan, one after the other, each for its share of the minutes:
#     tools/fuzz.sh MINUTES [TARGET ...]
# Wants clang (Debian: clang libclang-rt-14-dev). Inputs that end a target are left in build-fuzz/found, its words in
# build-fuzz/found/TARGET.log. Ends with 1 if there are any.
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
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
failed=0
echo "$seconds s each"
for target in "${targets[@]}"; do
  grown=build-fuzz/corpus/$target
  log=build-fuzz/found/$target.log
  mkdir -p "$grown"
  end=good
  # Leaks are told at the end: looking for them after each input, and weighing rare features, take nine tenths of the
  # time of large targets.
  "build-fuzz/tests/fuzz/${target}_fuzz" -max_total_time="$seconds" -max_len=2560 -timeout=5 -rss_limit_mb=3072 \
    -entropic=0 -detect_leaks=0 -artifact_prefix="build-fuzz/found/$target-" "$grown" "tests/fuzz/corpus/$target" \
    >"$log" 2>&1 || end="see $log"
  [ "$end" = good ] || failed=1
  printf '%-18s %12s executions, %s\n' "$target" "$(grep -oE '^#[0-9]+' "$log" | tail -1 | tr -d '#')" "$end"
done
exit $failed
