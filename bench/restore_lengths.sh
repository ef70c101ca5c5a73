#!/usr/bin/env bash
# How much sooner does the first token come when a prompt's KV is read from the disk of a killed daemon than when it is
# computed?  Over prompt lengths, on the small model of the quickstart; each run is an engine process of its own.
# Writes only below build/ and to a private folder for socket files.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BUILD=$ROOT/build/release
TEXT=$ROOT/deploy/quickstart.txt
# Multiples of 32, and multiples plus 1 and plus 31: after the restored blocks, a whole block, a token or nearly a block
# is left to compute.
LENGTHS=512,1055,1536,2079,2560,3073,3615,4096
PREDICT=48
MODEL=
MAKE=1
JOBS=$(nproc)

usage() {
  cat <<HELP
Usage: bench/restore_lengths.sh [--lengths N,N...] [--model FILE] [--no-build] [--jobs N]
For each length: (a) an engine process computes a prompt of as many tokens, stores it, and waits until it is durable.
Then the daemon is killed with kill -9, another one is started over the same disk, and for each length (c) an engine
process restores the prompt from there.  Prints both times to the first token, their ratio and whether the answers are
the same, and at the end the median of the ratios.
  --lengths N,N...  lengths of the prompts, in tokens (default $LENGTHS)
  --model FILE      a GGUF file to use instead of that of deploy/fetch-model.sh
  --no-build        uses larderd and larder-llama as they are in build/release
  --jobs N          compilers at once (default: the number of cores, here $JOBS)
Exit status: 0, or 1 if a run failed, was not restored completely, or gave another answer.
Takes some minutes, nearly all of them for computing (a).
HELP
}

say() { printf '%s\n' "restore_lengths: $*" >&2; }
fail() { say "$*"; exit 1; }

while [ $# -gt 0 ]; do
  case $1 in
    --lengths) LENGTHS=${2:?--lengths needs numbers}; shift ;;
    --model) MODEL=${2:?--model needs a file}; shift ;;
    --no-build) MAKE= ;;
    --jobs) JOBS=${2:?--jobs needs a number}; shift ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; say "unknown option '$1'"; exit 2 ;;
  esac
  shift
done
[[ $LENGTHS =~ ^[0-9]+(,[0-9]+)*$ ]] || { say "--lengths: '$LENGTHS' is not a list of numbers"; exit 2; }

