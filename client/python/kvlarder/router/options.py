"""The options of the router's command line.

Thread-safety: an Options is a value that never changes.
"""

import argparse
import dataclasses
import os
import urllib.parse

from kvlarder.options import option

POLICIES = ("kv", "round_robin")
API_KEY = "LARDER_ROUTER_API_KEY"  # in the environment, because a command line is seen by everybody


@dataclasses.dataclass(frozen=True)
class Address:
    """A server: the id under which its engine attaches to Larder, and where it serves HTTP."""

    engine_id: str
    url: str  # without a slash at its end

    @property
    def name(self):
        """What metrics and log lines call it: host and port."""
        return self.url.split("://", 1)[1]


@dataclasses.dataclass(frozen=True)
class Options:
    servers: tuple = ()  # of Address; not empty
    listen: str = option("127.0.0.1:8100", doc="HOST:PORT of the router; port 0 takes a free one")
    socket_dir: str = option("", doc="folder of larderd's sockets; empty: as kvlarder.connect")
    tenant: str = option("", doc="tenant of the engines; empty: this user's own")
    policy: str = option("kv", doc="kv, or round_robin, which asks neither larderd nor the servers")
    close: float = option(0.25, least=0.0, most=10.0, doc="prices that differ by this part of the lower one are close")
    prefill_rate: float = option(
        4_000.0, least=1.0, most=1e7, doc="tokens per second that a server computes of a prompt, until the router has seen it"
    )
    running_weight: float = option(
        0.02, least=0.0, most=1.0, doc="what a token of a running request costs a new one, in tokens of its prompt, until the router has seen it"
    )
    server_requests: int = option(256, least=1, most=100_000, doc="requests that one server has at once at most")
    queue: int = option(256, least=0, most=100_000, doc="requests that wait for a server at most; more are refused")
    queue_timeout: float = option(30.0, least=0.0, most=3_600.0, doc="seconds that a request waits for a server at most")
    tries: int = option(3, least=1, most=16, doc="servers that a request is sent to at most, one after the other")
    max_body: int = option(8 << 20, least=1_024, most=1 << 30, doc="bytes of a request at most")
    max_bodies: int = option(
        256 << 20, least=1_024, most=1 << 40, doc="bytes of all requests at most that no server has begun to answer"
    )
    body_timeout: float = option(30.0, least=0.1, most=3_600.0, doc="seconds in which a client sends its request")
    answer_timeout: float = option(3_600.0, least=1.0, most=86_400.0, doc="seconds in which a server begins to answer")
    silence_timeout: float = option(300.0, least=0.1, most=86_400.0, doc="seconds between two parts of an answer")
    stall_timeout: float = option(60.0, least=0.1, most=86_400.0, doc="seconds in which a client takes a part of an answer")
    lookup_timeout: float = option(0.05, least=0.001, most=5.0, doc="seconds that larderd has for a Lookup")
    tokenize_timeout: float = option(1.0, least=0.01, most=60.0, doc="seconds that a server has to turn a prompt into tokens")
    health_interval: float = option(2.0, least=0.05, most=600.0, doc="seconds between two looks at a server")
    health_timeout: float = option(5.0, least=0.05, most=600.0, doc="seconds that a server has to say that it is well")
    drain_timeout: float = option(30.0, least=0.0, most=3_600.0, doc="seconds that requests have to end after SIGTERM")

    @property
    def host_and_port(self):
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


FLAGS = tuple(field for field in dataclasses.fields(Options) if field.name != "servers")


def flag_of(name):
    return "--" + name.replace("_", "-")


def address(text):
    """Returns the Address of ENGINE_ID=URL.  Raises ArgumentTypeError."""
    engine_id, equals, url = text.partition("=")
    parts = urllib.parse.urlsplit(url)
    if "@" in parts.netloc:
        raise argparse.ArgumentTypeError(
            "the URL of a server must have no user name or password, because logs and metrics show it; clients send their "
            f"keys themselves, and the router's own is in ${API_KEY}"
        )
    right = parts.scheme in ("http", "https") and parts.hostname and not parts.query and not parts.fragment
    if not equals or not engine_id or not right:
        raise argparse.ArgumentTypeError(f"'{text}' is not ENGINE_ID=URL, for example vllm-0=http://127.0.0.1:8000")
    return Address(engine_id, url.rstrip("/"))


def _value(field):
    kind, limits = type(field.default), field.metadata

    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is no {'whole ' if kind is int else ''}number") from None
        if limits["least"] is not None and not limits["least"] <= value <= limits["most"]:
            raise argparse.ArgumentTypeError(f"it must be {limits['least']} to {limits['most']}, not {text}")
        return value

    return parse


def _listen(text):
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"'{text}' is not HOST:PORT")
    return text


def parser():
    made = argparse.ArgumentParser(
        prog="python -m kvlarder.router",
        description="Routes requests of OpenAI's API to the vLLM server that answers them soonest, by the KV that Larder has "
        "for each. It serves /v1/completions and /v1/chat/completions; other paths below /v1/, and /tokenize, go to any server "
        "that is up. /health and /metrics are its own.",
        epilog=f"The router's own questions to the servers carry the key in ${API_KEY}, if it is set. "
        "SIGTERM: no new request is taken, and those under way may end.",
    )
    made.add_argument(
        "--server",
        action="append",
        required=True,
        type=address,
        metavar="ENGINE_ID=URL",
        dest="servers",
        help="a vLLM server, and the option engine_id of its connector; give one for each server",
    )
    for field in FLAGS:
        made.add_argument(
            flag_of(field.name),
            default=field.default,
            type=_listen if field.name == "listen" else _value(field),
            choices=POLICIES if field.name == "policy" else None,
            metavar=None if field.name == "policy" else {int: "N", float: "X", str: "TEXT"}[type(field.default)],
            help=f"{field.metadata['doc']} (default: {field.default if field.default != '' else 'empty'})",
        )
    return made


def parse(arguments=None):
    """Returns the Options of a command line.  Ends the process with a sentence if it is wrong."""
    made = parser()
    values = vars(made.parse_args(arguments))
    urls = [one.url for one in values["servers"]]
    if len(set(urls)) < len(urls):
        made.error("two servers have the same URL")
    return Options(**{**values, "servers": tuple(values["servers"])})


def api_key():
    """Returns the headers of the router's own questions to servers."""
    key = os.environ.get(API_KEY, "")
    return {"Authorization": f"Bearer {key}"} if key else {}
