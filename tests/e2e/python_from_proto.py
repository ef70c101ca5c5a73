#!/usr/bin/python3
"""A client of larderd in another language, from proto/larder/v1 and docs/format.md alone.

Generates its stubs into a temporary folder; attaches, stores, looks up, fetches, asks for statistics and drains.
Needs python3-grpcio, python3-grpc-tools and python3-xxhash.

Usage: python_from_proto.py PROTO_FOLDER SOCKET_FOLDER
"""
import hashlib
import queue
import struct
import sys
import tempfile

import grpc
import xxhash
from grpc_tools import protoc

PROTOS, SOCKETS = sys.argv[1], sys.argv[2]
LIMIT_S = 20
PIECE_BYTES = 1 << 20


def generate_stubs(folder):
    files = [f"larder/v1/{name}.proto" for name in ("types", "cache", "engine", "admin")]
    code = protoc.main(["protoc", f"-I{PROTOS}", f"--python_out={folder}", f"--grpc_python_out={folder}", *files])
    assert code == 0, "protoc failed"
    sys.path.insert(0, folder)


# ---- docs/format.md, section 1

def name(message):
    return hashlib.sha256(message).digest()[:16]


def spec_id(tag, fields):
    message = tag
    for number, field in enumerate(fields, 1):
        value = struct.pack("<I", field) if isinstance(field, int) else field
        message += struct.pack("<BI", number, len(value)) + value
    return name(message)


def content_id(tenant, c):
    fields = [tenant, c.model, c.revision, c.salt, c.lora, c.multimodal]
    return spec_id(b"larder/content/v1\0", [f if isinstance(f, bytes) else f.encode() for f in fields])


def variant_id(v):
    return spec_id(b"larder/variant/v1\0", [v.dtype.encode(), v.layout.encode(), v.rank, v.ranks, v.group.encode(),
                                            v.block_tokens, v.layers, v.first_layer])


