#!/usr/bin/env python3
"""Checks the golden vectors in this folder.  It knows only docs/format.md, and no XXH3, which Python lacks."""
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


def check_planes(stored, raw_bytes, byte_of):
    """Checks a segment of codec 2: its tables and its raw pieces (Python's library has no zstd)."""
    version, planes, pieces, zero, raw, _ = struct.unpack_from("<BBBBIQ", stored)
    assert (version, zero, raw) == (1, 0, raw_bytes) and planes in (1, 2, 4) and pieces in (1, 2)
    count, at = raw_bytes // planes, 16 + 4 * planes * pieces
    for i, length in enumerate(struct.unpack_from(f"<{planes * pieces}I", stored, 16)):
        plane, piece = divmod(i, pieces)
        numbers = range(count * piece // pieces, count * (piece + 1) // pieces)
        assert length <= len(numbers)
        if length == len(numbers):
            assert stored[at:at + length] == bytes(byte_of(planes * n + plane) for n in numbers)
        else:
            assert stored[at:at + 4] == bytes.fromhex("28b52ffd")
        at += length
    assert stored[at:] == bytes(byte_of(k) for k in range(count * planes, raw_bytes))


def check_record(record, want, align, byte_at, byte_of=None):
    magic, version, header_bytes, zero = struct.unpack_from("<4sIII", record)
    assert (magic, version, header_bytes, zero) == (b"LRDR", want["version"], want["header_bytes"], 0)
    assert [record[o:o + 16].hex() for o in (16, 32, 48)] == [want[k] for k in ("variant", "digest", "parent")]
    tokens, first, layers, segments, a, d, payload_bytes = struct.unpack_from("<IIIHBBQ", record, 64)
    assert [tokens, first, layers] == [want[k] for k in ("block_tokens", "first_layer", "layers")]
    assert segments == len(want["segments"]) and payload_bytes == want["payload_bytes"]
    c = 16 if version >= 2 else 0
    assert record[88:88 + c].hex() == want.get("content", "")
    assert record[88 + c:88 + c + a + d].decode() == want["layout"] + want["dtype"] and a == len(want["layout"])
    table = (88 + c + a + d + 7) // 8 * 8
    payload = bytearray(payload_bytes)
    for i, w in enumerate(want["segments"]):
        *got, xxh3 = struct.unpack_from("<HBBIQIIQ", record, table + 32 * i)
        assert got == [w["layers"], w["codec"], 0, w["first_layer"], w["offset"], w["bytes"], w.get("raw_bytes", 0)]
        assert "xxh3" not in w or xxh3 == int(w["xxh3"], 16)
        if "raw_bytes" in w:
            begin = (header_bytes + align - 1) // align * align + w["offset"]
            stored = record[begin:begin + w["bytes"]]
            check_planes(stored, w["raw_bytes"], lambda k, s=i: byte_of(s, k))
            payload[w["offset"]:w["offset"] + w["bytes"]] = stored
            continue
        if byte_of:
            byte_at = lambda at, s=i, o=w["offset"]: byte_of(s, at - o)
        for at in range(w["offset"], w["offset"] + w["bytes"]):
            payload[at] = byte_at(at)
    assert header_bytes == (table + 32 * segments + 8 + 63) // 64 * 64
    assert not any(record[table + 32 * segments:header_bytes - 8])
    begin = (header_bytes + align - 1) // align * align
    assert not any(record[header_bytes:begin])
    assert record[begin:begin + payload_bytes] == payload
    return begin + payload_bytes


def described(block):
    """Returns a block of disk_v1.json in the form of record_v1.json."""
    segments, layer, end = [], 0, 0
    for layers, codec, size in block["segments"] * block["repeat"]:
        offset = (end + 63) // 64 * 64
        segments.append({"layers": layers, "codec": codec, "first_layer": layer, "offset": offset, "bytes": size})
        layer, end = layer + layers, offset + size
    return block | {"segments": segments, "layers": layer, "payload_bytes": end, "version": 1}


def check_disk(folder, disk):
    """Checks the data files; the catalogs belong to RocksDB."""
    text = f"larder-disk-tier {disk['version']}\nshards {disk['shards']}\nfile_bytes {disk['file_bytes']}\n"
    records = {}
    for number in range(disk["shards"]):
        shard = folder / f"shard-{number:02}"
        assert (shard / "FORMAT").read_text() == text
        for file in shard.glob("*.kv"):
            data = file.read_bytes()
            for page in range(0, len(data), 4096):
                if data[page:page + 4] == b"LRDR":
                    records[data[page + 16:page + 48].hex()] = data[page:]
    for block in map(described, disk["first"] + disk["second"]):
        record = records[block["variant"] + block["digest"]]
        block["header_bytes"] = struct.unpack_from("<I", record, 8)[0]
        salt = block["salt"]
        check_record(record, block, 4096, lambda at, s=salt: (7 * at + at // 256 + 29 * s) % 256)


check_names(json.loads((HERE / "keys.json").read_text()))
for version in ("record_v1", "record_v2"):
    record = (HERE / f"{version}.bin").read_bytes()
    want = json.loads((HERE / f"{version}.json").read_text())
    assert check_record(record, want, 64, lambda at: (7 * at + 13) % 256) == len(record)
record = (HERE / "record_v3.bin").read_bytes()
want = json.loads((HERE / "record_v3.json").read_text())
odd_even = lambda i, k: (7 * k + 13 * i + k // 512) % 256 if k % 2 else (31 * k * k + k // 7) % 251
assert check_record(record, want, 64, None, odd_even) == len(record)
check_disk(HERE / "disk_v1", json.loads((HERE / "disk_v1.json").read_text()))
print("golden vectors agree with docs/format.md")
