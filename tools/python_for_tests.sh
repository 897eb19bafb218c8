#!/usr/bin/env bash
# A Python environment with the openai package for the client test. When pip cannot install it (no network), the
# test that needs it is skipped and says so.
set -uo pipefail
venv=$1

if "$venv/bin/python" -c 'import openai' 2>/dev/null; then exit 0; fi
if python3 -m venv "$venv" && "$venv/bin/python" -m pip install --quiet --disable-pip-version-check openai; then
  exit 0
fi
echo "python_for_tests: the openai package could not be installed; its client test will be SKIPPED" >&2
exit 0
