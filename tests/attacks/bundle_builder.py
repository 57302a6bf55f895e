"""Builds the files of TensorFlow's checkpoints byte by byte, so that any byte of them can be wrong.

The formats are described in holdfast/tensorflow/table_reader.h and bundle_entry.h.
"""

import struct

MAGIC = 0xDB4775248B80FB57
STRING = 7


def make_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = make_table()


def crc32c(data, crc=0):
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def mask(crc):
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(number):
    number &= 2**64 - 1
    out = b""
    while number >= 128:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def number(field, value):
    return varint(field << 3) + varint(value) if value else b""


def submessage(field, data):
    return varint(field << 3 | 2) + varint(len(data)) + data


def header(shards=1, endianness=0, version=submessage(3, number(1, 1))):
    return number(1, shards) + number(2, endianness) + version


def shape_of(sizes):
    return b"".join(submessage(2, number(1, size)) for size in sizes)


def entry(dtype, shape, data=b"", *, shard=0, offset=0, size=None, crc=None, slices=()):
    """A BundleEntryProto. `crc` is the masked CRC; by default it is that of the data."""
    crc = mask(crc32c(data)) if crc is None else crc
    size = len(data) if size is None else size
    out = number(1, dtype) + submessage(2, shape if isinstance(shape, bytes) else shape_of(shape))
    out += number(3, shard) + number(4, offset) + number(5, size)
    if not slices:
        out += varint(6 << 3 | 5) + struct.pack("<I", crc)
    return out + b"".join(submessage(7, one) for one in slices)


def slice_of(*extents):
    """A TensorSliceProto of (start, length), or of None for a whole dimension."""
    out = b""
    for extent in extents:
        inner = b"" if extent is None else number(1, extent[0]) + b"\x10" + varint(extent[1])
        out += submessage(1, inner)
    return out


def slice_key(name, *extents):
    """The key of a slice whose numbers are all below 64."""
    key = b"\0" + name.replace(b"\0", b"\0\xff").replace(b"\xff", b"\xff\0") + b"\0\1"
    key += bytes([1, len(extents)]) if extents else b"\0"
    for extent in extents:
        start, length = extent or (0, -1)
        key += bytes([0x80 ^ start, (0x80 ^ length) & 0xFF])
    return key


def strings(values, big_endian=False):
    """The bytes of a string tensor and its CRC."""
    order = ">I" if big_endian else "<I"
    crc = crc32c(b"".join(struct.pack(order, len(value)) for value in values))
    checksum = struct.pack(order, mask(crc))
    data = b"".join(varint(len(value)) for value in values) + checksum + b"".join(values)
    return data, crc32c(checksum + b"".join(values), crc)


def variants(values):
    """The bytes of a tensor of variants and its CRC."""
    data, crc = b"", 0
    for value in values:
        crc = crc32c(struct.pack("<Q", len(value)) + value, crc)
        checksum = struct.pack("<I", mask(crc))
        data += varint(len(value)) + value + checksum
        crc = crc32c(checksum, crc)
    return data, crc


def record(key, value, shared=0):
    return varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value


def block(records, restarts=(0,), compression=0, crc=None):
    data = b"".join(records) + b"".join(struct.pack("<I", at) for at in restarts)
    data += struct.pack("<I", len(restarts)) + bytes([compression])
    return data + struct.pack("<I", mask(crc32c(data)) if crc is None else crc)


def handle(offset, size):
    return varint(offset) + varint(size)


def footer(meta, index, magic=MAGIC):
    return (meta + index).ljust(40, b"\0") + struct.pack("<Q", magic)


def finish(blocks, handles=None, magic=MAGIC, keys=None):
    """A table of these data blocks."""
    out, found = b"", []
    for one in blocks:
        found.append(handle(len(out), len(one) - 5))
        out += one
    keys = keys or [b"z%03d" % i for i in range(len(found))]
    meta_at, meta = len(out), block([])
    out += meta
    records = [record(key, one) for key, one in zip(keys, handles or found)]
    starts = [sum(len(r) for r in records[:i]) for i in range(len(records))]
    index_at, index = len(out), block(records, starts or (0,))
    out += index
    return out + footer(
        handle(meta_at, len(meta) - 5), handle(index_at, len(index) - 5), magic
    )


def table(entries, head=None):
    """A table of a header and these entries, in one block without shared keys."""
    records = [record(b"", header() if head is None else head)]
    records += [record(key, value) for key, value in sorted(entries.items())]
    return finish([block(records)])
