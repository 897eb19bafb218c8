#!/usr/bin/env bash
# sanitize.sh memcheck|racecheck|initcheck|synccheck TEST: runs a GPU test under compute-sanitizer, but for its long
# cases. Exit code 77 (skipped) with the reason where there is no compute-sanitizer, or what the test says.
set -uo pipefail

tool=${1:?usage: sanitize.sh TOOL TEST}
test=${2:?usage: sanitize.sh TOOL TEST}
command -v compute-sanitizer >/dev/null || { echo "skipped: there is no compute-sanitizer on this machine"; exit 77; }
"$test" --gtest_filter=NoSuchTest
code=$?
[ "$code" -eq 0 ] || exit "$code"
options=()
[ "$tool" = synccheck ] && options=(--num-cuda-barriers 65536)  # by default fewer than a launch has; it then fails
# Calls that are refused (too much memory is asked for on purpose) are the test's to judge.
exec compute-sanitizer --tool "$tool" "${options[@]}" --error-exitcode 9 --report-api-errors no "$test" '--gtest_filter=-*Long'
