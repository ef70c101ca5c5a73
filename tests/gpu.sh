#!/usr/bin/env bash
# Runs everything that needs a GPU: the device contract, memory shared by two processes, compute-sanitizer, the figures.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PROGRAMS=(cuda_device_test device_ipc_test paged_cache_test paged_engine paged_restore_test larderd bench_device
          bench_device_restore)

usage() {
  cat <<'HELP'
Usage: tests/gpu.sh [--json FILE] [--quick]    builds, and runs on this machine's GPU
       tests/gpu.sh --pack DIR                 builds, and puts programs, libraries and this script into DIR; DIR/gpu.sh
                                               then runs on any machine with a driver and Debian 12 or newer
HELP
}

say() { printf '\n== %s\n' "$*"; }

build() {
  local root=$HERE/..
  cmake -S "$root" --preset release >/dev/null
  cmake --build "$root/build/release" --target "${PROGRAMS[@]}" >/dev/null
  for program in "${PROGRAMS[@]}"; do
    find "$root/build/release" -name "$program" -type f -perm -u+x
  done
}

pack() {
  mkdir -p "$1/lib"
  local program
  for program in $(build); do
    install -s -m 755 "$program" "$1/"
    # All libraries except those of C and C++, which on the other machine may be newer but not older.
    ldd "$program" | awk '/=> \// {print $3}' | grep -vE '/(libc|libm|libgcc_s|libstdc\+\+)\.so'
  done | sort -u | xargs -I{} cp -L {} "$1/lib/"
  cp "${BASH_SOURCE[0]}" "$1/gpu.sh"
}

JSON=() QUICK=()
while [ $# -gt 0 ]; do
  case $1 in
    --pack) pack "$2"; exit ;;
    --json) JSON=(--json "$2"); shift ;;
    --quick) QUICK=(--quick) ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done

if [ -x "$HERE/cuda_device_test" ]; then
  BIN=$HERE
  export LD_LIBRARY_PATH=$HERE/lib:${LD_LIBRARY_PATH:-}
else
  BIN=$(mktemp -d)
  trap 'rm -rf "$BIN"' EXIT
  for program in $(build); do ln -s "$program" "$BIN/"; done
fi
export LARDER_TEST_CUDA_REQUIRED=1
failed=0
check() { "$@" || { failed=1; echo "FAILED: $*"; }; }

say "contract and oracle, on the GPU"
check env LARDER_TEST_SCALE="${LARDER_TEST_SCALE:-1}" "$BIN/cuda_device_test" --gtest_brief=1
say "memory in two processes, whose owner is killed"
check env LARDER_TEST_SCALE="${LARDER_TEST_SCALE:-0.1}" "$BIN/device_ipc_test" --gtest_filter='*cuda*' --gtest_brief=1
say "a paged cache on the GPU, restored through a running daemon while engines are killed"
check env LARDER_TEST_DEVICE=cuda "$BIN/paged_cache_test" --gtest_brief=1
say "a prefix computed and loaded into pages of the GPU at once"
check env LARDER_TEST_DEVICE=cuda "$BIN/paged_restore_test" --gtest_brief=1
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck initcheck synccheck; do
    say "compute-sanitizer $tool"
    check env LARDER_TEST_SCALE=0.01 compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 5 \
      "$BIN/cuda_device_test" --gtest_brief=1 --gtest_filter='*PagedMove*'
  done
else
  say "compute-sanitizer is not installed: skipped"
fi
say "figures"
check "$BIN/bench_device" ${QUICK[@]+"${QUICK[@]}"} ${JSON[@]+"${JSON[@]}"}
check "$BIN/bench_device_restore" ${QUICK[@]+"${QUICK[@]}"} ${JSON[@]+"${JSON[@]}"}
exit $failed
