"""Writes malicious TensorFlow checkpoints into tensorflow/. Each is made to break a reader.

    python3 tests/attacks/make_tensorflow.py

Each attack is NAME.index, with NAME.data-00000-of-00001 where a shard must be there. expected.json
has a part of the message with which each must be refused. odd.json has the same for checkpoints
that are well formed, but of which "a" or "s" cannot be read; the rest of them is.
"""

import json
import shutil
import struct
from pathlib import Path

from bundle_builder import (STRING, block, crc32c, entry, finish, footer, handle, header, mask,
                            number, record, shape_of, slice_key, slice_of, strings, submessage,
                            table, variants, varint)

FOLDER = Path(__file__).parent / "tensorflow"
FLOAT, UINT8, VARIANT = 1, 4, 21
DATA = bytes(range(64))


def a(shape=(4,), dtype=UINT8, data=DATA[:4], **more):
    return entry(dtype, shape, data, **more)


GOOD = table({b"a": a()})
HEAD = record(b"", header())


def flipped(data, at, xor=1):
    out = bytearray(data)
    out[at] ^= xor
    return bytes(out)


def one_block(*records, **more):
    return finish([block([HEAD, *records], **more)])


def string_table(data, count, crc=0, size=None):
    return table({b"s": entry(STRING, (count,), data, crc=mask(crc), size=size)})


TEXT, TEXT_CRC = strings([b"ab", b"c"])
LONG_KEY = b"k" * 60_000