mkdir -p "$BUILD"
RUN=$(mktemp -d "${TMPDIR:-/tmp}/larder-lengths.XXXXXX")  # short, as socket paths must be
DISK=$(mktemp -d "$BUILD/restore-lengths.XXXXXX")         # on the disk under test, that of the build tree
DAEMON=
cleanup() {
  local code=$?
  trap - EXIT INT TERM
  [ -z "$DAEMON" ] || kill_daemon
  rm -rf "$RUN" "$DISK"
  exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

build() {
  local llama
  llama=$("$ROOT/deploy/build-llama.sh" --jobs "$JOBS")
  say "building Larder"
  if ! { cmake --preset release -S "$ROOT" -DLARDER_LLAMA=ON -DCMAKE_PREFIX_PATH="$llama" &&
    cmake --build "$BUILD" --parallel "$JOBS" --target larderd larder-llama; } >"$RUN/log" 2>&1; then
    tail -n 40 "$RUN/log" >&2
    fail "the build failed, see above"
  fi
}

start_daemon() {
  rm -f "$RUN"/*.sock
  "$BUILD/server/larderd" --pool 2GiB --disk "$DISK/disk" --disk-limit 4GiB --socket-dir "$RUN" --metrics-listen "" \
    >"$RUN/larderd.log" 2>&1 &
  DAEMON=$!
  local tries
  for tries in $(seq 300); do
    kill -0 "$DAEMON" 2>/dev/null || break
    if [ -S "$RUN/data.sock" ] && [ -S "$RUN/sideband.sock" ]; then return; fi
    sleep 0.1
  done
  tail -n 20 "$RUN/larderd.log" >&2
  fail "larderd does not serve after $((tries / 10)) s; see its log above"
}

kill_daemon() {
  kill -KILL "$DAEMON" 2>/dev/null || true
  wait "$DAEMON" 2>/dev/null || true
  DAEMON=
}

# Repeats the text until it is long enough for the longest prompt (a token has at least one byte).
write_prompt() {
  local longest
  longest=$(tr ',' '\n' <<<"$LENGTHS" | sort -n | tail -n 1)
  while [ "$(stat -c %s "$RUN/prompt.txt" 2>/dev/null || echo 0)" -lt $((8 * longest)) ]; do
    cat "$TEXT" >>"$RUN/prompt.txt"
  done
}

# Each length has its own revision, so that it does not find what another length has stored.
ask() {  # NAME LENGTH OPTION...: runs one engine process; writes its JSON line to $RUN/NAME-LENGTH.json
  local name=$1 length=$2
  shift 2
  "$BUILD/client/llama_cpp/larder-llama" --model "$MODEL" --revision "lengths-$length" --prompt-file "$RUN/prompt.txt" \
    --tokens "$length" --predict "$PREDICT" --context $((length > 8000 ? length + 2 * PREDICT : 8192)) \
    --socket-dir "$RUN" --engine-id "lengths-$name" --json "$@" >"$RUN/$name-$length.json" 2>"$RUN/engine.log" ||
    { tail -n 20 "$RUN/engine.log" >&2; fail "the $name engine failed at $length tokens; see its log above"; }
}

report() {
  /usr/bin/python3 - "$RUN" "${lengths[@]}" <<'PYTHON'
import json
import statistics
import sys

folder, lengths = sys.argv[1], sys.argv[2:]
ratios, wrong = [], []
print("tokens  (a) cold, s  (c) from disk, s    ratio  from Larder  same answer")
for length in lengths:
    cold, disk = (json.load(open(f"{folder}/{name}-{length}.json", encoding="utf-8")) for name in ("cold", "disk"))
    same = cold["answer"] == disk["answer"]
    ratios.append(cold["ttft_s"] / disk["ttft_s"])
    print(f'{length:>6}  {cold["ttft_s"]:>11.3f}  {disk["ttft_s"]:>16.4f}  {ratios[-1]:>6.1f}x  {disk["hit_tokens"]:>11}  '
          f'{"yes" if same else "NO":>11}')
    if cold["prompt_tokens"] != int(length):
        wrong.append(f"{length}: the prompt had {cold['prompt_tokens']} tokens")
    if cold["hit_tokens"] != 0 or not cold["durable"]:
        wrong.append(f"{length}: the cold run found stored blocks, or its own blocks were not on disk after 10 s")
    if disk["hit_tokens"] != (int(length) - 1) // 32 * 32:
        wrong.append(f"{length}: not everything was restored")
    if not same:
        wrong.append(f"{length}: the restored answer is not the computed one")
    wrong += [f"{length}: Larder failed: {run['larder']}" for run in (cold, disk) if "larder" in run]
print(f"median {statistics.median(ratios):.1f}x, worst {min(ratios):.1f}x")
sys.exit("\n".join("restore_lengths: " + line for line in wrong) or 0)
PYTHON
}

[ -z "$MAKE" ] || build
[ -n "$MODEL" ] || MODEL=$("$ROOT/deploy/fetch-model.sh")
IFS=, read -r -a lengths <<<"$LENGTHS"
write_prompt
start_daemon
for length in "${lengths[@]}"; do
  say "(a) $length tokens, computed"
  ask cold "$length" --mode compute --wait-durable
done
say "killing the daemon with kill -9, and starting another one over its disk"
kill_daemon
start_daemon
for length in "${lengths[@]}"; do ask disk "$length" --no-store; done
report
