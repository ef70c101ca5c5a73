"""The versions of SGLang that the storage was tested with."""

# (package, version, Python, what of it ran); deploy/fetch-python.sh --sglang fetches the first.
TESTED = (("sglang", "0.5.23", "3.11", "its storage interface, host pools, cache controller and fault injector, on a CPU"),)


def described():
    """Returns the versions for a message: "sglang 0.5.23"."""
    return ", ".join(f"{package} {version}" for package, version, _, _ in TESTED)
