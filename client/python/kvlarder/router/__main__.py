"""python -m kvlarder.router: starts the router, and ends it at SIGTERM or SIGINT once its requests have ended."""

import asyncio
import contextlib
import logging
import resource
import signal
import sys

from kvlarder.router import options

LOG = logging.getLogger("larder.router")
NEEDED = "the router needs Python 3.11, aiohttp and prometheus_client, which vLLM has, too: pip install 'kvlarder[router]'"


def main(arguments=None):
    chosen = options.parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        if sys.version_info < (3, 11):
            raise ImportError(f"this is Python {sys.version.split()[0]}")
        import aiohttp  # noqa: F401
        import prometheus_client  # noqa: F401
    except ImportError as error:
        print(f"{NEEDED} ({error})", file=sys.stderr)
        return 1
    raise_file_limit()
    try:
        asyncio.run(serve(chosen))
    except OSError as error:  # of the address
        print(f"the router cannot listen at {chosen.listen}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def raise_file_limit():
    """Lets this process open as many files as it may: a request takes two, its client's connection and its server's."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # then the limit stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def serve(chosen):
    """Serves until SIGTERM or SIGINT.  Raises OSError if it cannot listen."""
    from kvlarder.router.router import Router

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    async with Router(chosen) as router:
        LOG.info("listens at %s, policy %s, %d servers", router.address, chosen.policy, len(chosen.servers))
        await ended.wait()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)  # another one ends the process at once
        LOG.info("ends: %d requests are under way", router.proxy.requests)
    LOG.info("has ended")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
