#!/usr/bin/python3
"""A client of larderd in another language, written from proto/larder/v1 and docs/format.md alone (larder_by_proto.py).

It generates its stubs into a temporary folder, then attaches, stores, looks up, fetches, asks for statistics and
drains.

Usage: python_from_proto.py PROTO_FOLDER SOCKET_FOLDER
"""
import sys
import tempfile

import grpc
import xxhash

from larder_by_proto import (LIMIT_S, Session, chain, check_health, content_id, fetch, generate_stubs,
                             parse_record_header, reflected_services, store, unpacked, variant_id)

PROTOS, SOCKETS = sys.argv[1], sys.argv[2]


def main():
    from larder.v1 import (admin_pb2, admin_pb2_grpc, cache_pb2, cache_pb2_grpc, engine_pb2 as pb, engine_pb2_grpc,
                           types_pb2 as types)
    data = grpc.insecure_channel(f"unix:{SOCKETS}/data.sock")
    control = grpc.insecure_channel(f"unix:{SOCKETS}/control.sock")
    operator = grpc.insecure_channel(f"unix:{SOCKETS}/admin.sock")
    engine, cache = engine_pb2_grpc.EngineStub(data), cache_pb2_grpc.CacheStub(control)
    admin = admin_pb2_grpc.AdminStub(operator)

    sockets = data, control, operator
    assert {check_health(socket) for socket in sockets} == {"SERVING"}
    services = [service for socket in (control, operator) for service in reflected_services(socket)]
    assert set(services) == {"larder.v1.Cache", "larder.v1.Admin"}, services
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
    names = digests[1::2]  # the names of blocks of 32 tokens
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
    assert listed.contents[0] == types.Content(model="python", revision="1")  # the salt is not told
    assert listed.variants[0] == variant
    engines_view = cache_pb2_grpc.CacheStub(data)
    (seen,) = engines_view.ListInstances(cache_pb2.ListInstancesRequest(), timeout=LIMIT_S).instances
    assert not seen.contents[0].salt and seen.contents[0].model == content.model
    try:
        engines_view.Clear(cache_pb2.ClearRequest(scope=types.SELECTION_SCOPE_ALL), timeout=LIMIT_S)
        raise AssertionError("Clear was served at data.sock")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED and "control.sock" in error.details(), error
    print("at data.sock an engine sees no salts, and the error of Clear names control.sock")
    session.bye(pb.Up(release=pb.Release(lease_ids=[grant.lease_id]), bye=True))
    (listed,) = cache.ListInstances(cache_pb2.ListInstancesRequest(), timeout=LIMIT_S).instances
    assert not listed.attached and not listed.sessions, "the engine is listed as detached while its blocks are stored"
    print("held all blocks by a promise, released it, said bye; the engine is listed as detached")

    # A router pins and prefetches the blocks of an engine that has detached.
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
    print("pinned all blocks by their tokens, prefetched one, unpinned them")

    compress = cache_pb2.CompressRequest(scope=types.SELECTION_SCOPE_ALL, codec=types.CODEC_LOSSLESS)
    done = list(cache.Compress(compress, timeout=LIMIT_S))[-1]
    assert done.blocks == done.blocks_done == done.changed + done.unchanged == 5 and done.changed
    assert done.bytes_after < done.bytes_before
    assert [bytes(got) for _, got in fetch(engine, pb, variant, names)] == [b"".join(layers) for layers in payloads]
    compress.codec = types.CODEC_IDENTITY
    assert list(cache.Compress(compress, timeout=LIMIT_S))[-1].bytes_after == done.bytes_before
    print(f"compressed all blocks from {done.bytes_before} to {done.bytes_after} bytes and back; fetched them meanwhile")

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
    print("cleared the blocks that begin with a prefix, first in a dry run")
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
    print("watched: a snapshot of all blocks with their tokens, then the blocks that left and came back meanwhile")

    stats = admin.Stats(admin_pb2.StatsRequest(), timeout=LIMIT_S)
    tenant = stats.tenants[0]
    assert tenant.blocks == 5 and tenant.leases == tenant.reservations == tenant.sessions == 0
    assert tenant.pool_stored + tenant.pool_free == tenant.pool_limit
    assert stats.counters['larder_blocks_put_total{result="published"}'] == 8
    print(f"stats: {tenant.blocks} blocks, {tenant.pool_stored} of {tenant.pool_limit} bytes, nothing held")

    assert admin.Drain(admin_pb2.DrainRequest(limit_s=5), timeout=LIMIT_S).sessions == 0
    print("drained")


with tempfile.TemporaryDirectory() as stubs:
    generate_stubs(PROTOS, stubs)
    main()
