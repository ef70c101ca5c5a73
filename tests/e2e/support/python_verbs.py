#!/usr/bin/python3
"""Drives every verb of Cache on a larderd that it starts, kills and starts again, with the .proto files alone.

It pins blocks, puts ten times the pool beside them, finds them again after kill -9, moves them to the disk and back,
compresses them and clears them by prefix. At each step it compares their bytes, and the tiers that a watcher heard of
with those that the blocks are in. An engine reports the blocks in its device memory and executes the directives that
callers cause.

With an engine (larder-llama), a model and a text, the blocks are those that the engine stored of that text, and at the
end the engine must give the same answer from them as before.

Usage: python_verbs.py PROTO_FOLDER LARDERD [ENGINE MODEL TEXT]
"""
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

import grpc

from larder_by_proto import (LIMIT_S, Session, chain, check_health, content_id, fetch, generate_stubs, store,
                             unpacked, variant_id)

PROTOS, LARDERD, ENGINE = sys.argv[1], sys.argv[2], sys.argv[3:]
POOL, LAYER_BYTES, BLOCKS, BLOCK_TOKENS = (160 if ENGINE else 32) << 20, 128 << 10, 8, 32


class Daemon:
    """A larderd on one folder, which can be started again there after a kill."""

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def start(self):
        self.log = open(f"{self.folder}/log", "a")
        self.process = subprocess.Popen(
            [LARDERD, "--socket-dir", self.folder, "--metrics-listen", "127.0.0.1:0", "--pool", str(POOL), "--slab",
             "8MiB", "--disk", f"{self.folder}/disk", "--disk-limit", "1GiB"],
            stdout=self.log, stderr=self.log, env={"PATH": os.environ["PATH"]})
        self.control = until(lambda: self.connect("control.sock"))
        self.data = until(lambda: self.connect("data.sock"))
        return self

    def connect(self, socket):
        """A channel whose first connection failed waits for seconds before the next, so each try has its own."""
        channel = grpc.insecure_channel(f"unix:{self.folder}/{socket}", options=[("grpc.use_local_subchannel_pool", 1)])
        try:
            return check_health(channel) == "SERVING" and channel
        except grpc.RpcError:
            channel.close()
            raise

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.data.close()
        self.control.close()


def until(condition):
    """Returns what the condition returns, once that is true."""
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            if said := condition():
                return said
        except grpc.RpcError:
            pass
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.02)


def floats(seed):
    """Bytes like those of 16-bit KV: noise in the low halves, few values in the high ones."""
    noise = bytearray(random.Random(seed).randbytes(LAYER_BYTES))
    noise[1::2] = noise[1::2].translate(bytes(0x3c | b & 0x83 for b in range(256)))
    return bytes(noise)


class Chain:
    """Blocks of one content and variant: their tokens, names and bytes."""

    def __init__(self, content, variant, tokens, payloads):
        self.content, self.variant, self.tokens, self.payloads = content, variant, tokens, payloads
        self.seed = content_id("default", content)
        step = variant.block_tokens // 16
        self.names = chain(self.seed, tokens)[step - 1::step]


def made(types, model, blocks):
    """A chain of bytes like those of 16-bit KV."""
    first = random.Random(model).randrange(50_000)
    return Chain(types.Content(model=model),
                 types.Variant(dtype="f16", layout="python/rows/1", ranks=1, block_tokens=BLOCK_TOKENS, layers=2),
                 [first + i for i in range(blocks * BLOCK_TOKENS)],
                 [[floats(f"{model}/{b}/{layer}") for layer in range(2)] for b in range(blocks)])


class Engine:
    """A real engine, which runs as one process for each question."""

    def __init__(self, folder, program, model, text):
        self.command = [program, "--model", model, "--prompt-file", text, "--question", "Who keeps the lamp?",
                        "--socket-dir", folder, "--engine-id", "llama", "--json"]

    def ask(self, *flags):
        return json.loads(subprocess.run([*self.command, *flags], check=True, stdout=subprocess.PIPE).stdout)

    def stored(self, caller):
        """Returns the chain that the engine stored, as a watcher and a reader find it."""
        info = next(i for i in caller.cache.ListInstances(caller.pb.ListInstancesRequest(), timeout=LIMIT_S).instances
                    if i.engine_id == "llama")
        content, variant = info.contents[0], info.variants[0]
        after = {}  # parent -> the block that follows it, and that block's tokens
        stream = caller.cache.WatchEvents(caller.pb.WatchEventsRequest(snapshot=True, with_tokens=True),
                                          timeout=LIMIT_S)
        for reply in stream:
            for event in reply.events:
                parent, tokens = event.stored.parent, list(event.stored.tokens)
                for at, digest in enumerate(unpacked(event.stored.digests)):
                    after[parent] = digest, tokens[at * variant.block_tokens:(at + 1) * variant.block_tokens]
                    parent = digest
            if reply.snapshot_end:
                break
        stream.cancel()
        tokens, at = [], content_id("default", content)
        while at in after:
            at, some = after[at]
            tokens += some
        ours = Chain(content, variant, tokens, [])
        ours.payloads = [[bytes(data)] for _, data in fetch(caller.engine, caller.engine_pb, variant, ours.names)]
        return ours


