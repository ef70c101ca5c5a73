"""What tells the weights of one model apart from those of another.

Engines that have equal weights must name them equally, and others otherwise, whichever process and machine they are in.
Thread-safety: pure functions.
"""

import hashlib
import os
import pathlib

SAMPLE_BYTES = 1 << 20


def tagged_hash(*parts):
    """Returns 32 hex digits over (tag, value) pairs, of which no two lists have the same bytes."""
    hasher = hashlib.sha256()
    for tag, value in parts:
        for text in (tag, str(value)):
            data = text.encode()
            hasher.update(len(data).to_bytes(8, "little") + data)
    return hasher.hexdigest()[:32]


def file_hash(path, full):
    """Returns a hash of a file: of all its bytes, or of its size and its first and last MiB."""
    hasher = hashlib.sha256()
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if full or size <= 2 * SAMPLE_BYTES:
            while chunk := file.read(SAMPLE_BYTES):
                hasher.update(chunk)
        else:
            hasher.update(file.read(SAMPLE_BYTES))
            file.seek(size - SAMPLE_BYTES)
            hasher.update(file.read(SAMPLE_BYTES))
    return f"{size}:{hasher.hexdigest()}"


WEIGHT_FILES = (".safetensors", ".bin", ".gguf", ".pt", ".pth")


def weights_of(path, full):
    """Returns what tells the weights in a file or folder apart from others.  Raises ValueError if it has none."""
    path = pathlib.Path(path)
    files = [path] if path.is_file() else sorted(f for f in path.iterdir() if f.suffix in WEIGHT_FILES)
    if not files:
        raise ValueError(f"{path} has no weights ({', '.join(WEIGHT_FILES)}); set the option 'revision'")
    return tagged_hash(*((file.name if path.is_dir() else "", file_hash(file, full)) for file in files))


def model_name(model):
    """Returns a hub's id as it is, and of a path the last part, because two checkouts of one model should share."""
    return pathlib.Path(model).name if os.path.exists(model) else model
