#!/usr/bin/env python3
"""Checks the documentation: each relative link of each Markdown page resolves, each file that a page names exists,
README.md fits on a page, a folder's README is short, docs/concepts.md defines each term, and docs/limits.md states the
value of each constant that it names.

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


# ---- docs/limits.md

LIMITS = "docs/limits.md"
CONSTANT = re.compile(r"`(?:\w+::)?(k[A-Z]\w*)`")
SIZES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
DURATIONS = {"milliseconds": 1, "seconds": 1000, "minutes": 60_000, "hours": 3_600_000, "days": 86_400_000}
DURATION_WORDS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "days": 86_400_000}


def evaluate(expression, text, depth=0):
    """Returns the value of a C++ constant expression as (kind, number): kind is "count", "bytes" or "ms".  Returns None
    for an expression that it does not understand."""
    kind = "count"
    def size(match):
        nonlocal kind
        kind = "bytes"
        return f"({match[2]})*{SIZES[match[1]]}"
    def duration(match):
        nonlocal kind
        kind = "ms"
        return f"({match[2]})*{DURATIONS[match[1]]}"
    def constant(match):
        found = value_of(match[1], text, depth + 1) if depth < 4 else None
        return str(found[1]) if found else match[0]
    code = expression.replace("'", "")
    code = re.sub(r"\b(KiB|MiB|GiB|TiB)\(([^()]*)\)", size, code)
    code = re.sub(r"\bstd::chrono::(milliseconds|seconds|minutes|hours|days)[({]([^(){}]*)[)}]", duration, code)
    code = re.sub(r"\b(?:uint64_t|uint32_t|size_t|int64_t|ByteCount)[({]([^(){}]*)[)}]", r"(\1)", code)
    code = re.sub(r"\b(?:\w+::)*(k[A-Z]\w*)\b", constant, code)
    code = re.sub(r"(?<=[0-9a-fA-F])(?:[uU]?[lL]{0,2})\b", "", code)
    if not re.fullmatch(r"[\d\s+*/()<>x-]+", code):
        return None
    return kind, eval(code.replace("/", "//"), {"__builtins__": {}})  # digits and operators alone


def value_of(name, text, depth=0):
    """Returns (kind, number) of a constant that `text`, C++, declares; None if it does not, or not understandably."""
    found = re.search(rf"([\w:]+)\s+{name}\s*(?:=\s*([^;,]+)|\{{([^;]*)\}})[;,]", text) or \
        re.search(rf"([\w:]+)[^;\n]*\b{name}\s*=\s*([^;,]+)()[;,]", text)
    if not found:
        return None
    value = evaluate((found[2] or found[3]).strip(), text, depth)
    if value is None:
        return None
    unit = found[1].rsplit("::", 1)[-1]
    if unit in DURATIONS and value[0] == "count":
        return "ms", value[1] * DURATIONS[unit]
    if unit == "ByteCount":
        return "bytes", value[1]
    if name.endswith(("Ms", "_ms")):
        return "ms", value[1]
    return value


def ways_to_write(value):
    """Returns the texts by which the page may state a value."""
    kind, number = value
    if kind == "ms":
        return {f"{number // unit:,} {word}" for word, unit in DURATION_WORDS.items() if number % unit == 0}
    texts = {f"{number:,}"}
    for word, unit in SIZES.items():
        if number % unit == 0:
            texts.add(f"{number // unit:,} {word}")
        if (number + 1) % unit == 0:
            texts.add(f"{(number + 1) // unit:,} {word} - 1")
    return texts


def find_value(value, cell):
    """Returns where the cell states the value, -1 if nowhere.  A bare number must not be followed by a unit."""
    ends = []
    for way in ways_to_write(value):
        bare = re.fullmatch(r"[\d,]+", way)
        unit = r"(?!\s*(?:[KMGT]iB|ms|s|min|h|days)\b)" if bare else r"(?!\w)"
        if found := re.search(rf"(?<![\d,.]){re.escape(way)}(?![\d,]*\d){unit}", cell):
            ends.append(found.start())
    return min(ends, default=-1)


def check_limits(root):
    page = root / LIMITS
    if not page.is_file():
        return
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 5 or not CONSTANT.search(cells[3]):
            continue
        headers = [root / header for header in NAMED.findall(cells[3]) if (root / header).exists()]
        text = "\n".join(header.read_text(encoding="utf-8") for header in headers)
        left = cells[2]  # values stand in the order of their constants
        for name in CONSTANT.findall(cells[3]):
            value = value_of(name, text)
            if value is None:
                yield LIMITS, f"names {name}, which {cells[3]} does not declare, or not as this test understands"
                continue
            at = find_value(value, left)
            if at < 0:
                yield LIMITS, f"says '{cells[2]}' of {name}, which is {' or '.join(sorted(ways_to_write(value)))}"
            else:
                left = left[at + 1:]


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
    problems += check_limits(root)
    return count, problems


def self_test():
    words = [" ".join(word.split()) for word in WORDS.split(",")]
    good = {
        "README.md": "See [concepts](docs/concepts.md#the-words) and `docs/concepts.md`, [elsewhere](https://example.org).\n",
        "docs/concepts.md": "# The words\n" + "".join(f"| {word} | what it is |\n" for word in words[1:]),
        "docs/changes/one.md": "`server/gone.h` moved.\n",
        "server/limits.h": "constexpr size_t kRight = 2 << 10;\nconstexpr std::chrono::seconds kWait{90};\n"
                           "constexpr uint32_t kWrong = 10'000, kOther = 7;\n",
    }
    broken = {
        "docs/link.md": ("[gone](gone.md)\n", "links to gone.md, which does not exist"),
        "docs/anchor.md": ("[gone](concepts.md#gone)\n", "no such heading"),
        "docs/name.md": ("`server/gone.h`\n", "names server/gone.h"),
        LIMITS: ("".join(f"| a | {text} | {constants}, `server/limits.h` |\n" for text, constants in [
            ("2 KiB, and 7", "`kRight`, `kOther`"), ("90 s", "`kWait`"), ("10,000", "`kWrong`"),
            ("1,000", "`kWrong`"), ("7 KiB", "`kOther`"), ("9 s", "`kWait`"), ("7, 2 KiB", "`kRight`, `kOther`"),
            ("1", "`kGone`")]), "says '1,000' of kWrong, which is 10,000"),
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
    limits = sum(name == LIMITS for name, _ in problems)
    missed = [name for name, (_, words) in broken.items()
              if not any(name == where and words in what for where, what in problems)]
    wrong = [f"{name}: {what}" for name, what in problems if name not in broken]
    print(f"not noticed: {missed}; noticed for nothing: {wrong}; long README noticed: {long}; limits: {limits} of 5")
    return not missed and not wrong and long and limits == 5


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
