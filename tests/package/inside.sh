#!/usr/bin/env bash
# The part of package_test.sh that runs in the copy of the machine: install, use, break, remove and purge the packages.
set -euo pipefail

ENGINE=/srv/build/tests/e2e/support/engine_process
UNITS=(larderd.service larderd.socket larderd-control.socket larderd-admin.socket)
LARDERCTL=/usr/bin/larderctl

step() { printf '%s\n' "inside: $*"; }
fail() { printf '%s\n' "inside: FAILED: $*"; systemctl status larderd --no-pager -l -n 30 || true; exit 1; }
eventually() {  # polls a condition of the service manager or the daemon
  for _ in $(seq 1200); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.05
  done
  fail "never became true: $*"
}
as() { local user=$1; shift; setpriv --reuid "$user" --regid "$user" --init-groups "$@"; }
property() { systemctl show larderd --property "$1" --value; }
pid() { property MainPID; }
metric() {
  exec 3<>/dev/tcp/127.0.0.1/9464
  printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
  awk -v name="$1" '$1 == name { print $2 }' <&3
}
# A daemon that has just started serves blocks on its disk once it has recovered them.
get() { eventually "${@:2}" "$ENGINE" /run/larder "$1" get 0; }
names() {  # lists all files where packages put files; home folders of the machine are visible in the copy
  find /etc /usr /var /opt /boot -xdev \( -path /var/lib/dpkg -o -path /var/cache -o -path /var/log \
    -o -path /etc/systemd/system/larderd.service.d \) -prune -o -print | sort
  find /run -name '*larder*' | sort
}
systemctl start basic.target  # creates folders of its own
useradd --no-create-home engine
useradd --no-create-home router
useradd --no-create-home stranger
names >/srv/before

# The pool is small, because this test is about the sandbox.
mkdir -p /etc/systemd/system/larderd.service.d
cat >/etc/systemd/system/larderd.service.d/test.conf <<'UNIT'
[Service]
WatchdogSec=2
RestartSec=100ms
Environment=LARDER_POOL=64MiB LARDER_SLAB=8MiB LARDER_DISK=/var/lib/larder LARDER_DISK_LIMIT=512MiB
UNIT

step "install"
dpkg -i /srv/larder_*.deb /srv/liblarder-dev_*.deb >/srv/dpkg.log 2>&1 || { cat /srv/dpkg.log; fail "dpkg -i"; }
[ "$(property ActiveState)" = active ] || fail "installed, but not running"
usermod --append --groups larder engine
usermod --append --groups larder-control router
wrong=$(systemd-analyze verify "${UNITS[@]}" 2>&1 | grep -i larder || true)
[ -z "$wrong" ] || fail "systemd-analyze verify: $wrong"
for word in '^CapEff:.0*$' '^NoNewPrivs:.1$' '^Seccomp:.2$'; do
  grep -qP "$word" "/proc/$(pid)/status" || fail "the sandbox lacks $word"
done

# Threads that read from disk do not interrupt engines (storage/thread_priority.h).
promoters_yield() {
  local name
  name=$(grep -lx promoter "/proc/$(pid)/task/"*/comm | head -n 1)
  chrt -p "$(basename "$(dirname "$name")")" | grep -q SCHED_BATCH
}
eventually promoters_yield

step "put and get by an engine of another user, staged, and by the daemon's own, mapped"
as engine "$ENGINE" /run/larder staged put 0 >/dev/null || fail "put"
get staged as engine
get mapped as larder
! as stranger "$ENGINE" /run/larder staged get 0 >/dev/null 2>&1 || fail "a user outside the group was served"
[ "$(metric 'larder_sideband_refused_total{cause="process_unseen"}')" = 0 ] ||
  fail "the daemon could not see a process (no pidfds)"

step "sockets by group: engines, routers, the operator"
modes() { stat -c '%U %G %a' /run/larder/{data,sideband,control,admin}.sock | tr '\n' ' '; }
MODES="larder larder 660 larder larder 660 larder larder-control 660 larder larder 600 "
[ "$(modes)" = "$MODES" ] || fail "the daemon's sockets: $(modes)"
as router "$LARDERCTL" instances >/dev/null || fail "a router was not served"
! as router "$ENGINE" /run/larder staged get 0 >/dev/null 2>&1 || fail "a router was served as an engine"
! as engine "$LARDERCTL" instances >/dev/null 2>&1 || fail "an engine was served at control.sock"
! as router "$LARDERCTL" status >/dev/null 2>&1 || fail "a router was served at admin.sock"

