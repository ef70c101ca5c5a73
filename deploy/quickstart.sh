#!/usr/bin/env bash
# The whole of Larder once, on a real model: build, start the daemon, ask a question about a text three times.  The
# second engine process finds the text's KV in the pool and answers the same words sooner.  Then the daemon is killed,
# and the third finds it on the disk of the next one.  At last the KV comes over an emulated link that is as slow as
# computing: loaded, and computed and loaded at the same time, with a picture of that.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BUILD=$ROOT/build/release
TEXT=$ROOT/deploy/quickstart.txt
QUESTION="Question: What colour is the lamp that Marguerite Oakes put on the roof?"
POOL=2GiB
DISK=2GiB
PICTURE=$BUILD/quickstart-restore.svg
KEEP=
JOBS=$(nproc)

usage() {
  cat <<HELP
Usage: deploy/quickstart.sh [--keep] [--question TEXT] [--jobs N]
Installs what is missing, builds Larder and llama.cpp, fetches a model of 98 MB, starts larderd with a pool of $POOL
and a disk of $DISK in a private folder, and asks a question about deploy/quickstart.txt: cold, then restored by a new
engine process, then by another after kill -9 of the daemon.  Then twice over an emulated link as slow as computing:
loaded, and computed and loaded at once; draws the latter into build/release/quickstart-restore.svg.
  --keep            leaves the daemon running and says how to use and stop it
  --question TEXT   asks something else
  --jobs N          compilers at once (default: cores, here $JOBS)
The first run takes some minutes, mostly compilers; the next less than one.
HELP
}

say() { printf '%s\n' "quickstart: $*" >&2; }
fail() { say "$*"; exit 1; }

while [ $# -gt 0 ]; do
  case $1 in
    --keep) KEEP=1 ;;
    --question) QUESTION=${2:?--question needs a text}; shift ;;
    --jobs) JOBS=${2:?--jobs needs a number}; shift ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; fail "unknown option '$1'" ;;
  esac
  shift
done

