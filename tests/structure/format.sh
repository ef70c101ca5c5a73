#!/usr/bin/env bash
# Lists C++ files that clang-format would change, and lines of more than 100 columns, which it does not change in
# comments.  --write rewrites the files first.  Exits with 1 if anything is left to fix.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

CLANG_FORMAT=${CLANG_FORMAT:-clang-format-14}  # other versions break lines differently
COLUMNS_MAX=100

usage() { printf '%s\n' "Usage: tests/structure/format.sh [--write] [FILE...]"; }

WRITE=
case ${1:-} in
  --write) WRITE=1; shift ;;
  --help | -h) usage; exit 0 ;;
  -*) usage >&2; exit 2 ;;
esac
if ! command -v "$CLANG_FORMAT" >/dev/null; then
  printf '%s\n' "format: no $CLANG_FORMAT; deploy/install-deps.sh --with-linters installs it" >&2
  exit 2
fi
if [ $# -eq 0 ]; then
  mapfile -d '' -t files < <(git ls-files -coz --exclude-standard -- '*.h' '*.cc')
  if [ ${#files[@]} -eq 0 ]; then
    printf '%s\n' "format: git lists no files here; name them" >&2
    exit 2
  fi
  set -- "${files[@]}"
fi

[ -z "$WRITE" ] || "$CLANG_FORMAT" -i -- "$@"
existing=()
for file in "$@"; do
  [ ! -e "$file" ] || existing+=("$file")  # git still knows of files that were deleted
done
[ ${#existing[@]} -gt 0 ] || exit 0
left=0
# One process for all files takes a seventh of the time that one for each takes.
if ! said=$("$CLANG_FORMAT" --dry-run --Werror -- "${existing[@]}" 2>&1); then
  names=$(printf '%s\n' "$said" | sed -n 's/:[0-9]*:[0-9]*: error: .*clang-format.*/: not formatted/p' | sort -u)
  printf '%s\n' "${names:-$said}"
  left=1
fi
# A character beyond ASCII counts as one column.
if ! LC_ALL=C.UTF-8 awk -v max="$COLUMNS_MAX" \
    'length($0) > max { print FILENAME ":" FNR ": " length($0) " columns"; bad = 1 } END { exit bad }' "${existing[@]}"; then
  left=1
fi
exit "$left"
