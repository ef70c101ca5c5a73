#!/usr/bin/env python3
"""Checks every #include line of the tree against include_rules.toml, and names each line that breaks a rule.  It also
checks that folders form no cycle, that client and server do not include each other, and that no folder is too large.

include_test.py --self-test breaks a small tree in every way that the checks know, and expects each to be reported.
"""

import fnmatch
import pathlib
import re
import sys
import tempfile
import tomllib

import source_tree

RULES = pathlib.Path(__file__).with_name("include_rules.toml")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
OTHER_PROJECT = "tests/consumer/project/"  # built against an installed prefix, without this tree
GENERATED = ".pb.h"


def matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def folder_of(name):
    return name.rpartition("/")[0]


def is_folder(folder, pattern):
    """Returns whether `pattern` names `folder`, or is "x/**" and `folder` is x or below it."""
    if pattern.endswith("/**"):
        return folder == pattern[:-3] or folder.startswith(pattern[:-2])
    return folder == pattern


class Tree:
    """Each #include of each source, and which headers each file includes through our own headers."""

    def __init__(self, root):
        self.names = [str(path) for path in source_tree.sources(root)
                      if not str(path).startswith(OTHER_PROJECT)]
        self.lines = {name: self._read(root / name) for name in self.names}
        self.tops = {name.split("/")[0] for name in self.names if "/" in name}
        self._seen = {}

    @staticmethod
    def _read(path):
        found = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := INCLUDE.match(line):
                found.append((number, match[1], match[2]))
        return found

    def is_ours(self, header):
        return header.split("/")[0] in self.tops and "/" in header and not header.endswith(GENERATED)

    def seen(self, name):
        """Returns the third-party headers that `name` includes: {header: the chain of our headers that leads to it}."""
        if name not in self._seen:
            self._seen[name] = {}  # ends a cycle of our headers
            found = {}
            for _, _, header in self.lines.get(name, []):
                if not self.is_ours(header):
                    found.setdefault(header, [])
            for _, _, header in self.lines.get(name, []):
                if self.is_ours(header):
                    for far, chain in self.seen(header).items():
                        found.setdefault(far, [header] + chain)
            self._seen[name] = found
        return self._seen[name]

    def edges(self):
        """Returns {folder: {folder that it includes: (file, line, header) of one such line}}."""
        found = {}
        for name in self.names:
            for number, _, header in self.lines[name]:
                if header in self.lines and folder_of(header) != folder_of(name):
                    found.setdefault(folder_of(name), {}).setdefault(folder_of(header), (name, number, header))
        return found


def check_ours(tree, name, rules):
    """Checks the directions between our own files."""
    here = folder_of(name)
    rule = next((rule for rule in rules["folder"] if is_folder(here, rule["path"])), None)
    if rule is None:
        yield name, 1, f"{here} is in no entry of include_rules.toml"
        return
    installed = rules["installed"]["headers"]
    for number, quote, header in tree.lines[name]:
        if not tree.is_ours(header):
            continue
        there = folder_of(header)
        if quote != '"':
            yield name, number, f"{header} is ours: quote it"
        if header not in tree.lines:
            yield name, number, f"{header} does not exist"
        elif there != here and not any(is_folder(there, allowed) or header == allowed for allowed in rule["may"]):
            yield name, number, f"{here} may not include {header}: {rule['why']}"
        if {here.split("/")[0], there.split("/")[0]} == {"client", "server"}:
            yield name, number, f"client and server do not include each other ({header}): what both need is in proto/"
        if matches(name, installed) and not matches(header, installed):
            yield name, number, f"it is installed, but {header} is not"


def check_folders(tree, rules):
    """Checks that folders form no cycle and that no folder is too large to be read."""
    edges = tree.edges()
    for circle in circles(edges):
        lines = [edges[a][b] for a in circle for b in circle if b in edges.get(a, {})]
        for name, number, header in lines:
            yield name, number, f"{header} closes a cycle of folders: {', '.join(sorted(circle))}"
    counts = {}
    for name in tree.names:
        counts[folder_of(name)] = counts.get(folder_of(name), 0) + 1
    for folder, count in sorted(counts.items()):
        if count > rules["files_max"]:
            yield folder, 1, f"has {count} code files, more than {rules['files_max']}: divide it"


def circles(edges):
    """Returns sets of folders that reach each other (Tarjan's strongly connected components of more than one)."""
    order, low, stack, found = {}, {}, [], []

    def visit(node):
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in edges.get(node, {}):
            if other not in order:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == order[node]:
            component = set()
            while node not in component:
                component.add(stack.pop())
            if len(component) > 1:
                found.append(component)

    for node in edges:
        if node not in order:
            visit(node)
    return found


