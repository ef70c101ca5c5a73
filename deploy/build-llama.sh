#!/usr/bin/env bash
# Builds llama.cpp once and keeps it, installed, in the cache; prints the prefix for CMAKE_PREFIX_PATH.
# Only the library `llama` with the CPU backend.  The source is the copy inside a pinned source package.
set -euo pipefail

VERSION=0.3.36
SDIST=llama_cpp_python-$VERSION.tar.gz
SHA256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
CACHE=${LARDER_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set; set HOME or LARDER_CACHE}/.cache}/larder}
PREFIX=$CACHE/llama-$VERSION-o1
JOBS=$(nproc)

usage() {
  cat <<HELP
Usage: deploy/build-llama.sh [--jobs N] [--force]
Builds llama.cpp (of llama-cpp-python $VERSION) into $PREFIX
and prints that folder on standard output.  Does nothing when it is there.
  --jobs N   compilers at once (default: cores, here $JOBS)
  --force    build again
The cache folder: LARDER_CACHE, else XDG_CACHE_HOME/larder, else ~/.cache/larder.
PYTHON names the python3 (3.9 or newer, with pip) that downloads.
HELP
}

say() { printf '%s\n' "build-llama: $*" >&2; }
fail() { say "$*"; exit 1; }

FORCE=
while [ $# -gt 0 ]; do
  case $1 in
    --jobs) JOBS=${2:?--jobs needs a number}; shift ;;
    --force) FORCE=1 ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; fail "unknown option '$1'" ;;
  esac
  shift
done
if [ -e "$PREFIX/.complete" ] && [ -z "$FORCE" ]; then
  echo "$PREFIX"
  exit 0
fi
for tool in cmake ninja g++ sha256sum; do
  command -v "$tool" >/dev/null || fail "$tool is needed: run deploy/install-deps.sh first"
done

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
matches() { [ -f "$1" ] && [ "$(sha256sum <"$1")" = "$SHA256  -" ]; }

mkdir -p "$CACHE"
WORK=$(mktemp -d "$CACHE/.llama-build.XXXXXX")
trap 'rm -rf "$WORK"' EXIT

if ! matches "$CACHE/$SDIST"; then
  say "downloading the source of llama.cpp (77 MB)"
  PYTHON=$(find_python)
  # Only this package from source.  pip has such a package describe itself, which runs what is in it; with a hash that it
  # requires, it compares the file first, and runs nothing of another one.
  printf '%s\n' "llama-cpp-python==$VERSION --hash=sha256:$SHA256" >"$WORK/pinned.txt"
  "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
    --require-hashes --dest "$WORK" --requirement "$WORK/pinned.txt" >&2 ||
    fail "the download failed, or is not the file that this script was written for; the lines above say which"
  matches "$WORK/$SDIST" || fail "$SDIST is not the file that this script was written for (sha256 differs)"
  mv "$WORK/$SDIST" "$CACHE/$SDIST"
fi

say "building llama.cpp with $JOBS compilers (three minutes on two cores; once)"
tar -xzf "$CACHE/$SDIST" -C "$WORK" --strip-components=2 "llama_cpp_python-$VERSION/vendor/llama.cpp"
LOG=$WORK/build.log
# The kernels, which are ggml's, are built with -O3.  The rest, which would take two thirds of the time, is built with -O1.
cat >"$WORK/llama-o1.cmake" <<'CMAKE'
if(PROJECT_NAME STREQUAL "llama.cpp")
  cmake_language(DEFER CALL target_compile_options llama PRIVATE -O1)
endif()
CMAKE
# GGML_NATIVE=OFF: with the machine's own flags the AMX kernels of this version crash.
if ! {
  cmake -S "$WORK/llama.cpp" -B "$WORK/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_PROJECT_INCLUDE="$WORK/llama-o1.cmake" -DCMAKE_INSTALL_PREFIX="$WORK/prefix" \
    -DCMAKE_INSTALL_LIBDIR=lib -DGGML_NATIVE=OFF \
    -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF -DBUILD_SHARED_LIBS=OFF \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON &&
    cmake --build "$WORK/build" --target llama --parallel "$JOBS" &&
    cmake --install "$WORK/build"
} >"$LOG" 2>&1; then
  tail -n 30 "$LOG" >&2
  fail "llama.cpp did not build; the lines above are the end of its log"
fi
touch "$WORK/prefix/.complete"
rm -rf "$PREFIX"
# Another build may have finished first: its result is as good.
mv -T "$WORK/prefix" "$PREFIX" 2>/dev/null || [ -e "$PREFIX/.complete" ] || fail "cannot write $PREFIX"
say "installed into $PREFIX"
echo "$PREFIX"
