#!/usr/bin/env python3
"""Runs a linter over the tree: clang's thread-safety analysis, clang-format or shellcheck.

linters_test.py LINTER [--build FOLDER] [--self-test]
  thread-safety   clang++ -Wthread-safety over the product sources that use locks, with the flags of
                  FOLDER/compile_commands.json; over all product sources, which takes several times as long, if
                  LARDER_TEST_SCALE is 1.  GCC, which builds the tree, ignores the annotations of storage/mutex.h.
  format          tests/structure/format.sh
  shellcheck      every shell script
--self-test gives the linter one small file that breaks its rules, and one that does not.
Exits with 77 where the linter is not installed, except in continuous integration (CI=true), where that is a failure.
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import source_tree

PRODUCT = ("storage/", "server/", "client/", "proto/", "cuda/")
SKIPPED = 77
FULL = ("1", "1.0")  # LARDER_TEST_SCALE of tests/run.sh --full
HERE = pathlib.Path(__file__).parent
SHELLCHECK = ["shellcheck", "--severity=warning"]
# Folders that a build may leave out: they need llama.cpp, nanobind or a CUDA toolkit.
OPTIONAL = ("client/llama_cpp/", "client/python/", "cuda/")
LOCKS = re.compile(r"\b(Mutex|MutexLock|LARDER_GUARDED_BY|LARDER_REQUIRES|LARDER_EXCLUDES)\b")
THREAD_SAFETY = ["-O0", "-Wno-everything", "-Wthread-safety", "-Werror=thread-safety"]


def run(command, cwd=source_tree.ROOT, stdin=None):
    done = subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout + done.stderr


# ---- thread-safety

def kept_flags(command):
    """Returns the flags that decide how a source is read: include paths, definitions and the language's version."""
    flags = []
    words = iter(shlex.split(command)[1:])
    for word in words:
        if word in ("-I", "-isystem", "-D"):
            flags += [word, next(words)]
        elif word.startswith(("-I", "-isystem", "-D", "-std=")):
            flags.append(word)
    return flags


def compiled_sources(path):
    """Returns the sources of ours in a file that the build compiles: itself, or what a file of a unity build includes."""
    sources = [path]
    if path.parent.name == "Unity":
        sources = map(pathlib.Path, re.findall(r'^#include "(.+)"', path.read_text(encoding="utf-8"), re.MULTILINE))
    return [str(source.relative_to(source_tree.ROOT)) for source in sources if source.is_relative_to(source_tree.ROOT)]


def uses_locks(source):
    """Returns whether the source or its header names a lock or an annotation of one."""
    paths = [source_tree.ROOT / source, (source_tree.ROOT / source).with_suffix(".h")]
    return any(LOCKS.search(path.read_text(encoding="utf-8")) for path in paths if path.exists())


def product_sources(build):
    """Returns [(sources, flags)] of the product's sources that the build compiles, those together that it compiles
    together; and those that it does not compile: parts that an option or a missing package leaves out."""
    database = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    wanted = {str(path) for path in source_tree.sources() if str(path).startswith(PRODUCT) and path.suffix == ".cc"}
    left, found = set(wanted), []
    for entry in database:
        if new := sorted(left.intersection(compiled_sources(pathlib.Path(entry["file"])))):
            found.append((new, kept_flags(entry["command"])))
            left.difference_update(new)
    return found, sorted(left)


