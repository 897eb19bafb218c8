#!/usr/bin/env bash
# A Python environment with the client libraries that the tests use (less than a minute, 700 MB), matplotlib for the
# plots, selenium for the chat page, NVIDIA's disassembler and, when OUTRIDER_LM_EVAL=1 (it takes a minute or two and a gigabyte),
# lm-evaluation-harness. What pip cannot install (no network) has its test skipped, which says so.
set -uo pipefail
venv=$1

# install MODULE REQUIREMENT...
install() {
  local module=$1
  shift
  "$venv/bin/python" -c "import importlib.util, sys; sys.exit(not importlib.util.find_spec('$module'))" 2>/dev/null && return
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" && return
  echo "python_for_tests: $module could not be installed; its test will be SKIPPED" >&2
}

install openai openai==2.54.0
install anthropic anthropic==2.12.0
install litellm 'litellm[mcp]==1.106.0'
install langchain_openai langchain-openai==1.7.0
install llama_index.llms.openai_like llama-index-llms-openai-like==0.8.0
install instructor instructor==1.17.0
install pydantic_ai 'pydantic-ai-slim[openai]==2.31.0'
install tokenizers tokenizers==0.23.3
install matplotlib matplotlib
install selenium selenium
# Pinned by hash, alone: with one hash pip wants all.
install nvidia.cu13.bin -r "$(dirname "$0")/gpu/machine_code_tools.txt"
if [ "${OUTRIDER_LM_EVAL:-0}" = 1 ]; then install lm_eval 'lm-eval[api]==0.4.13' transformers; fi
exit 0