step "control.sock: the group that the configuration names"
sed -i 's/^control_socket_group = .*/control_socket_group = "larder"/' /etc/larder/larderd.toml
systemctl restart larderd || fail "restart"
[ "$(stat -c %G /run/larder/control.sock)" = larder ] || fail "control_socket_group of the configuration file has no effect"
sed -i 's/^control_socket_group = .*/control_socket_group = "larder-control"/' /etc/larder/larderd.toml
systemctl restart larderd || fail "restart"
[ "$(modes)" = "$MODES" ] || fail "the daemon's sockets: $(modes)"

step "stop drains; the next daemon finds all blocks on disk"
as engine "$ENGINE" /run/larder staged put 32 >/dev/null || fail "put"
systemctl restart larderd || fail "restart"
get staged as engine
as engine "$ENGINE" /run/larder staged get 32 >/dev/null || fail "the blocks that were put last are missing"
[ "$(metric 'larder_blocks_got_total{result="disk"}')" -ge 32 ] || fail "the blocks did not come from disk"

step "kill -9: systemd starts the daemon again"
killed=$(pid)
kill -9 "$killed"
eventually eval '[ "$(pid)" != "$killed" ] && [ "$(property SubState)" = running ]'
get staged as engine

step "the daemon hangs: the watchdog ends it, and systemd starts it again"
stopped=$(pid)
kill -STOP "$stopped"
eventually eval '[ "$(pid)" != "$stopped" ] && [ "$(property SubState)" = running ]'
get staged as engine

step "a disk in another folder: works only with ReadWritePaths"
install --directory --owner larder /srv/disk
sed -i 's#LARDER_DISK=/var/lib/larder#LARDER_DISK=/srv/disk#' /etc/systemd/system/larderd.service.d/test.conf
systemctl daemon-reload
! systemctl restart larderd 2>/dev/null || fail "the daemon writes where the unit forbids it"
echo 'ReadWritePaths=/srv/disk' >>/etc/systemd/system/larderd.service.d/test.conf
systemctl daemon-reload
systemctl reset-failed larderd
systemctl restart larderd || fail "restart"
as engine "$ENGINE" /run/larder staged put 0 >/dev/null || fail "put"
systemctl restart larderd || fail "restart"
get staged as engine

step "memory is locked"
sed -i 's/LARDER_POOL=64MiB LARDER_SLAB=8MiB/LARDER_POOL=4MiB LARDER_SLAB=2MiB/' /etc/systemd/system/larderd.service.d/test.conf
systemctl daemon-reload
systemctl restart larderd
eventually grep -qP '^VmLck:\s+4096 kB' "/proc/$(pid)/status"
sed -i 's/LARDER_POOL=4MiB LARDER_SLAB=2MiB/LARDER_POOL=64MiB LARDER_SLAB=8MiB/' /etc/systemd/system/larderd.service.d/test.conf

step "a wrong configuration: systemd does not restart the daemon"
cp /etc/larder/larderd.toml /srv/
echo 'pol = "8GiB"' >>/etc/larder/larderd.toml
systemctl daemon-reload
! systemctl restart larderd 2>/dev/null || fail "the daemon accepted a wrong configuration"
[ "$(property ActiveState)" = failed ] || fail "systemd starts the daemon again"
cp /srv/larderd.toml /etc/larder/

step "socket units: a client that connects starts the daemon, and waits"
systemctl reset-failed larderd
systemctl enable --now larderd.socket larderd-control.socket larderd-admin.socket 2>/dev/null
[ "$(property ActiveState)" = inactive ] || fail "the daemon runs already"
[ "$(modes)" = "$MODES" ] || fail "the units' sockets: $(modes)"
get staged as engine
[ "$(property ActiveState)" = active ] || fail "the daemon was not started"
as router "$LARDERCTL" instances >/dev/null || fail "a router was not served"
systemctl restart larderd
get mapped as larder

step "remove"
dpkg -r larder liblarder-dev >/srv/dpkg.log 2>&1 || { cat /srv/dpkg.log; fail "dpkg -r"; }
[ "$(property ActiveState)" != active ] || fail "removed, but running"
[ ! -e /usr/bin/larderd ] && [ ! -e /run/larder ] || fail "not removed"
[ -e /etc/larder/larderd.toml ] && [ -e /var/lib/larder ] || fail "remove deleted files that only purge should delete"

step "purge"
dpkg -P larder >/srv/dpkg.log 2>&1 || { cat /srv/dpkg.log; fail "dpkg -P"; }
names >/srv/after
diff /srv/before /srv/after || fail "purged, but files are left"

step "all is well"
