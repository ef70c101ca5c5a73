"""What a client in another language needs, written from proto/larder/v1 and docs/format.md alone.

python_from_proto.py and python_verbs.py use it.  Needs python3-grpcio, python3-grpc-tools and python3-xxhash.
"""
import hashlib
import queue
import struct
import sys

import grpc
import xxhash
from grpc_tools import protoc

LIMIT_S = 20
PIECE_BYTES = 1 << 20


def generate_stubs(protos, folder):
    files = [f"larder/v1/{name}.proto" for name in ("types", "cache", "engine", "admin")]
    code = protoc.main(["protoc", f"-I{protos}", f"--python_out={folder}", f"--grpc_python_out={folder}", *files])
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
    check = channel.unary_unary("/grpc.health.v1.Health/Check")  # raw bytes both ways; {1: status}, 1 = SERVING
    return {b"\x08\x01": "SERVING", b"\x08\x02": "NOT_SERVING"}[check(b"", timeout=LIMIT_S)]


def reflected_services(channel):
    info = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    answer = next(info(iter([b"\x3a\x00"]), timeout=LIMIT_S))  # {7: list_services}
    return [s for s in ("larder.v1.Cache", "larder.v1.Engine", "larder.v1.Admin") if s.encode() in answer]


class Session:
    """An Attach stream: the messages put into the queue `up` are sent to the daemon."""

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
