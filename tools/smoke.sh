#!/usr/bin/env bash
# Builds the program alone without optimisation and with sanitizers, and runs what tests/e2e/smoke.py runs:
#     tools/smoke.sh [debug|asan] ...
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- debug asan
for preset in "$@"; do
  cmake --preset "$preset" -DOUTRIDER_TESTS=OFF -DOUTRIDER_CUDA=OFF >/dev/null
  cmake --build "build-$preset" --target outrider
  echo "== $preset"
  OUTRIDER_PROGRAM="$PWD/build-$preset/outrider" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    python3 tests/e2e/smoke.py
done
