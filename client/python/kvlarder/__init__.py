"""Larder for Python: the planner and the scheduler of restores, and put and get through a running larderd.

    session = kvlarder.connect().attach("my-engine")
    variant = session.register([content], [kvlarder.VariantSpec(...)])[0]
    digests = kvlarder.chain(session.seed(content), tokens)
    session.put(variant, [kvlarder.PutBlock(digest, parent, tokens, segments)])

Times are in seconds and sizes in bytes.  A digest is a bytes object of length 16, and a channel is an int from 1 on (0
is nowhere).  Errors are Python's own exceptions, with a message that says what is wrong and what to do: ValueError,
LookupError, TimeoutError, ConnectionError, PermissionError, RuntimeError.
"""

from kvlarder._core import *  # noqa: F403
from kvlarder._core import __version__  # noqa: F401
