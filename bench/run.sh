#!/usr/bin/env bash
# Builds the benchmarks, runs them, and prints a table with each figure beside its floor.  Writes only below build/ and
# to the file of --json.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BUILD=$ROOT/build/release
PROGRAMS=(host_copy host_procs lookup index_memory pool_full disk_tier disk pool_beside_disk eviction restore_sim idle)
ARGS=()
NAMES=()

usage() {
  cat <<'HELP'
Usage: bench/run.sh [--quick] [--json FILE] [--list] [NAME...]
Runs all figures, or those whose names begin with a NAME.
  --quick      fewer and shorter rounds, and lookups among 1 million blocks instead of 10
  --json FILE  appends a line per figure: {"figure","value","unit","floor","ratio","rounds","memory_gb_s":[1,2 threads]}
  --list       prints the names of all figures
ratio = value / floor, the median over rounds in which both ran in turn; for latencies, below 1 is better.
memory = GB/s that one thread and two threads copied in memory between these rounds.
HELP
}

say() { printf '%s\n' "bench: $*" >&2; }
fail() { say "$*"; exit 2; }

list=
while [ $# -gt 0 ]; do
  case $1 in
    --quick) ARGS+=(--quick) ;;
    --json) file=${2:?--json needs a file}; ARGS+=(--json "$(realpath -m "$file")"); shift ;;
    --list) list=1 ;;
    --help | -h) usage; exit 0 ;;
    -*) usage >&2; fail "unknown option '$1'" ;;
    *) NAMES+=("$1") ;;
  esac
  shift
done

cd "$ROOT"
mkdir -p "$BUILD"
llama=()
if prefix=$(deploy/build-llama.sh); then
  llama=(-DLARDER_LLAMA=ON -DCMAKE_PREFIX_PATH="$prefix")
  PROGRAMS+=(restore_llama)
else
  say "llama.cpp was not built, so the figures of restore_llama are left out"
fi
targets=(larderd "${PROGRAMS[@]/#/bench_}")
say "building"
if ! { cmake --preset release -DLARDER_BENCH=ON ${llama[@]+"${llama[@]}"} && cmake --build "$BUILD" --target "${targets[@]}"; } \
  >"$BUILD/bench-build.log" 2>&1; then
  tail -n 40 "$BUILD/bench-build.log" >&2
  fail "the build failed, see above; deploy/install-deps.sh installs what it needs"
fi

figures=$(for program in "${PROGRAMS[@]}"; do "$BUILD/bench/bench_$program" --list; done)
if [ -n "$list" ]; then
  printf '%s\n' "$figures"
  exit 0
fi
for name in ${NAMES[@]+"${NAMES[@]}"}; do
  grep -q "^$name" <<<"$figures" || fail "no figure begins with '$name'; --list prints their names"
done

model=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
printf '%s, %s cores, %s GiB, Linux %s, load %s\n' "$model" "$(nproc)" \
  "$(awk '/^MemTotal/ {printf "%d", $2 / 1048576}' /proc/meminfo)" "$(uname -r)" "$(cut -d' ' -f1 /proc/loadavg)"
printf '%-36s %12s %12s %8s  %-6s  %s\n' figure value floor ratio rounds 'memory GB/s, 1 2 threads'
failed=0
for program in "${PROGRAMS[@]}"; do
  "$BUILD/bench/bench_$program" ${ARGS[@]+"${ARGS[@]}"} ${NAMES[@]+"${NAMES[@]}"} || failed=1
done
exit $failed
