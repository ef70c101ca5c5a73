#!/usr/bin/env python3
"""Checks the golden vectors beside it, knowing docs/format.md alone (and no XXH3: the standard library has none)."""
import hashlib
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent


def name(message):
    return hashlib.sha256(message).digest()[:16].hex()


def spec_id(tag, fields):
    message = tag
    for number, field in enumerate(fields, 1):
        value = struct.pack("<I", field) if isinstance(field, int) else field
        message += struct.pack("<BI", number, len(value)) + value
    return name(message)


def check_names(keys):
    for c in keys["contents"]:
        texts = [c[k].encode() for k in ("tenant", "model", "revision")]
        fields = texts + [bytes.fromhex(c["salt_hex"]), c["lora"].encode(), bytes.fromhex(c["multimodal_hex"])]
        assert spec_id(b"larder/content/v1\0", fields) == c["id"], c
    for v in keys["variants"]:
        names = ("dtype", "layout", "rank", "ranks", "group", "block_tokens", "layers", "first_layer")
        fields = [v[k].encode() if isinstance(v[k], str) else v[k] for k in names]
        assert spec_id(b"larder/variant/v1\0", fields) == v["id"], v
    for chain in keys["chains"]:
        digest, tokens = chain["seed"], chain["tokens"]
        for i, want in enumerate(chain["digests"]):
            step = struct.pack("<16I", *tokens[16 * i:16 * i + 16])
            digest = name(b"larder/chain/v1\0" + bytes.fromhex(digest) + step)
            assert digest == want, chain
        assert len(chain["digests"]) == len(tokens) // 16


def check_record(record, want):
    magic, version, header_bytes, zero = struct.unpack_from("<4sIII", record)
    assert (magic, version, header_bytes, zero) == (b"LRDR", want["version"], want["header_bytes"], 0)
    assert [record[o:o + 16].hex() for o in (16, 32, 48)] == [want[k] for k in ("variant", "digest", "parent")]
    tokens, first, layers, segments, a, d, payload_bytes = struct.unpack_from("<IIIHBBQ", record, 64)
    assert [tokens, first, layers] == [want[k] for k in ("block_tokens", "first_layer", "layers")]
    assert segments == len(want["segments"]) and payload_bytes == want["payload_bytes"]
    assert record[88:88 + a + d].decode() == want["layout"] + want["dtype"] and a == len(want["layout"])
    table = (88 + a + d + 7) // 8 * 8
    payload = bytearray(payload_bytes)
    for i, w in enumerate(want["segments"]):
        got = struct.unpack_from("<HBBIQIIQ", record, table + 32 * i)
        assert got == (w["layers"], w["codec"], 0, w["first_layer"], w["offset"], w["bytes"], 0, int(w["xxh3"], 16))
        for at in range(w["offset"], w["offset"] + w["bytes"]):
            payload[at] = (7 * at + 13) % 256
    assert header_bytes == (table + 32 * segments + 8 + 63) // 64 * 64
    assert not any(record[table + 32 * segments:header_bytes - 8])
    assert record[header_bytes:] == payload


check_names(json.loads((HERE / "keys.json").read_text()))
check_record((HERE / "record_v1.bin").read_bytes(), json.loads((HERE / "record_v1.json").read_text()))
print("golden vectors agree with docs/format.md")
