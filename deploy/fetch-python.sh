#!/usr/bin/env bash
# Fetches the Python packages that Debian 12 does not have into the cache; prints the folder for PYTHONPATH.
#   nanobind   what the package kvlarder is bound with (BSD)
#   gguf       reads the model's weights, for the oracle in tests/client/python (MIT)
set -euo pipefail

PINNED='nanobind==3.1.0 --hash=sha256:96984dbe8154ffb86e653b1b60aaeed6985c710c5e75ad0279eb87943c66292d
gguf==0.19.0 --hash=sha256:70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd'
CACHE=${LARDER_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set; set HOME or LARDER_CACHE}/.cache}/larder}
FOLDER=$CACHE/python-$(sha256sum <<<"$PINNED" | cut -c1-12)

usage() {
  cat <<HELP
Usage: deploy/fetch-python.sh [--where]
Fetches nanobind and gguf (0.5 MB) to $FOLDER
and prints that folder on standard output.  Does nothing when they are there.
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
[ -z "$WHERE" ] || fail "nothing is in $FOLDER: run deploy/fetch-python.sh"

mkdir -p "$CACHE"
WORK=$(mktemp -d "$CACHE/.python.XXXXXX")
trap 'rm -rf "$WORK"' EXIT
say "downloading nanobind and gguf (0.5 MB)"
printf '%s\n' "$PINNED" >"$WORK/pinned.txt"
"${PYTHON:-/usr/bin/python3}" -m pip install --quiet --disable-pip-version-check --root-user-action ignore \
  --no-deps --no-compile --only-binary :all: --require-hashes --target "$WORK/packages" --requirement "$WORK/pinned.txt" >&2 ||
  fail "the download failed: is there a network, and python3 with pip (deploy/install-deps.sh)?"
touch "$WORK/packages/.complete"
# If another run has put the folder there meanwhile, that one is used: it has the same content.
mv -T "$WORK/packages" "$FOLDER" 2>/dev/null || [ -e "$FOLDER/.complete" ] || fail "cannot write $FOLDER"
echo "$FOLDER"