# Name: (index, shard or None, a part of the message).
FILES = {
    "nothing": (b"", None, "expected an index of at least 48"),
    "a_footer_cut_off": (GOOD[:-1], None, "the mark of an index"),
    "another_magic": (flipped(GOOD, -1), None, "the mark of an index"),
    "a_footer_alone": (footer(handle(0, 0), handle(0, 0)), None, "not in the file"),
    "an_index_block_outside": (
        GOOD[:-48] + footer(handle(0, 1), handle(2**62, 8)), None, "not in the file"),
    "an_index_block_that_wraps": (
        GOOD[:-48] + footer(handle(0, 1), handle(2**64 - 8, 16)), None, "not in the file"),
    "a_handle_without_end": (
        GOOD[:-48] + footer(b"\xff" * 40, b""), None, "not in the file"),
    "a_block_checksum": (flipped(GOOD, 3), DATA[:4], "has crc32c"),
    "an_index_block_checksum": (flipped(GOOD, len(GOOD) - 60), DATA[:4], "has crc32c"),
    "snappy": (one_block(compression=1), None, "snappy"),
    "an_unknown_compression": (one_block(compression=9), None, "compression 9"),
    "no_restarts": (finish([block([], restarts=())[0:0] + struct.pack("<B", 0)
                            + struct.pack("<I", mask(crc32c(b"\0")))]), None, "too short"),
    "too_many_restarts": (
        finish([(lambda d: d + struct.pack("<I", mask(crc32c(d))))(
            HEAD + struct.pack("<II", 0, 2**31) + b"\0")]), None, "too many restarts"),
    "a_restart_between_entries": (
        one_block(record(b"a", a()), restarts=(0, 5)), DATA[:4], "not at entries"),
    "a_restart_that_shares": (
        one_block(record(b"a", a()), record(b"ab", a(), shared=1),
                  restarts=(0, len(HEAD) + len(record(b"a", a())))), DATA[:4], "shares 1 bytes"),
    "a_key_that_shares_too_much": (
        finish([block([HEAD, varint(9) + b"\1\0a"])]), None, "shares 9 bytes"),
    "a_value_past_the_block": (
        finish([block([HEAD, b"\0\1" + varint(2**40) + b"a"])]), None, "ends outside"),
    "a_key_past_the_block": (
        finish([block([HEAD, b"\0" + varint(2**64 - 1) + b"\0a"])]), None, "ends outside"),
    "keys_out_of_order": (
        one_block(record(b"b", a()), record(b"a", a())), DATA[:4], "keys in order"),
    "a_key_twice": (one_block(record(b"a", a()), record(b"a", a())), DATA[:4], "keys in order"),
    "a_block_twice": (
        finish([block([HEAD])], handles=[handle(0, len(HEAD) + 8)] * 2, keys=[b"a", b"b"]),
        None, "not in its place"),
    "a_block_over_the_index": (
        finish([block([HEAD])], handles=[handle(0, 60)]), None, "not in its place"),
    "a_key_too_long": (
        one_block(record(LONG_KEY, a()), record(LONG_KEY + b"k" * 9_000, a(), shared=60_000)),
        DATA[:4], "limit 65536"),
    "no_header": (finish([block([record(b"a", a())])]), DATA[:4], "has no header"),
    "a_header_of_noise": (table({}, head=b"\xff\xff\xff"), None, "header is damaged"),
    "no_shards": (table({}, head=header(shards=0)), None, "names 0 shards"),
    "shards_negative": (table({b"a": a()}, head=header(shards=2**64 - 1)), None, "header is damaged"),
    "a_byte_order_of_7": (table({}, head=header(endianness=7)), None, "header is damaged"),
    "a_newer_reader": (
        table({}, head=header(version=submessage(3, number(2, 9)))), None, "version 9"),
    "an_entry_cut_off": (table({b"a": a()[:-2]}), DATA[:4], "entry is damaged"),
    "an_entry_with_a_group": (table({b"a": b"\x0b\x0c"}), DATA[:4], "entry is damaged"),
    "a_size_that_is_negative": (table({b"a": a(shape=(2**64 - 1,))}), DATA[:4], "shape is damaged"),
    "a_product_that_wraps": (
        table({b"a": a(shape=(2**33, 2**33))}), DATA[:4], "shape"),
    "a_rank_that_is_not_known": (
        table({b"a": a(shape=b"\x18\x01")}), DATA[:4], "shape is damaged"),
    "a_shape_larger_than_the_bytes": (table({b"a": a(shape=(2**40,))}), DATA[:4], "has 4 bytes"),
    "bytes_past_the_shard": (table({b"a": a(offset=2)}), DATA[:4], "4 bytes at 2"),
    "an_offset_that_wraps": (table({b"a": a(offset=2**63 - 2)}), DATA[:4], "bytes at"),
    "an_offset_that_is_negative": (table({b"a": a(offset=2**64 - 1)}), DATA[:4], "entry is damaged"),
    "two_tensors_on_the_same_bytes": (
        table({b"a": a(), b"b": a(offset=2, data=DATA[2:6])}), DATA[:8], ""),
    "a_shard_that_is_missing": (table({b"a": a()}), None, "is missing"),
    "a_shard_of_a_larger_number": (table({b"a": a(shard=1)}), DATA[:4], "is in shard 1"),
    "a_slice_that_is_missing": (
        table({b"a": a(slices=[slice_of((0, 2)), slice_of((2, 2))]),
               slice_key(b"a", (0, 2)): a(shape=(2,), data=DATA[:2])}), DATA[:4],
        "is missing"),
    "slices_that_overlap": (
        table({b"a": a(slices=[slice_of((0, 3)), slice_of((2, 2))]),
               slice_key(b"a", (0, 3)): a(shape=(3,), data=DATA[:3]),
               slice_key(b"a", (2, 2)): a(shape=(2,), data=DATA[3:5], offset=3)}), DATA[:5], ""),
    "a_slice_outside": (
        table({b"a": a(slices=[slice_of((2, 3))]),
               slice_key(b"a", (2, 3)): a(shape=(3,), data=DATA[:3])}), DATA[:4],
        "inside the shape"),
    "a_slice_of_another_rank": (
        table({b"a": a(slices=[slice_of((0, 2), None)])}), DATA[:4], "2 dimensions"),
    "a_slice_of_another_dtype": (
        table({b"a": a(slices=[slice_of((0, 1))]),
               slice_key(b"a", (0, 1)): entry(FLOAT, (1,), DATA[:4])}), DATA[:4],
        "another dtype"),
    "a_slice_of_nobody": (
        table({slice_key(b"a", (0, 2)): a(shape=(2,), data=DATA[:2])}), DATA[:4],
        "its tensors name 0"),
    "more_slices_than_entries": (
        table({b"a": a(slices=[slice_of((0, 2))] * 50)}), DATA[:4], "more slices"),
    "a_slice_with_slices": (
        table({b"a": a(slices=[slice_of((0, 4))]),
               slice_key(b"a", (0, 4)): a(slices=[slice_of((0, 2))])}), DATA[:4], "another"),
    "strings_without_lengths": (string_table(b"", 3), b"", "at least 1 for each"),
    "a_checksum_of_lengths": (
        string_table(flipped(TEXT, 2), 2, TEXT_CRC), flipped(TEXT, 2), "lengths of its strings"),
    "a_string_past_its_tensor": (
        string_table(strings([b"ab", b"c" * 9])[0][:-5], 2), strings([b"ab", b"c" * 9])[0][:-5],
        "ends outside"),
    "bytes_after_the_strings": (
        string_table(TEXT + b"!", 2), TEXT + b"!", "after its last string"),
    "a_checksum_of_strings": (
        string_table(TEXT, 2, TEXT_CRC ^ 1), TEXT, "has crc32c"),
    "objects_that_are_not_json": (
        (lambda d, c: (table({b"holdfast.objects": entry(STRING, (), d, crc=mask(c))}), d,
                       "holdfast.objects"))(*strings([b"{"]))),
    "objects_that_name_a_stranger": (
        (lambda d, c: (table({b"holdfast.objects": entry(STRING, (), d, crc=mask(c))}), d,
                       "not a tensor"))(*strings([b'{"$tensor":"x"}']))),
    "ties_of_a_stranger": (
        (lambda d, c: (table({b"holdfast.ties": entry(STRING, (), d, crc=mask(c))}), d,
                       "holdfast.ties"))(*strings([b'{"x":["y"]}']))),
}  # fmt: skip