def chain(seed, tokens):
    digests = []
    for at in range(0, len(tokens) // 16 * 16, 16):
        seed = name(b"larder/chain/v1\0" + seed + struct.pack("<16I", *tokens[at:at + 16]))
        digests.append(seed)
    return digests


# ---- section 2

def parse_record_header(header):
    magic, version, size = struct.unpack_from("<4sII", header)
    assert (magic, version, size) == (b"LRDR", 2, len(header))
    assert struct.unpack_from("<Q", header, size - 8)[0] == xxhash.xxh3_64_intdigest(header[:-8])
    segments, a, d = struct.unpack_from("<HBB", header, 76)
    table = (104 + a + d + 7) // 8 * 8
    entries = [struct.unpack_from("<HBBIQIIQ", header, table + 32 * i) for i in range(segments)]
    return {"variant": header[16:32], "digest": header[32:48], "parent": header[48:64], "content": header[88:104],
            "segments": [{"bytes": e[5], "xxh3": e[7]} for e in entries]}


# ---- the calls

def check_health(channel):
    check = channel.unary_unary("/grpc.health.v1.Health/Check")  # bytes both ways: {1: status}, 1 = SERVING
    return {b"\x08\x01": "SERVING", b"\x08\x02": "NOT_SERVING"}[check(b"", timeout=LIMIT_S)]


def reflected_services(channel):
    info = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    answer = next(info(iter([b"\x3a\x00"]), timeout=LIMIT_S))  # {7: list_services}
    return [s for s in ("larder.v1.Cache", "larder.v1.Engine", "larder.v1.Admin") if s.encode() in answer]


class Session:
    """An Attach stream: what is put into the queue goes up."""

    def __init__(self, stub):
        self.up = queue.Queue()
        self.down = stub.Attach(iter(self.up.get, None), timeout=LIMIT_S)

    def ask(self, message):
        self.up.put(message)
        return next(self.down)

    def bye(self, message):
        self.up.put(message)
        self.up.put(None)
        assert list(self.down) == []
        assert self.down.code() == grpc.StatusCode.OK, self.down.details()


def store(engine, pb, types, content, variant, tokens, seed, payloads):
    def messages():
        parent = b""
        for i, layers in enumerate(payloads):
            part = tokens[i * variant.block_tokens:(i + 1) * variant.block_tokens]
            table = types.SegmentTable(bytes=[len(p) for p in layers],
                                       xxh3=[xxhash.xxh3_64_intdigest(p) for p in layers])
            first = dict(content=content, variant=variant, engine_id="python") if i == 0 else {}
            yield pb.StoreBlocksRequest(block=pb.StoreBlock(parent=parent, tokens=part, segments=table), **first)
            data = b"".join(layers)
            for at in range(0, len(data), PIECE_BYTES):
                yield pb.StoreBlocksRequest(data=data[at:at + PIECE_BYTES])
            parent = chain(parent or seed, part)[-1]

    reply = engine.StoreBlocks(messages(), timeout=LIMIT_S)
    return list(reply.status), unpacked(reply.digests)


def unpacked(digests):
    return [digests[i:i + 16] for i in range(0, len(digests), 16)]


def fetch(engine, pb, variant, digests, **layers):
    request = pb.FetchBlocksRequest(variant=variant, digests=b"".join(digests), **layers)
    blocks = []
    for message in engine.FetchBlocks(request, timeout=LIMIT_S):
        if message.HasField("start"):
            blocks.append((message.start, bytearray()))
        blocks[-1][1].extend(message.data)
    return blocks


def main():
    from larder.v1 import (admin_pb2, admin_pb2_grpc, cache_pb2, cache_pb2_grpc, engine_pb2 as pb, engine_pb2_grpc,
                           types_pb2 as types)
    data = grpc.insecure_channel(f"unix:{SOCKETS}/data.sock")
    control = grpc.insecure_channel(f"unix:{SOCKETS}/admin.sock")
    engine, cache = engine_pb2_grpc.EngineStub(data), cache_pb2_grpc.CacheStub(data)
    admin = admin_pb2_grpc.AdminStub(control)

    assert check_health(data) == check_health(control) == "SERVING"
    services = reflected_services(data) + reflected_services(control)
    assert set(services) == {"larder.v1.Cache", "larder.v1.Engine", "larder.v1.Admin"}, services
    print("health SERVING; reflection shows", ", ".join(sorted(set(services))))

    content = types.Content(model="python", revision="1", salt=b"\x00salt")
    variant = types.Variant(dtype="f16", layout="python/rows/1", ranks=1, block_tokens=32, layers=3)
    tokens = [(7 * i + 3) % 50_000 for i in range(5 * 32 + 20)]

    session = Session(engine)
    attached = session.ask(pb.Up(hello=pb.Hello(engine_id="python", role=pb.ROLE_BOTH,
                                                write_mode=pb.WRITE_MODE_STREAM))).attached
    assert attached.session_id and attached.write_mode == pb.WRITE_MODE_STREAM and attached.tenant == "default"
    registered = session.ask(pb.Up(registers=[pb.Register(id=1, contents=[content], variants=[variant])])).registered[0]
    assert registered.status == types.BLOCK_STATUS_OK, registered
    seed = content_id(attached.tenant, content)
    assert registered.content_ids == seed and registered.variant_ids == variant_id(variant)
    print(f"attached as session {attached.session_id}; content {seed.hex()} and variant "
          f"{variant_id(variant).hex()} agree with the daemon's")

    digests = chain(seed, tokens)
    names = digests[1::2]  # of blocks of 32 tokens
    payloads = [[bytes((b * 31 + layer * 7 + i * i) % 256 for i in range(1500 + 700 * layer)) for layer in range(3)]
                for b in range(4)]
    payloads.append([bytes(2_500_000)] * 3)  # several messages
    status, stored = store(engine, pb, types, content, variant, tokens, seed, payloads)
    assert status == [types.BLOCK_STATUS_OK] * 5 and stored == names, status
    again, _ = store(engine, pb, types, content, variant, tokens, seed, payloads[:1])
    assert again == [types.BLOCK_STATUS_DUPLICATE]
    print(f"stored {len(stored)} blocks by byte stream; their names agree with the chain computed here")

    by_tokens = cache.Lookup(cache_pb2.LookupRequest(content=content, tokens=tokens), timeout=LIMIT_S)
    by_digests = cache.Lookup(cache_pb2.LookupRequest(content=content, digests=b"".join(digests)), timeout=LIMIT_S)
    assert by_tokens == by_digests and by_tokens.boot_id == attached.boot_id
    (instance,) = by_tokens.instances
    (hit,) = instance.tiers
    total = sum(len(layer) for layers in payloads for layer in layers)
    assert instance.engine_id == "python" and instance.attached and hit.tier == types.TIER_HOST
    assert hit.contiguous_tokens == 160 and hit.bytes >= total and hit.load_s > 0
    assert [(r.begin, r.end) for r in hit.ranges] == [(0, 160)]
    other = cache.Lookup(cache_pb2.LookupRequest(content=types.Content(model="other"), tokens=tokens), timeout=LIMIT_S)
    assert not other.instances
    print(f"lookup by tokens and by digests: {hit.contiguous_tokens} of {len(tokens)} tokens, {hit.bytes} bytes")

    blocks = fetch(engine, pb, variant, names + [b"\0" * 16])
    assert [start.key for start, _ in blocks] == list(range(6))
    assert [start.status for start, _ in blocks] == [types.BLOCK_STATUS_OK] * 5 + [types.BLOCK_STATUS_MISSING]
    for i, layers in enumerate(payloads):
        start, got = blocks[i]
        header = parse_record_header(start.record_header)
        assert header["variant"] == variant_id(variant) and header["digest"] == names[i]
        assert header["parent"] == (names[i - 1] if i else seed) and header["content"] == seed
        assert bytes(got) == b"".join(layers), f"wrong bytes of block {i}"
        assert [s["xxh3"] for s in header["segments"]] == [xxhash.xxh3_64_intdigest(p) for p in layers]
    ((start, got),) = fetch(engine, pb, variant, [names[1]], first_layer=1, layers=1)
    assert (start.first_segment, start.segments) == (1, 1) and bytes(got) == payloads[1][1]
    print("fetched all blocks and one layer of one block: bytes, hashes and record headers are right")

    grant = session.ask(pb.Up(acquires=[pb.Acquire(id=2, variant=registered.variants[0], digests=b"".join(names),
                                                   what=pb.ACQUIRE_WHAT_PROMISE)])).grants[0]
    assert grant.lease_id and list(grant.status) == [types.BLOCK_STATUS_OK] * 5
    assert admin.Stats(admin_pb2.StatsRequest(), timeout=LIMIT_S).tenants[0].leases == 1
    assert list(cache.QueryIp(cache_pb2.QueryIpRequest(engine_id="python"), timeout=LIMIT_S).addresses) == ["local"]
    (listed,) = cache.ListInstances(cache_pb2.ListInstancesRequest(), timeout=LIMIT_S).instances
    assert listed.attached and listed.blocks == 5 and listed.sessions[0].write_mode == "stream"
    assert listed.contents[0] == content and listed.variants[0] == variant
    session.bye(pb.Up(release=pb.Release(lease_ids=[grant.lease_id]), bye=True))
    (listed,) = cache.ListInstances(cache_pb2.ListInstancesRequest(), timeout=LIMIT_S).instances
    assert not listed.attached and not listed.sessions, "detached, as blocks of it are stored"
    print("held all blocks by a promise, released it, said bye; the engine is listed as detached")

    # As a router does, of an engine that is away.
    chosen = types.BlockSelection(engine_id="python", content=content, tokens=tokens)
    pinned = cache.Pin(cache_pb2.PinRequest(blocks=chosen, owner="router", tier=types.TIER_HOST, ttl_ms=60_000),
                       timeout=LIMIT_S)
    assert pinned.blocks.digests == b"".join(names) and list(pinned.blocks.status) == [types.BLOCK_STATUS_OK] * 5
    fetched_ahead = cache.Prefetch(cache_pb2.PrefetchRequest(
        blocks=types.BlockSelection(variant_ids=variant_id(variant), digests=names[0] + b"\0" * 16)), timeout=LIMIT_S)
    assert list(fetched_ahead.blocks.status) == [types.BLOCK_STATUS_OK, types.BLOCK_STATUS_MISSING]
    assert admin.Stats(admin_pb2.StatsRequest(), timeout=LIMIT_S).tenants[0].pins == 6
    assert cache.Unpin(cache_pb2.UnpinRequest(blocks=chosen, owner="nobody", tier=types.TIER_HOST),
                       timeout=LIMIT_S).unpinned == 0
    assert cache.Unpin(cache_pb2.UnpinRequest(owner="router", all=True), timeout=LIMIT_S).unpinned == 5
    print("pinned all blocks by their tokens, prefetched one, let go of them")

    watch = cache.WatchEvents(cache_pb2.WatchEventsRequest(snapshot=True, with_tokens=True), timeout=LIMIT_S)
    snapshot = []
    for reply in watch:
        snapshot.append(reply)
        if reply.snapshot_end:
            break
    watch.cancel()
    stored = [event.stored for reply in snapshot for event in reply.events]
    assert sorted(d for s in stored for d in unpacked(s.digests)) == sorted(names)
    assert all(s.content_id == seed and s.variant_id == variant_id(variant) for s in stored)
    assert sum(len(s.tokens) for s in stored) == 5 * variant.block_tokens
    prefix = cache_pb2.ClearRequest(
        scope=types.SELECTION_SCOPE_PREFIX, dry_run=True, pinned=True,
        blocks=types.BlockSelection(content=content, tokens=tokens[:3 * variant.block_tokens]))
    would = cache.Clear(prefix, timeout=LIMIT_S)
    assert [(t.tier, t.blocks) for t in would.tiers] == [(types.TIER_HOST, 3)] and would.pins_ended == 0
    prefix.dry_run = False
    assert cache.Clear(prefix, timeout=LIMIT_S) == would
    (hit,) = cache.Lookup(cache_pb2.LookupRequest(content=content, tokens=tokens), timeout=LIMIT_S).instances
    assert hit.tiers[0].contiguous_tokens == 2 * variant.block_tokens
    print("cleared what begins with a prefix, first in a dry run")
    statuses, _ = store(engine, pb, types, content, variant, tokens, seed, payloads)
    assert statuses == [types.BLOCK_STATUS_DUPLICATE] * 2 + [types.BLOCK_STATUS_OK] * 3
    heard, removed, came_back = snapshot[-1].sequence, [], []
    watch = cache.WatchEvents(cache_pb2.WatchEventsRequest(boot_id=snapshot[0].boot_id, after=heard), timeout=LIMIT_S)
    while len(came_back) < 3:
        for event in next(watch).events:
            assert event.sequence > heard
            heard = event.sequence
            (came_back if event.HasField("stored") else removed).extend(unpacked(
                event.stored.digests if event.HasField("stored") else event.removed.digests))
    watch.cancel()
    assert sorted(removed) == sorted(came_back) == sorted(names[2:])
    print("watched: a snapshot of all blocks with their tokens, then what left and came back meanwhile")

    stats = admin.Stats(admin_pb2.StatsRequest(), timeout=LIMIT_S)
    tenant = stats.tenants[0]
    assert tenant.blocks == 5 and tenant.leases == tenant.reservations == tenant.sessions == 0
    assert tenant.pool_stored + tenant.pool_free == tenant.pool_limit
    assert stats.counters['larder_blocks_put_total{result="published"}'] == 8
    print(f"stats: {tenant.blocks} blocks, {tenant.pool_stored} of {tenant.pool_limit} bytes, nothing held")

    assert admin.Drain(admin_pb2.DrainRequest(limit_s=5), timeout=LIMIT_S).sessions == 0
    print("drained")


with tempfile.TemporaryDirectory() as stubs:
    generate_stubs(stubs)
    main()
