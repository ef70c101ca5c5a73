#!/usr/bin/env bash
# Fetches Python packages that Debian 12 does not have into the cache; prints the folder for PYTHONPATH.
#   nanobind   what the package kvlarder is bound with (BSD)
#   gguf       reads the model's weights, for the oracle in tests/client/python (MIT)
# With --sglang:
#   sglang     its storage interface, host pools and fault injector, for tests/engines/sglang_test.py (Apache 2.0)
#   orjson     of what these import, what the environment of deploy/fetch-vllm.sh does not have (Apache 2.0, MIT)
set -euo pipefail

PINNED='nanobind==3.1.0 --hash=sha256:96984dbe8154ffb86e653b1b60aaeed6985c710c5e75ad0279eb87943c66292d
gguf==0.19.0 --hash=sha256:70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd'
SGLANG='sglang==0.5.23 --hash=sha256:00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937
orjson==3.13.0 --hash=sha256:89bcf2d4bc6c9a7e1763c8cf534f38712e66b76a0fefda7fb7785462f0d635e4'
CACHE=${LARDER_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set; set HOME or LARDER_CACHE}/.cache}/larder}
SET=python WHAT='nanobind and gguf (0.5 MB)'
if [ "${1:-}" = --sglang ]; then
  SET=sglang WHAT='sglang and orjson (39 MB, 130 MB on disk)' PINNED=$SGLANG
  shift
fi
FOLDER=$CACHE/$SET-$(sha256sum <<<"$PINNED" | cut -c1-12)

usage() {
  cat <<HELP
Usage: deploy/fetch-python.sh [--sglang] [--where]
Fetches $WHAT to $FOLDER
and prints that folder on standard output.  Does nothing when they are there.
  --sglang  fetches sglang and orjson instead, for the python 3.11 of deploy/fetch-vllm.sh
  --where   fetches nothing; fails when they are not there
The cache folder: LARDER_CACHE, else XDG_CACHE_HOME/larder, else ~/.cache/larder.
PYTHON names the python3 (3.10 or newer, with pip) that downloads.
HELP
}

say() { printf '%s\n' "fetch-python: $*" >&2; }
fail() { say "$*"; exit 1; }

WHERE=
case ${1:-} in
  '') ;;
  --where) WHERE=1 ;;
  --help | -h) usage; exit 0 ;;
  *) usage >&2; fail "unknown option '$1'" ;;
esac
if [ -e "$FOLDER/.complete" ]; then
  echo "$FOLDER"
  exit 0
fi
[ -z "$WHERE" ] || fail "nothing is in $FOLDER: fetch it without --where"

mkdir -p "$CACHE"
WORK=$(mktemp -d "$CACHE/.$SET.XXXXXX")
trap 'rm -rf "$WORK"' EXIT
say "downloading $WHAT"
printf '%s\n' "$PINNED" >"$WORK/pinned.txt"
"${PYTHON:-/usr/bin/python3}" -m pip install --quiet --disable-pip-version-check --root-user-action ignore \
  --no-deps --no-compile --only-binary :all: --require-hashes --target "$WORK/packages" --requirement "$WORK/pinned.txt" >&2 ||
  fail "the download failed: is there a network, and python3 with pip (deploy/install-deps.sh)?"
touch "$WORK/packages/.complete"
# If another run has put the folder there meanwhile, that one is used: it has the same content.
mv -T "$WORK/packages" "$FOLDER" 2>/dev/null || [ -e "$FOLDER/.complete" ] || fail "cannot write $FOLDER"
echo "$FOLDER"
