#!/usr/bin/env python3
"""Checks the documentation: each relative link of each Markdown page resolves, each file that a page names exists,
README.md fits on a page, a folder's README is short, and docs/concepts.md defines each term.

docs_test.py --self-test breaks a small tree in every way that the checks know, and expects each to be reported.
"""

import pathlib
import re
import sys
import tempfile

import source_tree

README_LINES_MAX = 130
FOLDER_README_LINES_MAX = 25
# Folders of the product; READMEs of bench/, tests/ and others may need tables.
PRODUCT = ("client/", "cuda/", "proto/", "server/", "storage/")
# Terms of the project, each of which docs/concepts.md defines.
WORDS = """block, segment, digest chain, content, variant, layout, record, tier, pool, slab, extent, engine, session,
registration, rank, group, stage, chunk, channel, spill, promote, lease, pin, reservation, restore, meet, codec, sideband,
session socket, directive, quarantine, ghost entry, staging segment, token, share"""
TOPS = "bench|client|cmake|cuda|deploy|docs|proto|server|storage|tests"
NAMED = re.compile(rf"`((?:{TOPS})/[\w./-]+\.(?:h|cc|cu|py|sh|proto|md|toml|cmake|txt|service))`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HISTORY = "docs/changes/"  # names files as they were at the time


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text):
    """Returns the anchors of a page's headings, as GitHub makes them."""
    seen, found = {}, set()
    for line in without_code(text).splitlines():
        if heading := re.match(r"#+\s+(.*)$", line):
            words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1].strip()).replace("`", "").lower()
            slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            count = seen.get(slug, 0)
            seen[slug] = count + 1
            found.add(f"{slug}-{count}" if count else slug)
    return found


def check_links(root, name, text):
    prose = re.sub(r"`[^`\n]*`", lambda code: code[0] if "](" in code[0] else " ", without_code(text))
    for link in LINK.finditer(prose):
        if re.match(r"[a-z]+:", link[1]):
            continue
        file, _, anchor = link[1].partition("#")
        target = (root / name).parent / file if file else root / name
        if not target.exists():
            yield name, f"links to {link[1]}, which does not exist"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
            yield name, f"links to {link[1]}, and that page has no such heading"


def check_names(root, name, text):
    for file in sorted(set(NAMED.findall(text))):
        if not name.startswith(HISTORY) and not (root / file).exists():
            yield name, f"names {file}, which does not exist"


def check_length(name, text):
    lines = len(text.splitlines())
    if name == "README.md" and lines > README_LINES_MAX:
        yield name, f"has {lines} lines, more than {README_LINES_MAX}: move some of it to docs/"
    if name.startswith(PRODUCT) and name.endswith("README.md") and lines > FOLDER_README_LINES_MAX:
        yield name, f"has {lines} lines, more than {FOLDER_README_LINES_MAX}: move some of it to docs/"


def check_words(root):
    page = root / "docs" / "concepts.md"
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    defined = {term.strip(" `*").lower() for row in re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
               for term in re.split(r",| \(", row)}
    for word in (" ".join(word.split()) for word in WORDS.split(",")):
        if word not in defined:
            yield "docs/concepts.md", f"does not define '{word}'"


def check(root):
    problems, count = [], 0
    for path in source_tree.files(root):
        if path.suffix != ".md":
            continue
        count += 1
        name, text = str(path), (root / path).read_text(encoding="utf-8")
        for part in (check_links(root, name, text), check_names(root, name, text), check_length(name, text)):
            problems += part
    problems += check_words(root)
    return count, problems


def self_test():
    words = [" ".join(word.split()) for word in WORDS.split(",")]
    good = {
        "README.md": "See [concepts](docs/concepts.md#the-words) and `docs/concepts.md`, [elsewhere](https://example.org).\n",
        "docs/concepts.md": "# The words\n" + "".join(f"| {word} | what it is |\n" for word in words[1:]),
        "docs/changes/one.md": "`server/gone.h` moved.\n",
    }
    broken = {
        "docs/link.md": ("[gone](gone.md)\n", "links to gone.md, which does not exist"),
        "docs/anchor.md": ("[gone](concepts.md#gone)\n", "no such heading"),
        "docs/name.md": ("`server/gone.h`\n", "names server/gone.h"),
        "server/README.md": ("line\n" * (FOLDER_README_LINES_MAX + 1), "more than 25"),
        "docs/concepts.md": (good["docs/concepts.md"], f"does not define '{words[0]}'"),
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {**good, **{name: text for name, (text, _) in broken.items()}}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        _, problems = check(root)
        (root / "README.md").write_text("line\n" * (README_LINES_MAX + 1), encoding="utf-8")
        long = any(name == "README.md" for name, _ in check(root)[1])
    missed = [name for name, (_, words) in broken.items()
              if not any(name == where and words in what for where, what in problems)]
    wrong = [f"{name}: {what}" for name, what in problems if name not in broken]
    print(f"not noticed: {missed}; noticed for nothing: {wrong}; long README noticed: {long}")
    return not missed and not wrong and long


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 0 if self_test() else 1
    count, problems = check(source_tree.ROOT)
    for name, what in problems:
        print(f"{name}: {what}")
    print(f"{count} pages, {len(problems)} problems")
    return 1 if problems or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
