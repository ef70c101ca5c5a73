"""What scheduler and workers send each other with vLLM's steps: plain values that pickle.

Lists are packed: digests 16 bytes each, page and token numbers 32-bit little-endian.
"""

import dataclasses
import typing


class Load(typing.NamedTuple):
    job: int
    request: str
    digests: bytes
    pages: bytes
    promise: int
    deadline_s: float
    by_layer: bool  # the forward of this step awaits one layer after the other


class Store(typing.NamedTuple):
    job: int
    content: tuple  # arguments of ContentSpec
    parent: bytes
    digests: bytes
    tokens: bytes
    pages: bytes
    deadline_s: float
    order: int  # in the kvlarder.PageFence of each rank


class Ended(typing.NamedTuple):
    """How a job went on one rank."""

    job: int
    blocks: int
    good: int  # loaded, stored, or stored before
    seconds: float
    rank: int


@dataclasses.dataclass
class Step:
    """Scheduler to workers."""

    loads: list = dataclasses.field(default_factory=list)
    stores: list = dataclasses.field(default_factory=list)
    cancels: list = dataclasses.field(default_factory=list)  # jobs


@dataclasses.dataclass
class Report:
    """Workers to scheduler; those of all ranks are joined."""

    ended: list = dataclasses.field(default_factory=list)

    def aggregate(self, other):
        self.ended += other.ended
        return self


@dataclasses.dataclass
class Hello:
    """What a worker tells before the first step."""

    rank: int
    layout: str
    layers: int
    block_bytes: int
    fence: tuple  # SharedFence.address
    boards: tuple | None = None  # SharedBoards.address