class Caller:
    """Calls the verbs of one daemon, until the daemon is killed."""

    def __init__(self, daemon, types):
        from larder.v1 import cache_pb2, cache_pb2_grpc, engine_pb2, engine_pb2_grpc
        self.pb, self.engine_pb, self.types = cache_pb2, engine_pb2, types
        self.cache = cache_pb2_grpc.CacheStub(daemon.control)
        self.engine = engine_pb2_grpc.EngineStub(daemon.data)

    def store(self, chain_of):
        status, names = store(self.engine, self.engine_pb, self.types, chain_of.content, chain_of.variant,
                              chain_of.tokens, chain_of.seed, chain_of.payloads)
        assert names == chain_of.names and set(status) <= {self.types.BLOCK_STATUS_OK,
                                                           self.types.BLOCK_STATUS_DUPLICATE}, status

    def tokens_in(self, tier, chain_of):
        reply = self.cache.Lookup(self.pb.LookupRequest(content=chain_of.content, tokens=chain_of.tokens),
                                  timeout=LIMIT_S)
        return sum(r.end - r.begin for i in reply.instances for t in i.tiers if t.tier == tier for r in t.ranges)

    def all_in(self, tier, chain_of):
        return self.tokens_in(tier, chain_of) == len(chain_of.tokens)

    def check_bytes(self, chain_of):
        got = fetch(self.engine, self.engine_pb, chain_of.variant, chain_of.names)
        assert [bytes(data) for _, data in got] == [b"".join(layers) for layers in chain_of.payloads]

    def scope_of(self, chain_of):
        return dict(scope=self.types.SELECTION_SCOPE_CONTENT,
                    blocks=self.types.BlockSelection(content=chain_of.content))

    def move(self, chain_of, source, to, copy=False):
        request = self.pb.MoveRequest(**{"from": source}, to=to, copy=copy, **self.scope_of(chain_of))
        last = list(self.cache.Move(request, timeout=LIMIT_S))[-1]
        assert last.blocks_done == last.blocks == last.moved, last
        return last.moved

    def compress(self, chain_of, codec, tiers=()):
        """Repeats the call while the disk, which other blocks fill, briefly has no space for second copies."""
        request = self.pb.CompressRequest(codec=codec, tiers=tiers, **self.scope_of(chain_of))
        done = last = list(self.cache.Compress(request, timeout=LIMIT_S))[-1]
        end = time.monotonic() + LIMIT_S
        while last.no_room and time.monotonic() < end:
            last = list(self.cache.Compress(request, timeout=LIMIT_S))[-1]
            done.changed += last.changed
        assert last.blocks_done == last.blocks == last.changed + last.unchanged, last
        return done


class Watcher:
    """The tiers of each block, as the events report them; it stops watching and resumes later."""

    def __init__(self, caller):
        self.caller, self.tiers, self.heard = caller, {}, 0
        self.hear(caller.pb.WatchEventsRequest(snapshot=True), lambda reply: reply.snapshot_end)

    def hear(self, request, enough):
        stream = self.caller.cache.WatchEvents(request, timeout=LIMIT_S)
        for reply in stream:
            self.boot_id = reply.boot_id or self.boot_id
            for event in reply.events:
                assert event.sequence == 0 or event.sequence > self.heard, "events came out of order"
                stored = event.HasField("stored")
                body = event.stored if stored else event.removed
                for name in unpacked(body.digests):
                    there = self.tiers.setdefault(name, set())
                    assert (body.tier in there) != stored, "a block was stored twice or removed twice"
                    (there.add if stored else there.discard)(body.tier)
                self.heard = max(self.heard, event.sequence)
            self.heard = max(self.heard, reply.sequence)
            if enough(reply):
                break
        stream.cancel()

    def go_on(self, enough):
        self.hear(self.caller.pb.WatchEventsRequest(boot_id=self.boot_id, after=self.heard), lambda _: enough())

    def all_in(self, tiers, chain_of):
        return all(self.tiers.get(name, set()) == set(tiers) for name in chain_of.names)


