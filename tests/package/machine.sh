#!/usr/bin/env bash
# A temporary copy of this machine: an overlay over /, a systemd, and one script as its only service.  Runs as the first
# process of new namespaces (mounts, processes, cgroups, network, IPC), and everything in them ends with it.
#
#   machine.sh BUILD WORK SCRIPT     BUILD appears as /srv/build, the packages of WORK in /srv; prints to WORK/console
set -euo pipefail

BUILD=$1 WORK=$2 SCRIPT=$3

mount --make-rprivate /
ip link set lo up 2>/dev/null || true
mkdir -p "$WORK/copy"
mount -t tmpfs tmpfs "$WORK/copy"
mkdir "$WORK/copy/upper" "$WORK/copy/overlay" "$WORK/copy/root"
R=$WORK/copy/root
mount -t overlay -o "lowerdir=/,upperdir=$WORK/copy/upper,workdir=$WORK/copy/overlay" overlay "$R"
mount -t proc proc "$R/proc"
mount -t sysfs -o ro sysfs "$R/sys"
for folder in run tmp dev; do mount -t tmpfs tmpfs "$R/$folder"; done

if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
  mount -t cgroup2 cgroup2 "$R/sys/fs/cgroup"
else
  mount -t tmpfs tmpfs "$R/sys/fs/cgroup"
  mkdir "$R/sys/fs/cgroup/unified" "$R/sys/fs/cgroup/systemd"
  mount -t cgroup2 cgroup2 "$R/sys/fs/cgroup/unified"
  mount -t cgroup -o none,name=systemd,xattr cgroup "$R/sys/fs/cgroup/systemd"
fi

mkdir "$R"/dev/{shm,pts,mqueue,hugepages}
mknod -m 666 "$R/dev/null" c 1 3
mknod -m 666 "$R/dev/zero" c 1 5
mknod -m 666 "$R/dev/full" c 1 7
mknod -m 666 "$R/dev/random" c 1 8
mknod -m 666 "$R/dev/urandom" c 1 9
mknod -m 666 "$R/dev/tty" c 5 0
mknod -m 666 "$R/dev/ptmx" c 5 2
ln -s /proc/self/fd "$R/dev/fd"
touch "$R/dev/console"
mount --bind "$WORK/console" "$R/dev/console"

mkdir "$R/srv/build" "$R/srv/old"  # not in /tmp, which systemd empties
mount --bind -o ro "$BUILD" "$R/srv/build"
cp "$WORK"/*.deb "$SCRIPT" "$R/srv/"
rm -f "$R/usr/sbin/policy-rc.d"  # container images forbid packages to start services
: >"$R/etc/fstab"
cat >"$R/etc/systemd/system/inside.service" <<'UNIT'
[Unit]
DefaultDependencies=no
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
ExecStart=/bin/bash /srv/inside.sh
StandardOutput=file:/dev/console
StandardError=file:/dev/console
UNIT

cd "$R"
pivot_root . srv/old
exec chroot . /usr/bin/env -i container=other PATH=/usr/sbin:/usr/bin /bin/sh -c '
  umount -l /srv/old && mount --make-rshared / &&
  exec /usr/lib/systemd/systemd --system --unit=inside.service --log-target=null --show-status=0'
