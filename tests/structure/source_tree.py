"""The repository's files as git lists them: without built and ignored files."""

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def files(root=ROOT):
    """Returns paths relative to the root, sorted.  In an unpacked archive without git, skips build/ and hidden ones."""
    listed = subprocess.run(
        ["git", "-C", str(root), "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard", "-z"],
        capture_output=True, check=False) if (root / ".git").exists() else None
    if listed is not None and listed.returncode == 0:
        paths = [pathlib.PurePosixPath(name) for name in listed.stdout.decode().split("\0") if name]
    else:
        paths = [pathlib.PurePosixPath(path.relative_to(root)) for path in root.rglob("*")]
        paths = [path for path in paths
                 if path.parts[0] != "build" and not any(part.startswith((".", "__")) for part in path.parts[:-1])]
    return sorted(path for path in set(paths) if (root / path).is_file())


def sources(root=ROOT):
    return [path for path in files(root) if path.suffix in (".h", ".cc")]
