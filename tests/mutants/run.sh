#!/usr/bin/env bash
# Breaks a copy of the tree in one way after another, and checks that the named tests fail.  See --help.
set -euo pipefail
exec /usr/bin/python3 -B "$(dirname "${BASH_SOURCE[0]}")/mutants.py" "$@"
