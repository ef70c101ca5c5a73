#!/usr/bin/env bash
# Installs what building and testing Larder needs: packages of Debian 12, and what fetch-python.sh and fetch-promtool.sh
# put into the cache.  Asks nothing; does nothing when all is there.  What apt says is shown only when it fails.
set -euo pipefail

PACKAGES=(
  g++ cmake ninja-build ccache pkg-config
  libgrpc++-dev libgrpc-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libabsl-dev libspdlog-dev libcli11-dev libtomlplusplus-dev libxxhash-dev python3-xxhash libssl-dev libsystemd-dev
  libzstd-dev liblz4-dev
  librocksdb-dev
  libgtest-dev libgmock-dev libbenchmark-dev nlohmann-json3-dev prometheus-cpp-dev
  e2fsprogs  # a test takes the power from an ext4 of its own
  python3 python3-grpcio python3-protobuf python3-grpc-tools python3-pip
  python3-dev  # headers for the package kvlarder
  python3-numpy libopenblas0-pthread python3-yaml  # a test computes a real model, with a quick BLAS; its reader wants yaml
  man-db  # a test has it read our manual pages
  systemd lintian  # a test looks at the Debian packages with them, and installs them
)
LINTER_PACKAGES=(clang clang-tidy clang-format libclang-rt-14-dev shellcheck)

usage() {
  cat <<'HELP'
Usage: deploy/install-deps.sh [--with-linters]
Installs the Debian 12 packages that Larder is built and tested with, as root or by sudo.
  --with-linters   also clang, clang-tidy, clang-format, libFuzzer's runtime and shellcheck; tests that need them are
                   skipped otherwise
HELP
}

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
say() { printf '%s\n' "install-deps: $*" >&2; }
fail() { say "$*"; exit 1; }

while [ $# -gt 0 ]; do
  case $1 in
    --with-linters) PACKAGES+=("${LINTER_PACKAGES[@]}") ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; fail "unknown option '$1'" ;;
  esac
  shift
done

for tool in dpkg-query apt-get; do
  command -v "$tool" >/dev/null ||
    fail "no $tool, so this is not Debian; install by other means what Debian 12 calls: ${PACKAGES[*]}"
done

# Building needs neither.
fetch_others() {
  "$HERE/fetch-python.sh" >/dev/null || say "without these two the Python package and its tests are left out"
  "$HERE/fetch-promtool.sh" >/dev/null || say "without promtool its test of the metrics is left out"
}

missing=()
for package in "${PACKAGES[@]}"; do
  case $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true) in
    installed) ;;
    *) missing+=("$package") ;;
  esac
done
if [ ${#missing[@]} -eq 0 ]; then
  say "all ${#PACKAGES[@]} packages are there"
  fetch_others
  exit 0
fi

AS_ROOT=(env DEBIAN_FRONTEND=noninteractive)
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    AS_ROOT=(sudo -n env DEBIAN_FRONTEND=noninteractive)
  elif command -v sudo >/dev/null && [ -t 0 ]; then
    AS_ROOT=(sudo env DEBIAN_FRONTEND=noninteractive)
  else
    fail "needs root; run as root: apt-get install --no-install-recommends ${missing[*]}"
  fi
fi
case $(cat /etc/debian_version 2>/dev/null) in
  12 | 12.*) ;;
  *) say "written for Debian 12, which this is not: some packages may be missing or differ" ;;
esac

LOG=$(mktemp "${TMPDIR:-/tmp}/larder-install-deps.XXXXXX")
trap 'rm -f "$LOG"' EXIT
APT=(apt-get -y -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
apt() {  # what it says is shown when it fails
  "${AS_ROOT[@]}" "${APT[@]}" "$@" >>"$LOG" 2>&1 && return
  tail -n 40 "$LOG" >&2
  fail "apt-get $1 failed; the lines above are the end of what it said"
}

say "installing ${#missing[@]} packages and what they need (a minute or two): ${missing[*]}"
apt update
apt install --no-install-recommends "${missing[@]}"
fetch_others
say "done"
