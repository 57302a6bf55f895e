"""Writes the malicious data files in corpus/: indexes of Megatron-LM, tar archives, TFRecord files.

    python3 tests/attacks/make_corpus.py

Each is made to break a reader that trusts lengths and offsets. The .idx files stand beside a .bin file
of 14 bytes, which the test writes.
"""

import struct
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"


def idx(tokens=(2, 1, 4), begins=(0, 4, 6), bounds=(0, 2, 3), *, mark=b"MMIDIDX\0\0", version=1, dtype=8,
        sequences=None, documents=None, tail=b""):
    """A .idx file. The counts in the header can be others than those of the tables."""
    head = mark + struct.pack("<QBQQ", version, dtype, len(tokens) if sequences is None else sequences,
                              len(bounds) if documents is None else documents)
    return (head + struct.pack(f"<{len(tokens)}i", *tokens) + struct.pack(f"<{len(begins)}q", *begins)
            + struct.pack(f"<{len(bounds)}q", *bounds) + tail)


MEGATRON = {
    "another_mark.idx": idx(mark=b"MMIDIDX\0\1"),
    "older_version.idx": idx(version=0),
    "dtype_0.idx": idx(dtype=0),
    "dtype_255.idx": idx(dtype=255),
    "header_cut.idx": idx()[:33],
    "tables_cut.idx": idx()[:-1],
    "tables_that_wrap_around.idx": idx(sequences=2**61 + 3),
    "documents_that_wrap_around.idx": idx(documents=2**61 + 3),
    "counts_of_all_ones.idx": idx(sequences=2**64 - 1, documents=2**64 - 1),
    "no_bounds.idx": idx(bounds=()),
    "negative_tokens.idx": idx(tokens=(2, -1, 6)),
    "tokens_beyond_the_data.idx": idx(tokens=(2, 1, 2**31 - 1)),
    "begins_before_the_data.idx": idx(begins=(-14, 4, 6)),
    "begins_beyond_the_data.idx": idx(begins=(0, 4, 2**62)),
    "overlapping_sequences.idx": idx(begins=(0, 2, 6)),
    "bounds_backwards.idx": idx(bounds=(0, 3, 2, 3)),
    "bounds_negative.idx": idx(bounds=(0, -1, 3)),
    "bounds_beyond_the_sequences.idx": idx(bounds=(0, 2, 2**62)),
    "bounds_that_leave_sequences_out.idx": idx(bounds=(1, 2, 3)),
    "less_than_the_data.idx": idx(tokens=(2, 1), begins=(0, 4), bounds=(0, 2)),
}


def header(name=b"a/1.jpg", size=b"00000000005\0", kind=b"0", *, prefix=b"", chksum=None):
    """A header of a tar archive. Its sum is right unless it is given."""
    block = bytearray(512)
    block[:len(name)] = name
    block[100:108] = b"0000644\0"
    block[124:136] = size
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[345:345 + len(prefix)] = prefix
    block[148:156] = b" " * 8
    block[148:156] = chksum if chksum is not None else b"%06o\0 " % sum(block)
    return bytes(block)


def member(data=b"hello", **fields):
    return header(**fields) + data.ljust(512, b"\0")


END = bytes(1024)
TARS = {
    "a_text.tar": b"{}\n" * 200,
    "wrong_sum.tar": member(chksum=b"000001\0 ") + END,
    "sum_of_letters.tar": member(chksum=b"abcdefgh") + END,
    "member_cut.tar": member()[:600],
    "header_cut.tar": member() + header()[:300],
    "padding_cut.tar": member()[:-1],
    "size_beyond_the_end.tar": member(size=b"77777777777\0") + END,
    "size_of_all_bits.tar": member(size=b"\x80" + b"\xff" * 11) + END,
    "size_of_63_bits.tar": member(size=b"\x80\0\0\0\x7f" + b"\xff" * 7) + END,
    "negative_size.tar": member(size=b"\xff" * 12) + END,
    "size_of_letters.tar": member(size=b"no size here") + END,
    "name_of_gigabytes.tar": header(kind=b"L", size=b"77777777777\0") + END,
    "pax_of_gigabytes.tar": header(kind=b"x", size=b"77777777777\0") + END,
    "pax_without_a_length.tar": member(b"path=x\n", kind=b"x", size=b"00000000007\0") + member() + END,
    "pax_longer_than_itself.tar": member(b"99 path=x\n", kind=b"x", size=b"00000000012\0") + member() + END,
    "pax_shorter_than_its_key.tar": member(b"2 path=x\n", kind=b"x", size=b"00000000011\0") + member() + END,
    "pax_size_negative.tar": member(b"11 size=-5\n", kind=b"x", size=b"00000000013\0") + member() + END,
    "pax_size_of_63_bits.tar": member(b"28 size=9223372036854775807\n", kind=b"x", size=b"00000000034\0")
    + member() + END,
    "pax_sparse.tar": member(b"22 GNU.sparse.major=1\n", kind=b"x", size=b"00000000026\0") + member() + END,
    "sparse.tar": member(kind=b"S") + END,
    "two_of_one_field.tar": member() + member() + END,
    "no_sample.tar": member(name=b"README") + END,
}


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data=b"hello", length=None):
    head = struct.pack("<Q", len(data) if length is None else length)
    return head + masked(head) + data + masked(data)


RECORDS = {
    "gzip.tfrecord": b"\x1f\x8b\x08\0" + bytes(60),
    "length_crc_wrong.tfrecord": record()[:11] + b"?" + record()[12:],
    "data_crc_wrong.tfrecord": record()[:-1] + b"?",
    "data_flipped.tfrecord": record().replace(b"hello", b"hellO"),
    "length_beyond_the_end.tfrecord": record(length=6),
    "length_of_all_ones.tfrecord": record(length=2**64 - 1),
    "length_of_63_bits.tfrecord": record(length=2**63 - 1),
    "head_cut.tfrecord": record() + record()[:9],
    "data_cut.tfrecord": record() + record()[:14],
    "tail_cut.tfrecord": record() + record()[:-1],
}


def main():
    FOLDER.mkdir(exist_ok=True)
    for name, data in (MEGATRON | TARS | RECORDS).items():
        (FOLDER / name).write_bytes(data)


if __name__ == "__main__":
    main()