def check_third_party(tree, name, rules):
    """Checks third-party headers, including those that come through our own headers."""
    direct = {header: number for number, _, header in tree.lines[name]}
    for header, chain in tree.seen(name).items():
        # The last rule that names a header applies: special rules follow general ones.
        rule = next((rule for rule in reversed(rules["third_party"]) if matches(header, rule["headers"])), None)
        if rule is None:
            known = re.fullmatch(r"[a-z_0-9]+", header) or matches(header, rules["system"]["headers"])
            if not known and not chain:
                yield name, direct[header], f"no rule says where {header} may be included; add one to include_rules.toml"
        elif not matches(name, rule["files"]) and not (chain and rule.get("direct")):
            way = f" (through {' -> '.join(chain)})" if chain else ""
            number = direct.get(chain[0] if chain else header, 1)
            yield name, number, f"{header} of {rule['name']} is not for this file{way}: {rule['why']}"


def check(root, rules):
    tree = Tree(root)
    problems = []
    for name in tree.names:
        problems += check_ours(tree, name, rules)
        problems += check_third_party(tree, name, rules)
    problems += check_folders(tree, rules)
    return len(tree.names), problems


def self_test(rules):
    """Each line breaks one rule; the words are part of its message."""
    broken = {
        ("storage/index/a.cc", '#include "client/b.h"'): "storage/index may not include client/b.h",
        ("storage/b.cc", "#include <grpcpp/grpcpp.h>"): "of gRPC",
        ("client/b.h", '#include "server/c.h"'): "client and server do not include each other",
        ("server/q.cc", '#include "client/b.h"'): "client and server do not include each other",
        ("client/api/d.cc", '#include "storage/memory/slab_pool.h"'): "client/api may not include storage/memory/slab_pool.h",
        ("client/transport/e.cc", '#include "client/rpc/rpc_channel.h"'): "through client/rpc/rpc_channel.h",
        ("client/restore/f.cc", '#include "client/b.h"'): "client/restore may not include client/b.h",
        ("client/client.h", '#include "client/b.h"'): "it is installed, but client/b.h is not",
        ("server/verbs/o.h", '#include "server/instances/p.h"'): "closes a cycle of folders: server/instances, server/verbs",
        ("server/instances/p.h", '#include "server/verbs/o.h"'): "closes a cycle of folders: server/instances, server/verbs",
        ("server/c.h", '#include "larder/v1/engine.pb.h"'): "of generated messages",
        ("server/g.cc", "#include <mutex>"): "of locks",
        ("server/h.cc", '#include "absl/synchronization/mutex.h"'): "of Abseil's locks",
        ("server/i.cc", '#include "storage/none.h"'): "does not exist",
        ("server/j.cc", "#include <storage/mutex.h>"): "quote it",
        ("server/k.cc", "#include <boost/any.hpp>"): "no rule says where",
        ("server/l.cc", '#include "l.h"'): "no rule says where",
        ("attic/m.cc", ""): "is in no entry",
    }
    good = {
        "storage/memory/slab_pool.h": '#include "storage/mutex.h"\n',
        "storage/mutex.h": "#include <mutex>\n",
        "client/rpc/rpc_channel.h": "#include <grpcpp/channel.h>\n",
        "server/services/n.cc": '#include "larder/v1/engine.grpc.pb.h"\n#include "storage/mutex.h"\n',
    }
    crowd = {f"cuda/part_{number}.h": "" for number in range(rules["files_max"] + 1)}
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in [*good.items(), *crowd.items(), *((name, line + "\n") for (name, line) in broken)]:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        _, problems = check(root, rules)
    missed = [f"{name}: {line}" for (name, line), words in broken.items()
              if not any(where == name and words in what for where, _, what in problems)]
    if not any(where == "cuda" and "divide it" in what for where, _, what in problems):
        missed.append("cuda: a folder of too many files")
    wrong = [f"{name}: {what}" for name, _, what in problems if name in good]
    for text in missed:
        print(f"not reported: {text}")
    for text in wrong:
        print(f"reported without a reason: {text}")
    return not missed and not wrong


def main():
    rules = tomllib.loads(RULES.read_text(encoding="utf-8"))
    if sys.argv[1:] == ["--self-test"]:
        return 0 if self_test(rules) else 1
    count, problems = check(source_tree.ROOT, rules)
    for name, number, what in problems:
        print(f"{name}:{number}: {what}")
    print(f"{count} files, {len(problems)} broken rules")
    return 1 if problems or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