def beside_good(name, value, data, more=()):
    """A checkpoint with this entry and, behind its bytes, a tensor "good" that can be read."""
    good = a(offset=len(data))
    return table({name: value, b"good": good, **dict(more)}), data + DATA[:4]


VARIANTS, VARIANTS_CRC = variants([b"ab", b"", b"c" * 300])
# Name: (index, shard, the line of what is left out).
ODD = {
    "a_dtype_unknown": (*beside_good(b"a", a(dtype=77), DATA[:4]),
                        "a: has the dtype number 77, which is not known"),
    "a_quantized_dtype": (*beside_good(b"a", a(dtype=12), DATA[:4]),
                          "a: has the dtype quint8, which is not supported"),
    "a_variant": (*beside_good(b"a", entry(VARIANT, (3,), VARIANTS, crc=mask(VARIANTS_CRC)), VARIANTS),
                  "a: has the dtype variant, which is not supported"),
    "slices_of_a_quantized_dtype": (
        *beside_good(b"a", a(dtype=12, slices=[slice_of((0, 4))]), DATA[:4],
                     [(slice_key(b"a", (0, 4)), a(dtype=12))]),
        "a: has the dtype quint8, which is not supported"),
    "nine_dimensions": (*beside_good(b"a", a(shape=(1,) * 9), DATA[:4]),
                        "a: has 9 dimensions, limit 8"),
    "strings_of_nine_dimensions": (
        *beside_good(b"s", entry(STRING, (1,) * 9, TEXT, crc=mask(TEXT_CRC)), TEXT),
        "s: has 9 dimensions, limit 8"),
    "strings_as_many_as_2_to_the_58": (
        *beside_good(b"s", entry(STRING, (2**58,), TEXT, crc=mask(TEXT_CRC)), TEXT),
        "s: makes more than 268435456 bytes or 4194304 strings, the limit"),
    "strings_in_slices": (
        *beside_good(b"s", entry(STRING, (2,), slices=[slice_of((0, 2))]), TEXT,
                     [(slice_key(b"s", (0, 2)), entry(STRING, (2,), TEXT, crc=mask(TEXT_CRC)))]),
        "s: is a partitioned string tensor; expected a whole one"),
}  # fmt: skip


def write(files, list_name):
    for name, (index, shard, _) in files.items():
        (FOLDER / f"{name}.index").write_bytes(index)
        if shard is not None:
            (FOLDER / f"{name}.data-00000-of-00001").write_bytes(shard)
    expected = {name: message for name, (_, _, message) in files.items()}
    (FOLDER / list_name).write_text(json.dumps(expected, indent=1) + "\n")


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    write(FILES, "expected.json")
    write(ODD, "odd.json")


if __name__ == "__main__":
    main()