class DeviceEngine:
    """An attached engine that reports the blocks in its device memory and answers directives."""

    def __init__(self, caller, chain_of):
        pb = self.pb = caller.engine_pb
        self.types, self.names = caller.types, chain_of.names
        self.session = Session(caller.engine)
        self.session.ask(pb.Up(hello=pb.Hello(
            engine_id="device", role=pb.ROLE_BOTH, write_mode=pb.WRITE_MODE_STREAM,
            feature_bits=pb.FEATURE_BIT_DEVICE_BLOCKS | pb.FEATURE_BIT_DIRECTIVES)))
        self.session.ask(pb.Up(registers=[pb.Register(id=1, contents=[chain_of.content],
                                                      variants=[chain_of.variant])]))
        self.say(stored=b"".join(self.names), parent=chain_of.seed, tokens=chain_of.tokens)

    def say(self, **what):
        self.session.up.put(self.pb.Up(device_blocks=[self.pb.DeviceBlocks(variant=0, **what)]))

    def serve(self, call, kind, drops=False):
        """Executes the directive that `call` causes, and returns what `call` answers."""
        (directive,) = next(self.session.down).directives
        assert directive.kind == kind and sorted(unpacked(directive.digests)) == sorted(self.names), directive
        if drops:
            self.say(removed=directive.digests)
        done = self.pb.DirectiveDone(directive_id=directive.directive_id,
                                     status=[self.types.BLOCK_STATUS_OK] * len(self.names))
        self.session.up.put(self.pb.Up(directives_done=[done]))
        return call.result()


def drive_device(caller, ours):
    """Lookup, Pin, Unpin and Clear of blocks in an engine's device memory, and the events that a watcher gets."""
    types, pb, device = caller.types, caller.pb, caller.types.TIER_DEVICE
    engine = DeviceEngine(caller, ours)
    until(lambda: caller.all_in(device, ours))
    blocks = types.BlockSelection(variant_ids=variant_id(ours.variant), digests=b"".join(ours.names))
    ok = [types.BLOCK_STATUS_OK] * len(ours.names)
    pinned = engine.serve(caller.cache.Pin.future(
        pb.PinRequest(owner="router", tier=device, blocks=blocks), timeout=LIMIT_S),
        engine.pb.DIRECTIVE_KIND_PIN)
    assert list(pinned.blocks.status) == ok and not pinned.durable
    unpinned = engine.serve(caller.cache.Unpin.future(
        pb.UnpinRequest(owner="router", tier=device, blocks=blocks), timeout=LIMIT_S),
        engine.pb.DIRECTIVE_KIND_UNPIN)
    assert unpinned.unpinned == len(ours.names)
    watch = caller.cache.WatchEvents(pb.WatchEventsRequest(snapshot=True, tiers=[device]), timeout=LIMIT_S)
    told = set()
    for reply in watch:
        told |= {name for event in reply.events for name in unpacked(event.stored.digests)}
        if reply.snapshot_end:
            break
    assert told == set(ours.names)
    cleared = engine.serve(caller.cache.Clear.future(
        pb.ClearRequest(tiers=[device], **caller.scope_of(ours)), timeout=LIMIT_S),
        engine.pb.DIRECTIVE_KIND_DROP, drops=True)
    assert [(t.tier, t.blocks) for t in cleared.tiers] == [(device, len(ours.names))], cleared
    for reply in watch:
        told -= {name for event in reply.events for name in unpacked(event.removed.digests)}
        if not told:
            break
    watch.cancel()
    assert caller.tokens_in(device, ours) == 0
    engine.session.bye(engine.pb.Up(bye=True))
    print(f"an engine's device memory: {len(ours.names)} blocks looked up, pinned, unpinned, watched and cleared there")


