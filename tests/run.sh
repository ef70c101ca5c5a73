#!/usr/bin/env bash
# Builds the tests and runs them.  The last line of the output counts the cases: "N passed, N failed".
# Writes only below build/.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PRESET=release
JOBS=$(nproc)
LABEL=
PATTERN=
: "${LARDER_TEST_SCALE:=0.1}"

LLAMA=ON
UNITY=OFF

usage() {
  cat <<HELP
Usage: tests/run.sh [--full] [--preset NAME] [--label REGEX] [--tests REGEX] [--jobs N] [--unity] [--without-llama]
Configures and builds a preset, runs its tests, and ends with "N passed, N failed".  Exit code 0 when none failed.
  --full          long counts in full (LARDER_TEST_SCALE=1.0) instead of a tenth of them
  --preset NAME   release (default), dev, asan, tsan or clang
  --label REGEX   only tests with a matching label
  --tests REGEX   only tests with a matching name
  --jobs N        compilers at once (default: cores, here $JOBS)
  --unity         compiles the sources of a library or program together: a new folder is built sooner, a changed source takes
                  longer to build again
  --without-llama leaves out the tests that need llama.cpp.  They run in the preset release only; llama.cpp is built
                  once, into the cache (deploy/build-llama.sh)
HELP
}

say() { printf '%s\n' "tests: $*"; }
fail() { printf '%s\n' "tests: $*" >&2; exit 2; }

while [ $# -gt 0 ]; do
  case $1 in
    --full) LARDER_TEST_SCALE=1.0 ;;
    --preset) PRESET=${2:?--preset needs a name}; shift ;;
    --label) LABEL=${2:?--label needs a regular expression}; shift ;;
    --tests) PATTERN=${2:?--tests needs a regular expression}; shift ;;
    --jobs) JOBS=${2:?--jobs needs a number}; shift ;;
    --unity) UNITY=ON ;;
    --without-llama) LLAMA=OFF ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; fail "unknown option '$1'" ;;
  esac
  shift
done
export LARDER_TEST_SCALE
cd "$ROOT"
BUILD=build/$PRESET
mkdir -p "$BUILD"

# What is tested must not depend on an earlier configuration of this folder, for example by the quickstart.
PREFIX=
if [ "$PRESET" != release ]; then
  LLAMA=OFF
elif [ "$LLAMA" = ON ]; then
  PREFIX=$(deploy/build-llama.sh --jobs "$JOBS") ||
    fail "no llama.cpp; the lines above say why, and --without-llama leaves out its tests"
fi

say "building $PRESET"
if ! cmake --preset "$PRESET" -DLARDER_LLAMA="$LLAMA" -DCMAKE_PREFIX_PATH="$PREFIX" -DLARDER_TESTS=ON -DCMAKE_UNITY_BUILD="$UNITY" -DPython3_EXECUTABLE=/usr/bin/python3 >"$BUILD/configure.log" 2>&1; then
  tail -n 40 "$BUILD/configure.log"
  fail "cannot configure; deploy/install-deps.sh installs what is needed"
fi
# The log has no colours and no redrawn lines, so that errors are easy to find.
if ! cmake --build "$BUILD" --parallel "$JOBS" >"$BUILD/build.log" 2>&1; then
  tail -n 60 "$BUILD/build.log"
  fail "does not build; the whole log is $BUILD/build.log"
fi

# Each GoogleTest program writes its cases here; every other test counts as one case.
CASES=$ROOT/$BUILD/test-results
rm -rf "$CASES"
mkdir -p "$CASES"
say "running with long counts at $LARDER_TEST_SCALE of their full length"
# The scripts use the distribution's Python, which has its gRPC, and write no compiled files beside their sources.
# Three tests run at once, because most of them wait half of their time.  Those that keep a core busy for minutes share two
# locks (RESOURCE_LOCK core_1 and core_2), so that the third waits beside two of them.  A test that needs the machine for
# itself is marked RUN_SERIAL, and one that takes minutes has that as its COST in seconds, so that it begins before shorter ones.
ctest_code=0
if PROMTOOL=$(deploy/fetch-promtool.sh --where 2>/dev/null); then export PATH=$PATH:$PROMTOOL; fi
PYTHONDONTWRITEBYTECODE=1 GTEST_OUTPUT="xml:$CASES/" ctest --test-dir "$BUILD" --parallel 3 --output-on-failure \
  --no-tests=error --output-junit "$CASES/ctest.junit" \
  ${LABEL:+--label-regex "$LABEL"} ${PATTERN:+--tests-regex "$PATTERN"} || ctest_code=$?

/usr/bin/python3 - "$CASES" "$ctest_code" <<'PYTHON'
"""Counts cases: those that a GoogleTest program wrote, or else one for each ctest test."""
import pathlib
import sys
import xml.etree.ElementTree as xml

folder, ctest_code = pathlib.Path(sys.argv[1]), int(sys.argv[2])
by_program = {path.stem: xml.parse(path).getroot() for path in folder.glob("*.xml")}
passed = failed = skipped = 0
ends = []
junit = folder / "ctest.junit"
tests = xml.parse(junit).getroot().iter("testcase") if junit.exists() else []
for test in tests:
    broke = test.get("status") == "fail"
    if broke:
        lines = (test.findtext("system-out") or "").strip().splitlines()
        wrong = [line for line in lines if any(sign in line for sign in ("Failure", "Error", "FAIL"))]
        ends.append("\n".join([f"failed {test.get('name')}; signs of it, and its last lines:", *wrong[:10], "...", *lines[-20:]]))
    cases = by_program.get(test.get("name"))
    if test.get("status") in ("notrun", "disabled"):
        skipped += 1
    elif cases is None:
        passed += not broke
        failed += broke
    else:
        bad = sum(int(cases.get(kind, 0)) for kind in ("failures", "errors"))
        left_out = [case for case in cases.iter("testcase")
                    if case.get("status") == "notrun" or case.get("result") == "skipped"]
        out = len(left_out)
        for case in left_out:
            why = case.find("skipped")
            why = why.get("message", "") if why is not None else "disabled"
            print(f"skipped {case.get('classname')}.{case.get('name')}: {' '.join(why.split())}")
        # A program that failed without a failed case (a crash, a timeout, a leak) counts as a failure.
        bad = max(bad, 1) if broke else bad
        failed += bad
        skipped += out
        passed += max(0, int(cases.get("tests", 0)) - bad - out)
if ctest_code != 0 and failed == 0:
    failed = 1
if skipped:
    print(f"{skipped} skipped")
for end in ends:  # again, because what the tests print is long
    print(end)
print(f"{passed} passed, {failed} failed")
sys.exit(1 if failed else 0)
PYTHON