def check_thread_safety(groups, folder, cwd=source_tree.ROOT):
    """Yields what clang says about each [(sources, flags)] that it does not accept.  folder: below cwd, so that ccache knows
    what it compiles there in another tree, too."""
    # ccache keeps the results of compilations, but none of -fsyntax-only, so this compiles.  cmake/larder_build.cmake
    # explains the variables.
    cached = ["env", f"CCACHE_BASEDIR={cwd}", "CCACHE_NOHASHDIR=1", "ccache"] if shutil.which("ccache") else []

    def one(number, group):
        names, flags = group
        source = folder / f"{number}_{pathlib.Path(names[0]).name}"
        source.write_text("".join(f'#include "{name}"\n' for name in names), encoding="utf-8")
        return names, *run([*cached, "clang++", *THREAD_SAFETY, f"-I{cwd}", *flags, "-c", source, "-o", source.with_suffix(".o")], cwd)

    folder.mkdir(exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for names, passed, output in pool.map(one, itertools.count(), groups):
            if not passed:
                yield f"{', '.join(names)}:\n{output}"


# ---- shellcheck

def shell_scripts():
    for path in source_tree.files():
        if path.suffix == ".sh":
            yield str(path)
        elif path.suffix == "":
            with open(source_tree.ROOT / path, "rb") as file:
                if file.readline().startswith((b"#!/usr/bin/env bash", b"#!/bin/bash", b"#!/bin/sh")):
                    yield str(path)


# ---- on small files

THREAD_SAFETY_SAMPLE = """#include "storage/mutex.h"
class Counter {{
 public:
  void Add() {{ {lock} ++value_; }}
 private:
  larder::Mutex mu_;
  int value_ LARDER_GUARDED_BY(mu_) = 0;
}};
void Use(Counter& counter) {{ counter.Add(); }}
"""
SAMPLES = {  # of each linter: file name, a good text, a bad one
    "thread-safety": ("sample.cc", THREAD_SAFETY_SAMPLE.format(lock="larder::MutexLock lock(mu_);"),
                      THREAD_SAFETY_SAMPLE.format(lock="")),
    "format": ("sample.cc", "// A sample.\nint main() { return 0; }\n", "// A sample.\nint main(){return 0;}\n"),
    "shellcheck": ("sample.sh", '#!/bin/sh\ncd "$1" || exit 1\n', '#!/bin/sh\ncd "$1"\n'),
}


def lint_sample(linter, path):
    if linter == "thread-safety":
        return not list(check_thread_safety([([path.name], ["-std=c++20", f"-I{source_tree.ROOT}"])], path.parent / "lint", path.parent))
    if linter == "format":
        return run([HERE / "format.sh", path])[0]
    return run([*SHELLCHECK, path])[0]


def self_test(linter):
    name, good, bad = SAMPLES[linter]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / name
        shutil.copy(source_tree.ROOT / ".clang-format", folder)
        path.write_text(good, encoding="utf-8")
        accepts_good = lint_sample(linter, path)
        path.write_text(bad, encoding="utf-8")
        accepts_bad = lint_sample(linter, path)
    print(f"{linter}: accepts the good sample: {accepts_good}; accepts the bad one: {accepts_bad}")
    return accepts_good and not accepts_bad


def lint(linter, build):
    if linter == "thread-safety":
        groups, left_out = product_sources(build)
        if os.environ.get("LARDER_TEST_SCALE") not in FULL:
            groups = [([name for name in names if uses_locks(name)], flags) for names, flags in groups]
        missing = [name for name in left_out if not name.startswith(OPTIONAL)]
        complaints = list(check_thread_safety([group for group in groups if group[0]], build / "lint"))
        complaints += [f"{name}: the build does not compile it" for name in missing]
        print(*complaints, f"{sum(len(names) for names, _ in groups)} sources, {len(complaints)} complaints", sep="\n")
        return not complaints
    names = [str(path) for path in source_tree.sources()] if linter == "format" else list(shell_scripts())
    if not names:
        print("found no file")
        return False
    passed, output = run([HERE / "format.sh", *names] if linter == "format" else [*SHELLCHECK, *names])
    print(output)
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("linter", choices=SAMPLES)
    parser.add_argument("--build", type=pathlib.Path, help="has compile_commands.json")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if options.linter == "thread-safety" and not options.self_test and options.build is None:
        parser.error("thread-safety needs --build")
    program = {"thread-safety": "clang++", "format": "clang-format-14"}.get(options.linter, options.linter)
    if shutil.which(program) is None:
        print(f"no {program}: deploy/install-deps.sh --with-linters installs it")
        return 1 if os.environ.get("CI") == "true" else SKIPPED
    build = options.build and options.build.resolve()
    return 0 if (self_test(options.linter) if options.self_test else lint(options.linter, build)) else 1


if __name__ == "__main__":
    sys.exit(main())
