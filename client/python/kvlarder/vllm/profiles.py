"""What restores have learnt of an engine on this machine, kept between its runs: TOML files of kvlarder.Profile.

The files are guesses for the next run, so nothing fails if they cannot be read or written.
"""

import pathlib
import re

import kvlarder
from kvlarder import weights

DOUBT = 0.2  # of what another run has measured: the machine may be busier now
GUESSED = "?"  # at the end of a channel's name: nothing was loaded over it yet
ERRORS = (OSError, LookupError, ValueError, RuntimeError)


def folder():
    return pathlib.Path(weights.cache_folder(), "profiles")


def read(engine_id, names):
    """Returns the Profile of an engine, or None if there is none with these channels."""
    try:
        found = kvlarder.read_profile(str(_path(engine_id)))
    except ERRORS:
        return None
    if [channel.name.rstrip(GUESSED) for channel in found.channels] != names or found.layers != 1:
        return None
    return kvlarder.Profile(model=found.model, layers=1, compute=found.compute, channels=found.channels, doubt=DOUBT)


def write(engine_id, profile, observed):
    """observed: channels over which something was loaded, by name; their names lose the mark of a guess."""
    names = [channel.name.rstrip(GUESSED) for channel in profile.channels]
    channels = [
        kvlarder.ChannelCost(name if name in observed else channel.name, channel.bytes_per_s)
        for name, channel in zip(names, profile.channels)
    ]
    try:
        folder().mkdir(parents=True, exist_ok=True)
        kept = kvlarder.Profile(model=profile.model, layers=1, compute=profile.compute, channels=channels)
        kvlarder.write_profile(kept, str(_path(engine_id)))
    except ERRORS:
        pass


def described():
    """Yields (engine, what was learnt of it) for people."""
    try:
        paths = sorted(folder().glob("*.toml"))
    except OSError:
        return  # of another user
    for path in paths:
        try:
            profile = kvlarder.read_profile(str(path))
        except ERRORS:
            continue
        chunk, cost = 1024, profile.compute
        seconds = cost.fixed_s + cost.linear_s * chunk + cost.quadratic_s * chunk * chunk / 2
        rates = [f"{one.name} {one.bytes_per_s / 1e9:.3g} GB/s" for one in profile.channels if not one.name.endswith(GUESSED)]
        yield path.stem, f"computes the first 1,024 tokens in {seconds:.3g} s; loads: {', '.join(rates)}"


def _path(engine_id):
    return folder() / (re.sub(r"[^A-Za-z0-9._-]", "_", engine_id) + ".toml")
