#!/usr/bin/env python3
"""Breaks a copy of the tree in one way after another (mutants.toml), and checks that the named tests fail.

mutants.py --list            lists the mutants and the tests that must catch each
mutants.py --check           checks that every edit applies to the tree; CI runs this
mutants.py --self-test       checks that --check reports an edit that does not apply
mutants.py [--jobs N] [NAME...]  builds, runs and judges the named mutants, or all of them
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "structure"))
import source_tree  # noqa: E402

COPY = ROOT / "build" / "mutants" / "tree"
BUILD = COPY / "build" / "release"
TEST_LIMIT_S = 600


def read_mutants():
    with open(pathlib.Path(__file__).with_name("mutants.toml"), "rb") as file:
        return tomllib.load(file)["mutant"]


def misplaced(root, mutants):
    """Yields the edits that do not apply."""
    for mutant in mutants:
        for edit in mutant["edit"]:
            path = root / edit["file"]
            found = path.read_text(encoding="utf-8").count(edit["from"]) if path.is_file() else 0
            if found != 1:
                yield f"{mutant['name']}: {edit['file']} has {found} occurrences, not one, of: {edit['from'].strip()}"
            elif edit["from"] == edit["to"]:
                yield f"{mutant['name']}: changes nothing"


def apply(root, mutant):
    for edit in mutant["edit"]:
        path = root / edit["file"]
        path.write_text(path.read_text(encoding="utf-8").replace(edit["from"], edit["to"]), encoding="utf-8")


def copy_tree():
    """Updates the copy.  Equal files keep their times, so that little is built again."""
    names = source_tree.files(ROOT)
    for name in names:
        source, target = ROOT / name, COPY / name
        if target.is_file() and not target.is_symlink() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    wanted = {COPY / name for name in names}
    for path in [path for path in COPY.rglob("*") if path.is_file() and not path.is_relative_to(COPY / "build")]:
        if path not in wanted:
            path.unlink()


def run(command, log, **options):
    with open(log, "a", encoding="utf-8") as file:
        return subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False, **options).returncode


def build(targets, jobs, log):
    configure = ["cmake", "--preset", "release", "-DLARDER_TESTS=ON", f"-DPython3_EXECUTABLE={sys.executable}"]
    if not (BUILD / "build.ninja").is_file() and run(configure, log, cwd=COPY) != 0:
        return False
    return run(["cmake", "--build", str(BUILD), "--parallel", str(jobs), "--target", *targets], log, cwd=COPY) == 0


def outcome(test):
    """Returns 'passed', 'skipped', or a text that begins with 'failed: ' and names the tests."""
    program = next((path for path in BUILD.rglob(test["target"]) if path.is_file() and os.access(path, os.X_OK)), None)
    if program is None:
        return "not built"
    environment = dict(os.environ)
    if "scale" in test:
        environment["LARDER_TEST_SCALE"] = str(test["scale"])
    try:
        done = subprocess.run([str(program), f"--gtest_filter={test['filter']}"], capture_output=True, text=True,
                              timeout=TEST_LIMIT_S, check=False, cwd=program.parent, env=environment,
                              errors="replace")
    except subprocess.TimeoutExpired:
        return f"still runs after {TEST_LIMIT_S} s"
    failed = sorted({line.split("]")[1].split(" (")[0].split(",")[0].strip() for line in done.stdout.splitlines()
                     if line.startswith("[  FAILED  ]") and "." in line})
    if failed:
        return "failed: " + ", ".join(failed)
    if done.returncode != 0:
        return f"exited with {done.returncode} without naming a failed test"
    return "skipped" if "[  SKIPPED ]" in done.stdout else "passed"


def sound(mutants, jobs, log):
    """Returns whether the tests pass in an unbroken tree.  If they fail there, they prove nothing."""
    tests = {(test["target"], test["filter"]): test for mutant in mutants for test in mutant["test"]}
    if not build(sorted({target for target, _ in tests}), jobs, log):
        print(f"the unbroken tree does not build; see {log}")
        return False
    good = True
    for (target, filter_), test in sorted(tests.items()):
        was = outcome(test)
        print(f"unbroken: {target} {filter_}: {was}", flush=True)
        good = good and was in ("passed", "skipped")
    return good


def judge(mutant, jobs, log):
    """Returns whether each of the mutant's tests failed, and prints the outcomes."""
    apply(COPY, mutant)
    if not build(sorted({test["target"] for test in mutant["test"]}), jobs, log):
        print(f"{mutant['name']}: does not build; see {log}", flush=True)
        return False
    caught = True
    for test in mutant["test"]:
        was = outcome(test)
        skipped = was == "skipped" and test.get("root", False)
        good = was.startswith("failed: ") or skipped
        caught = caught and good
        print(f"{mutant['name']} ({mutant['what']}): {'caught' if good and not skipped else 'skipped' if skipped else 'NOT CAUGHT'}"
              f" by {test['target']}: {was}", flush=True)
    return caught


def run_mutants(mutants, jobs):
    log = ROOT / "build" / "mutants" / "build.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    copy_tree()
    if not sound(mutants, jobs, log):
        return False
    caught = 0
    for mutant in mutants:
        copy_tree()  # undoes the previous mutant
        caught += judge(mutant, jobs, log)
    copy_tree()
    print(f"{caught} of {len(mutants)} mutants caught")
    return caught == len(mutants)


def list_mutants(mutants):
    for mutant in mutants:
        print(f"{mutant['name']:4} {mutant['what']}")
        for test in mutant["test"]:
            print(f"       {test['target']} {test['filter']}{' (root)' if test.get('root') else ''}")


def check(mutants):
    problems = list(misplaced(ROOT, mutants))
    names = {path.stem for path in source_tree.sources(ROOT)}
    for mutant in mutants:
        problems += [f"{mutant['name']}: there is no {test['target']}.cc" for test in mutant["test"]
                     if test["target"] not in names]
    print("\n".join(problems + [f"{len(mutants)} mutants, {len(problems)} problems"]))
    return not problems and bool(mutants)


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "a.cc").write_text("one two two\n", encoding="utf-8")
        edits = {"good": ("one", "none"), "gone": ("three", ""), "twice": ("two", ""), "same": ("one", "one")}
        mutants = [{"name": name, "edit": [{"file": "a.cc", "from": old, "to": new}]}
                   for name, (old, new) in edits.items()]
        noticed = {problem.split(":")[0] for problem in misplaced(root, mutants)}
        apply(root, mutants[0])
        applied = (root / "a.cc").read_text(encoding="utf-8") == "none two two\n"
    print(f"reported: {sorted(noticed)}; applied: {applied}")
    return noticed == {"gone", "twice", "same"} and applied


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="list the mutants and the tests that must catch each")
    parser.add_argument("--check", action="store_true", help="check that every edit applies to the tree")
    parser.add_argument("--self-test", action="store_true", help="check that --check reports an edit that does not apply")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at once")
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to run; default: all")
    wanted = parser.parse_args()
    if wanted.self_test:
        return 0 if self_test() else 1
    mutants = read_mutants()
    unknown = set(wanted.names) - {mutant["name"] for mutant in mutants}
    if unknown:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}; see --list")
    if wanted.list:
        list_mutants(mutants)
        return 0
    if wanted.check:
        return 0 if check(mutants) else 1
    if not check(mutants):
        return 1
    return 0 if run_mutants([m for m in mutants if not wanted.names or m["name"] in wanted.names], wanted.jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
