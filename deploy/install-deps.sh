#!/usr/bin/env bash
# Installs what building and testing Larder needs: packages of Debian 12, and the two that it does not have, which
# fetch-python.sh puts into the cache.  Asks nothing; does nothing when all is there.
set -euo pipefail

PACKAGES=(
  g++ cmake ninja-build ccache pkg-config
  libgrpc++-dev libgrpc-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libabsl-dev libspdlog-dev libcli11-dev libtomlplusplus-dev libxxhash-dev python3-xxhash libssl-dev libsystemd-dev
  libzstd-dev liblz4-dev
  librocksdb-dev
  libgtest-dev libgmock-dev libbenchmark-dev nlohmann-json3-dev prometheus-cpp-dev
  python3 python3-grpcio python3-protobuf python3-grpc-tools python3-pip
  python3-dev  # headers for the package kvlarder
  python3-numpy libopenblas0-pthread python3-yaml  # a test computes a real model, with a quick BLAS; its reader wants yaml
  man-db  # a test has it read our manual pages
)
CLANG_PACKAGES=(clang clang-tidy clang-format libclang-rt-14-dev)
# systemd-analyze; lintian; promtool, whose package starts a Prometheus server where packages may start services.
PACKAGE_TOOLS=(systemd lintian prometheus)

usage() {
  cat <<'HELP'
Usage: deploy/install-deps.sh [--with-clang] [--with-package-tools]
Installs the Debian 12 packages that Larder is built and tested with, as root or by sudo.
  --with-clang           also clang, clang-tidy, clang-format and libFuzzer's runtime
  --with-package-tools   also lintian, systemd and prometheus (for promtool), which tests of the package and the metrics
                         look with, and which are skipped without them
HELP
}

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
say() { printf '%s\n' "install-deps: $*" >&2; }
fail() { say "$*"; exit 1; }

while [ $# -gt 0 ]; do
  case $1 in
    --with-clang) PACKAGES+=("${CLANG_PACKAGES[@]}") ;;
    --with-package-tools) PACKAGES+=("${PACKAGE_TOOLS[@]}") ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; fail "unknown option '$1'" ;;
  esac
  shift
done

for tool in dpkg-query apt-get; do
  command -v "$tool" >/dev/null ||
    fail "no $tool, so this is not Debian; install by other means what Debian 12 calls: ${PACKAGES[*]}"
done

# Needed by the Python package alone: the rest builds without.
fetch_python() {
  "$HERE/fetch-python.sh" >/dev/null || say "without these two the Python package and its tests are left out"
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
  fetch_python
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

say "installing ${#missing[@]} packages: ${missing[*]}"
APT=(apt-get -y -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
"${AS_ROOT[@]}" "${APT[@]}" update >&2 || fail "apt-get update failed; the lines above say why"
"${AS_ROOT[@]}" "${APT[@]}" install --no-install-recommends "${missing[@]}" >&2 ||
  fail "apt-get install failed; the lines above say why"
fetch_python
say "done"
