#!/usr/bin/env bash
# A Python environment with the openai and anthropic packages for the client tests, matplotlib for the plots, selenium
# for the chat page and, when OUTRIDER_LM_EVAL=1 (it takes a minute or two and a gigabyte), lm-evaluation-harness. What
# pip cannot install (no network) has its test skipped, which says so.
set -uo pipefail
venv=$1

# install MODULE REQUIREMENT...
install() {
  local module=$1
  shift
  "$venv/bin/python" -c "import $module" 2>/dev/null && return
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" && return
  echo "python_for_tests: $module could not be installed; its test will be SKIPPED" >&2
}

install openai openai
install anthropic anthropic==2.12.0
install matplotlib matplotlib
install selenium selenium
if [ "${OUTRIDER_LM_EVAL:-0}" = 1 ]; then install lm_eval 'lm-eval[api]==0.4.13' transformers; fi
exit 0
