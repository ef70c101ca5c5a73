#!/usr/bin/env python3
"""Checks rules for every file and folder: it begins with a comment, has a README, names no path of one machine, and, in
the product, reads its time through storage/clock.h.

tree_test.py --self-test breaks a small tree in every way that the checks know, and expects each to be reported.
"""

import pathlib
import re
import sys
import tempfile

import source_tree

CODE = {".h", ".cc", ".py", ".sh", ".cmake", ".proto"}
COMMENT = {".h": "//", ".proto": "//", ".cmake": "#"}
# Home folders and mounts of one machine.  /tmp, /run and /usr exist on every machine.
MACHINE_PATH = re.compile(r"(?<![\w.$}])/(?:home|root|work|Users|mnt|media)/\w")
# Folders of the product.
PRODUCT = ("client/", "cuda/", "proto/", "server/", "storage/")
CLOCK = "storage/clock.h"
EXAMPLE = "tests/consumer/project/example.cc"
EXAMPLE_PAGE = "docs/engines/cpp.md"


def text_of(path):
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""  # golden bytes
    except FileNotFoundError:
        return ""


def check_file(name, text):
    lines = text.splitlines()
    suffix = pathlib.PurePosixPath(name).suffix
    if suffix in COMMENT and not text.startswith(COMMENT[suffix]):
        yield name, 1, "does not begin with a comment: what it is, what it does not promise, ownership, threads"
    if suffix == ".h" and "#pragma once" not in lines:
        yield name, 1, "has no #pragma once"
    for number, line in enumerate(lines, 1):
        if match := MACHINE_PATH.search(line):
            yield name, number, f"names a path of one machine: {match[0]}..."
        if name.startswith(PRODUCT) and name != CLOCK and "steady_clock::now" in line:
            yield name, number, f"reads the time by itself; use SteadyNow or a Clock ({CLOCK})"


def check_folders(names, root):
    """Checks that a folder with code has a README.md, or that the nearest README.md above it describes the folder.  A
    folder of tests that mirrors a folder with a README.md needs none."""
    folders = sorted({str(pathlib.PurePosixPath(name).parent) for name in names
                      if pathlib.PurePosixPath(name).suffix in CODE})
    for folder in folders:
        above = pathlib.PurePosixPath(folder)
        mirrored = f"{folder.removeprefix('tests/')}/README.md" if folder.startswith("tests/") else ""
        if f"{above}/README.md" in names or mirrored in names or folder.startswith("."):
            continue
        while str(above) != "." and f"{above}/README.md" not in names:
            above = above.parent
        readme = root / above / "README.md"
        wanted = str(pathlib.PurePosixPath(folder).relative_to(above)) + "/"
        if not readme.is_file() or wanted not in text_of(readme):
            yield folder, 1, f"has no README.md, and {above}/README.md does not say what {wanted} is"


def check_example(root):
    """The C++ page's example is the one that the consumer project compiles."""
    block = re.search(r"```cpp\n(.*?)```", text_of(root / EXAMPLE_PAGE), re.DOTALL)
    if block is None:
        yield EXAMPLE_PAGE, 1, "has no ```cpp example"
    elif block[1] != text_of(root / EXAMPLE):
        yield EXAMPLE_PAGE, 1, f"its example is not {EXAMPLE}, which is compiled"


def check(root):
    names = {str(path) for path in source_tree.files(root)}
    problems = []
    for name in sorted(names):
        problems += check_file(name, text_of(root / name))
    problems += check_folders(names, root)
    problems += check_example(root)
    return len(names), problems


def self_test():
    good = {
        "README.md": "Folders: `a/` and `a/b/`.\n",
        "server/README.md": "",
        EXAMPLE_PAGE: "```cpp\nint main() {}\n```\n",
        EXAMPLE: "int main() {}\n",
        "tests/README.md": "`consumer/project/`\n",
        "a/good.h": "// What it is.\n#pragma once\n",
        "a/b/c/README.md": "",
        "tests/a/b/c/good.cc": "",
        "a/b/good.cc": 'const char* a = "$XDG/home/user"; // /tmp/file, /run/larder\n',
    }
    broken = {
        "a/bare.h": ("#pragma once\n", "does not begin with a comment"),
        "a/twice.h": ("// What it is.\n", "no #pragma once"),
        "a/mine.sh": ("cd /ho" + "me/someone\n", "path of one machine"),
        "c/orphan.cc": ("", "has no README.md"),
        "server/early.h": ("// What it is.\n#pragma once\nauto now = std::chrono::steady_clock::now();\n",
                           "reads the time by itself"),
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in list(good.items()) + [(name, text) for name, (text, _) in broken.items()]:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        _, problems = check(root)
        (root / EXAMPLE).write_text("int main() { return 1; }\n", encoding="utf-8")
        stale = list(check_example(root))
    missed = [name for name, (_, words) in broken.items()
              if not any((name == where or name.startswith(where + "/")) and words in what for where, _, what in problems)]
    wrong = [f"{name}: {what}" for name, _, what in problems if name in good or name not in broken and name != "c"]
    print(f"not noticed: {missed}; noticed for nothing: {wrong}; stale example noticed: {bool(stale)}")
    return not missed and not wrong and bool(stale)


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 0 if self_test() else 1
    count, problems = check(source_tree.ROOT)
    for name, number, what in problems:
        print(f"{name}:{number}: {what}")
    print(f"{count} files, {len(problems)} broken rules")
    return 1 if problems or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
