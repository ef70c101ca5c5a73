#!/usr/bin/env bash
# Larder under a real vLLM: a daemon, two vLLM servers and the router, and chats about shared documents.  The same chats
# are held with Larder and without it, and routed by the KV that the servers have and in turn; tables and a picture compare
# them.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BUILD=$ROOT/build/release
MODELS=$BUILD/tests/engines/models
OUT=$PWD
QUICK=
SEED=1
JOBS=$(nproc)

usage() {
  cat <<HELP
Usage: deploy/demo-vllm.sh [--quick] [--out FOLDER] [--seed N] [--jobs N]
Installs what is missing, builds larderd and the Python package, fetches vLLM for CPUs (2.5 GB) and a model of 98 MB, starts
larderd and two vLLM servers with that model, and holds chats about shared documents through the router: with Larder, routed
by KV and in turn; without Larder, in turn.  Prints times to first token, hits and throughput, and draws demo-vllm.svg.
  --quick        fewer and shorter chats: 75 s on two idle cores, once all is built
  --out FOLDER   where the picture goes (default: the current folder)
  --seed N       other chats (default: $SEED)
  --jobs N       compilers at once (default: cores, here $JOBS)
It needs 8 GB of memory.  It leaves nothing behind except the picture, the build and the cache of downloads.
HELP
}

say() { printf '%s\n' "demo-vllm: $*" >&2; }
fail() { say "$*"; exit 1; }

while [ $# -gt 0 ]; do
  case $1 in
    --quick) QUICK=--quick ;;
    --out) OUT=${2:?--out needs a folder}; shift ;;
    --seed) SEED=${2:?--seed needs a number}; shift ;;
    --jobs) JOBS=${2:?--jobs needs a number}; shift ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; fail "unknown option '$1'" ;;
  esac
  shift
done
[ -d "$OUT" ] || fail "'$OUT' is no folder"
[[ $SEED =~ ^[0-9]+$ ]] || fail "--seed needs a number, not '$SEED'"

LOG=$(mktemp "${TMPDIR:-/tmp}/larder-demo-vllm.XXXXXX")
trap 'rm -f "$LOG"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

quietly() {  # runs a command; its output is shown only when it fails
  if ! "$@" >"$LOG" 2>&1; then
    tail -n 40 "$LOG" >&2
    fail "failed: $*"
  fi
}

"$ROOT/deploy/install-deps.sh"
VLLM=$("$ROOT/deploy/fetch-vllm.sh")
say "building larderd and the Python package"
(cd "$ROOT" && quietly cmake --preset release -DPython3_EXECUTABLE=/usr/bin/python3)
quietly cmake --build "$BUILD" --parallel "$JOBS" --target larderd larder_python_stub
quietly "$VLLM" -B "$ROOT/tests/engines/hf_model.py" "$ROOT/deploy/fetch-model.sh" "$MODELS"

# The program takes the place of this one, so that signals reach it, and it ends what it has started.
rm -f "$LOG"
trap - EXIT INT TERM
export PYTHONPATH=$BUILD/python
exec "$VLLM" -B "$ROOT/bench/vllm_demo" "$BUILD/server/larderd" "$MODELS/smol" --out "$OUT" --seed "$SEED" ${QUICK:+"$QUICK"}
