#!/bin/sh
# Runs a test script with the environment that `make test` makes for it, or with the system's Python where there is
# none: python.sh VENV SCRIPT ARGUMENTS
venv=$1
shift
[ -x "$venv/bin/python3" ] && exec "$venv/bin/python3" "$@"
exec python3 "$@"
