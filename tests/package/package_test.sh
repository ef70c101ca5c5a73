#!/usr/bin/env bash
# Builds the Debian packages of a build and checks them with lintian and systemd-analyze.  Then installs, uses, removes
# and purges them in a temporary copy of this machine: a private overlay over /, with its own systemd, so that the
# daemon runs in the unit's whole sandbox.  Takes less than a minute; the second half needs root and overlayfs.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
EXPOSURE_MAX=1.5  # systemd-analyze security
BOOT_LIMIT_S=600

usage() { printf '%s\n' "Usage: package_test.sh BUILD WORK"; }
say() { printf '%s\n' "package: $*"; }
fail() { printf '%s\n' "package: $*" >&2; exit 1; }
# ctest recognizes a skipped test by this line.
skip() { printf '%s\n' "skipped debian_package: $*"; exit 0; }

[ $# -eq 2 ] || { usage >&2; exit 2; }
BUILD=$(realpath "$1")
mkdir -p "$2"
WORK=$(realpath "$2")

for tool in cpack dpkg-deb lintian systemd-analyze; do
  command -v "$tool" >/dev/null || skip "no $tool; deploy/install-deps.sh installs it"
done

say "building"
rm -rf "$WORK"
mkdir -p "$WORK/root"
(cd "$BUILD" && cpack -G DEB -B "$WORK") >"$WORK/cpack.log" 2>&1 || { tail -n 20 "$WORK/cpack.log"; fail "cpack failed"; }
RUN=("$WORK"/larder_*.deb)
DEV=("$WORK"/liblarder-dev_*.deb)

say "lintian"
lintian --fail-on error --allow-root "${RUN[0]}" "${DEV[0]}" || fail "lintian found errors"

say "systemd-analyze security"
dpkg-deb -x "${RUN[0]}" "$WORK/root"
UNIT=$WORK/root/usr/lib/systemd/system/larderd.service
rating=$(systemd-analyze security --offline=yes "$UNIT" | tail -n 1)
say "$rating"
exposure=$(sed -E 's/.*: ([0-9.]+) .*/\1/' <<<"$rating")
awk -v is="$exposure" -v max="$EXPOSURE_MAX" 'BEGIN { exit !(is > 0 && is <= max) }' ||
  fail "the unit's exposure is more than $EXPOSURE_MAX"

[ "$(id -u)" -eq 0 ] || skip "no root for the second half: installing it"
[ -x /usr/lib/systemd/systemd ] || skip "no systemd for the second half: installing it"
grep -qw overlay /proc/filesystems || skip "no overlayfs for the second half: installing it"

# The copy gets its own cgroup in each hierarchy that systemd uses.
if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
  hierarchies=(/sys/fs/cgroup)
else
  hierarchies=(/sys/fs/cgroup/unified /sys/fs/cgroup/systemd)
fi
groups=()
for hierarchy in "${hierarchies[@]}"; do groups+=("$hierarchy/larder-package-test-$$"); done
remove_groups() {
  for group in "${groups[@]}"; do
    # Its processes may take a moment to exit.
    for _ in $(seq 50); do
      find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
      [ -d "$group" ] || break
      sleep 0.1
    done
  done
}
trap remove_groups EXIT
mkdir "${groups[@]}" 2>/dev/null || skip "no cgroup can be made for the second half: installing it"

say "installing in a copy of this machine"
: >"$WORK/console"
(
  for group in "${groups[@]}"; do echo "$BASHPID" >"$group/cgroup.procs"; done
  exec timeout --signal KILL "$BOOT_LIMIT_S" unshare --mount --pid --fork --cgroup --ipc --uts --net --kill-child \
    bash "$HERE/machine.sh" "$BUILD" "$WORK" "$HERE/inside.sh"
) >"$WORK/machine.log" 2>&1 || true
cat "$WORK/console"
if ! grep -q '^inside: ' "$WORK/console"; then
  tail -n 5 "$WORK/machine.log"
  skip "no systemd runs in a namespace here, so the package was not installed"
fi
grep -q '^inside: all is well$' "$WORK/console" || fail "inside.sh did not finish; its last line above names the step"
say "passed"
