#!/usr/bin/env bash
# Fetches promtool, which checks the metrics in a test, into the cache; prints its folder.  It comes out of Debian's package
# of Prometheus, which is not installed: that would start a server on this machine.
set -euo pipefail

CACHE=${LARDER_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set; set HOME or LARDER_CACHE}/.cache}/larder}
FOLDER=$CACHE/promtool

usage() {
  cat <<HELP
Usage: deploy/fetch-promtool.sh [--where]
Fetches promtool (19 MB, by apt-get download) to $FOLDER
and prints that folder on standard output.  Does nothing when it is there, or installed.
  --where   fetches nothing; fails when it is not there
The cache folder: LARDER_CACHE, else XDG_CACHE_HOME/larder, else ~/.cache/larder.
HELP
}

say() { printf '%s\n' "fetch-promtool: $*" >&2; }
fail() { say "$*"; exit 1; }

WHERE=
case ${1:-} in
  '') ;;
  --where) WHERE=1 ;;
  --help | -h) usage; exit 0 ;;
  *) usage >&2; fail "unknown option '$1'" ;;
esac
if command -v promtool >/dev/null; then
  dirname "$(command -v promtool)"
  exit 0
fi
if [ -x "$FOLDER/promtool" ]; then
  echo "$FOLDER"
  exit 0
fi
[ -z "$WHERE" ] || fail "nothing is in $FOLDER: run deploy/fetch-promtool.sh"

mkdir -p "$CACHE"
WORK=$(mktemp -d "$CACHE/.promtool.XXXXXX")
trap 'rm -rf "$WORK"' EXIT
say "downloading promtool (19 MB)"
# apt compares the package with the hash that Debian has signed.
(cd "$WORK" && apt-get -q -o Acquire::Retries=3 -o APT::Sandbox::User= download prometheus) >"$WORK/log" 2>&1 ||
  { tail -n 5 "$WORK/log" >&2; fail "the download failed: is there a network, and is apt-get update up to date?"; }
mkdir "$WORK/folder"
dpkg-deb --fsys-tarfile "$WORK"/prometheus_*.deb | tar -x -C "$WORK/folder" --strip-components=3 ./usr/bin/promtool ||
  fail "the package has no /usr/bin/promtool"
# Another fetch may have been quicker: its result is as good.
mv -T "$WORK/folder" "$FOLDER" 2>/dev/null || [ -x "$FOLDER/promtool" ] || fail "cannot write $FOLDER"
echo "$FOLDER"