RUN=$(mktemp -d "${TMPDIR:-/tmp}/larder-quickstart.XXXXXX")
DAEMON=
cleanup() {
  local code=$?
  trap - EXIT INT TERM
  if [ -n "$DAEMON" ] && { [ -z "$KEEP" ] || [ "$code" -ne 0 ]; }; then
    kill -TERM "$DAEMON" 2>/dev/null || true
    wait "$DAEMON" 2>/dev/null || true
    DAEMON=
  fi
  [ -n "$DAEMON" ] || rm -rf "$RUN"
  exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

quietly() {  # runs a command; its output is shown only when it fails
  if ! "$@" >"$RUN/log" 2>&1; then
    tail -n 40 "$RUN/log" >&2
    fail "failed: $*"
  fi
}

build() {
  "$ROOT/deploy/install-deps.sh"
  LLAMA=$("$ROOT/deploy/build-llama.sh" --jobs "$JOBS")
  MODEL=$("$ROOT/deploy/fetch-model.sh")
  say "building Larder"
  (cd "$ROOT" && quietly cmake --preset release -DLARDER_LLAMA=ON -DCMAKE_PREFIX_PATH="$LLAMA")
  quietly cmake --build "$BUILD" --parallel "$JOBS" --target larderd larder-llama
}

start_daemon() {
  rm -f "$RUN"/*.sock
  "$BUILD/server/larderd" --pool "$POOL" --disk "$RUN/disk" --disk-limit "$DISK" --socket-dir "$RUN" \
    --metrics-listen "" >"$RUN/larderd.log" 2>&1 &
  DAEMON=$!
  local tries
  for tries in $(seq 300); do
    kill -0 "$DAEMON" 2>/dev/null || break
    if [ -S "$RUN/data.sock" ] && [ -S "$RUN/sideband.sock" ]; then return; fi
    sleep 0.1
  done
  tail -n 20 "$RUN/larderd.log" >&2
  kill -0 "$DAEMON" 2>/dev/null && fail "larderd does not serve after $((tries / 10)) s; its log is above"
  fail "larderd ended; its log is above"
}

kill_daemon() {
  kill -KILL "$DAEMON"
  wait "$DAEMON" 2>/dev/null || true
  DAEMON=
}

ask() {  # NAME OPTION...: one engine process; its JSON line goes to $RUN/NAME.json
  local name=$1
  shift
  "$BUILD/client/llama_cpp/larder-llama" --model "$MODEL" --prompt-file "$TEXT" --question "$QUESTION" \
    --socket-dir "$RUN" --engine-id "quickstart-$name" --wait-durable --json "$@" >"$RUN/$name.json" || fail "the $name engine failed"
}

# Bytes a second of a link over which loading takes as long as the cold run did.
crossing_rate() {
  /usr/bin/python3 -c 'import json, sys; run = json.load(open(sys.argv[1])); print(int(run["stored_bytes"] / run["ttft_s"]))' \
    "$RUN/cold.json"
}

# What computing and loading at once gains where neither is the faster.
compare_restores() {
  /usr/bin/python3 - "$RUN/cold.json" "$RUN/load.json" "$RUN/auto.json" <<'PYTHON'
import json
import sys

cold, load, auto = (json.load(open(path, encoding="utf-8")) for path in sys.argv[1:4])
restore = auto["restore"]
same = "yes" if load["answer"] == auto["answer"] == cold["answer"] else "NO"
share = {name: 100 * restore[name] / restore["restore_s"] for name in ("engine_busy_s", "link_busy_s")}
print(f"""  (d) over an emulated link of {auto["emulated_link_bytes_per_s"] / 1e6:.1f} MB/s, time to first token:
      {cold["ttft_s"]:.3f} s computed, {load["ttft_s"]:.3f} s loaded, {auto["ttft_s"]:.3f} s computed from one end and loaded from the other
      met at token {restore["met_at_token"]}; engine busy {share["engine_busy_s"]:.0f} %, link {share["link_busy_s"]:.0f} % of the restore; same answer: {same}
      picture: {auto["picture"]}
""")
for run in (load, auto):
    if "larder" in run:
        sys.exit(f"quickstart: Larder failed in run (d): {run['larder']}")
    if run["answer"] != cold["answer"]:
        sys.exit("quickstart: the answer of run (d) is not the computed one")
PYTHON
}

# Prints the table; fails unless the second and third run were restored and gave the same answer.
compare() {
  /usr/bin/python3 - "$RUN/cold.json" "$RUN/restored.json" "$RUN/disk.json" <<'PYTHON'
import json
import sys

names = ("(a) cold", "(b) from the pool", "(c) from disk")
runs = [json.load(open(path, encoding="utf-8")) for path in sys.argv[1:4]]
cold = runs[0]
rows = [
    ("prompt, tokens", "prompt_tokens", "{}"),
    ("from Larder, tokens", "hit_tokens", "{}"),
    ("from Larder, bytes", "restored_bytes", "{:,}"),
    ("time to first token, s", "ttft_s", "{:.3f}"),
    ("  moving blocks, s", "load_s", "{:.3f}"),
    ("  computing, s", "compute_s", "{:.3f}"),
    ("stored, bytes", "stored_bytes", "{:,}"),
    ("storing (after it), s", "store_s", "{:.3f}"),
]
print()
print(" " * 26 + "".join(f"{name:>20}" for name in names))
for title, key, form in rows:
    print(f"  {title:<24}" + "".join(f"{form.format(run[key]):>20}" for run in runs))
print()
for name, run in list(zip(names, runs))[1:]:
    same = "yes" if run["answer"] == cold["answer"] else "NO"
    print(f'  {name}: first token {cold["ttft_s"] / run["ttft_s"]:.1f} times sooner; same answer: {same}')
print(f'  answer: {cold["text"]}')
print()
for name, run in zip(names, runs):
    if "larder" in run:
        sys.exit(f"quickstart: Larder failed in run {name}: {run['larder']}")
if cold["hit_tokens"] != 0:
    sys.exit("quickstart: the cold run was not cold")
if not cold["durable"]:
    sys.exit("quickstart: its blocks were not on disk after 10 s")
for name, run in list(zip(names, runs))[1:]:
    if run["hit_tokens"] != run["restorable_tokens"]:
        sys.exit(f"quickstart: not everything was restored in run {name}")
    if run["answer"] != cold["answer"]:
        sys.exit(f"quickstart: the answer of run {name} is not the computed one")
PYTHON
}

whats_next() {
  local llama run  # as a shell reads them
  llama=$(printf '%q ' "$BUILD/client/llama_cpp/larder-llama" --model "$MODEL" --prompt-file "$TEXT")
  run=$(printf '%q' "$RUN")
  if [ -n "$KEEP" ]; then
    cat <<NEXT
larderd (process $DAEMON) keeps running.  Try:
  $llama--socket-dir $run --question "How tall is the new lighthouse?"
  $llama--socket-dir $run --bench-lengths
Stop it:
  kill $DAEMON; tail --pid=$DAEMON -f /dev/null; rm -rf $run
NEXT
  else
    cat <<NEXT
What to try next:
  deploy/quickstart.sh --keep                 leaves the daemon running, with commands to use it
  deploy/quickstart.sh --question "..."       asks something else about deploy/quickstart.txt
  tests/run.sh                                runs the tests
NEXT
  fi
}

build
say "starting larderd"
start_daemon
say "(a) cold: an engine process computes the text, answers and stores its blocks"
ask cold
say "(b) restored: a new engine process takes the blocks from the pool"
ask restored
say "(c) kill -9 of the daemon, another one: a new engine process takes the blocks from its disk"
kill_daemon
start_daemon
ask disk
say "(d) the same over an emulated link as slow as computing: loaded; then computed and loaded at once"
RATE=$(crossing_rate)
ask load --mode load --link-rate "$RATE"
ask auto --mode auto --link-rate "$RATE" --profile "$RUN/profile.toml" --picture "$PICTURE"
compare
compare_restores
whats_next