def main(folder):
    from larder.v1 import types_pb2 as types
    host, disk = types.TIER_HOST, types.TIER_DISK
    with Daemon(folder) as daemon:
        caller = Caller(daemon, types)
        engine = Engine(folder, *ENGINE) if ENGINE else None
        if engine:
            cold = engine.ask("--wait-durable")
            ours = engine.stored(caller)
            print(f"an engine stored {cold['stored_blocks']} blocks, {cold['stored_bytes']} bytes of KV")
            assert cold["hit_tokens"] == 0 and len(ours.names) == cold["stored_blocks"] >= BLOCKS
        else:
            ours = made(types, "ours", BLOCKS)
            caller.store(ours)
        blocks = len(ours.names)
        ours_id = variant_id(ours.variant)
        caller.check_bytes(ours)
        pin = caller.pb.PinRequest(owner="router", tier=host, ttl_ms=600_000,
                                   blocks=types.BlockSelection(variant_ids=ours_id, content=ours.content,
                                                               tokens=ours.tokens))
        pinned = caller.cache.Pin(pin, timeout=LIMIT_S)
        assert list(pinned.blocks.status) == [types.BLOCK_STATUS_OK] * blocks and pinned.durable
        until(lambda: caller.all_in(disk, ours))
        others = 10 * POOL // (2 * LAYER_BYTES)
        for at in range(32):
            caller.store(made(types, f"pressure {at}", others // 32))
        assert caller.all_in(host, ours)
        assert caller.tokens_in(host, made(types, "pressure 0", others // 32)) == 0
        caller.check_bytes(ours)
        print(f"a pin held {blocks} blocks against {others} others, ten times the pool")

        daemon.kill()
        caller = Caller(daemon.start(), types)
        until(lambda: caller.all_in(host, ours))
        caller.check_bytes(ours)
        print("the pin held across kill -9: the blocks came back to HOST with equal bytes")
        assert caller.cache.Unpin(caller.pb.UnpinRequest(owner="router", all=True), timeout=LIMIT_S).unpinned == blocks

        watcher = Watcher(caller)
        assert watcher.all_in([host, disk], ours)
        assert caller.move(ours, host, disk) == blocks and caller.tokens_in(host, ours) == 0
        watcher.go_on(lambda: watcher.all_in([disk], ours))
        assert caller.move(ours, disk, host) == blocks and caller.tokens_in(disk, ours) == 0
        caller.check_bytes(ours)
        assert caller.move(ours, host, disk, copy=True) == blocks
        caller.check_bytes(ours)
        watcher.go_on(lambda: watcher.all_in([host, disk], ours))
        print("moved to the disk and back; the watcher got the events in order, and resumed twice")

        done = caller.compress(ours, types.CODEC_LOSSLESS)
        assert done.changed == 2 * blocks and done.bytes_after < (0.9 if engine else 0.8) * done.bytes_before
        caller.check_bytes(ours)
        assert caller.move(ours, host, disk) == blocks
        daemon.kill()
        caller = Caller(daemon.start(), types)
        until(lambda: caller.all_in(disk, ours))
        prefetched = caller.cache.Prefetch(caller.pb.PrefetchRequest(
            blocks=types.BlockSelection(variant_ids=ours_id, digests=b"".join(ours.names)), ttl_ms=60_000),
            timeout=LIMIT_S)
        assert set(prefetched.blocks.status) <= {types.BLOCK_STATUS_OK, types.BLOCK_STATUS_PENDING}
        until(lambda: caller.all_in(host, ours))
        caller.check_bytes(ours)
        assert caller.compress(ours, types.CODEC_LOSSLESS, [disk]).unchanged == blocks
        assert caller.compress(ours, types.CODEC_IDENTITY).changed == blocks
        caller.check_bytes(ours)
        print(f"compressed from {done.bytes_before} to {done.bytes_after} bytes, read across kill -9, decoded")
        if engine:
            again = engine.ask("--no-store")
            assert again["hit_tokens"] == len(ours.tokens) and again["answer"] == cold["answer"], again
            print(f"the engine restored {again['hit_tokens']} tokens and gave the same answer")

        drive_device(caller, ours)

        watcher = Watcher(caller)
        prefix = types.BlockSelection(content=ours.content, tokens=ours.tokens[:5 * ours.variant.block_tokens])
        cleared = caller.cache.Clear(caller.pb.ClearRequest(scope=types.SELECTION_SCOPE_PREFIX, blocks=prefix,
                                                            pinned=True), timeout=LIMIT_S)
        assert {(t.tier, t.blocks) for t in cleared.tiers} == {(host, blocks - 4), (disk, blocks - 4)}, cleared
        left = ours.names[:4]
        watcher.go_on(lambda: all(watcher.tiers.get(name, set()) == ({host, disk} if name in left else set())
                                  for name in ours.names))
        got = fetch(caller.engine, caller.engine_pb, ours.variant, ours.names)
        assert [start.status for start, _ in got] == [types.BLOCK_STATUS_OK] * 4 + [types.BLOCK_STATUS_MISSING] * (blocks - 4)
        assert [bytes(data) for _, data in got[:4]] == [b"".join(layers) for layers in ours.payloads[:4]]
        print("cleared the blocks that begin with a prefix of five blocks; the first four are unchanged")
        if engine:
            last = engine.ask("--no-store")
            assert last["hit_tokens"] == 4 * ours.variant.block_tokens and last["answer"] == cold["answer"], last
            print("the engine restored those four, computed the rest and gave the same answer")


with tempfile.TemporaryDirectory() as stubs, tempfile.TemporaryDirectory() as home:
    generate_stubs(PROTOS, stubs)
    main(home)
