"""Writes malicious files: those in torch/ are made to break a reader of torch's zip files, and
those in pickle/ are made to break a reader of pickles.

    python3 tests/attacks/make_torch.py
"""

import io
import pickle
import struct
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parent

PROTO = b"\x80\x02"
EMPTY_ORDERED = b"ccollections\nOrderedDict\n)R"


def text(value):
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def integer(value):
    return b"J" + struct.pack("<i", value)


def numbers(values):
    return b"(" + b"".join(integer(v) for v in values) + b"t"


def storage(key="0", numel=4, kind=b"ctorch\nFloatStorage\n"):
    return b"(" + text("storage") + kind + text(key) + text("cpu") + integer(numel) + b"tQ"


def tensor(shape=(4,), stride=(1,), offset=0, more=b"", **of):
    function = b"ctorch._utils\n_rebuild_tensor_v2\n("
    body = storage(**of) + integer(offset) + numbers(shape) + numbers(stride)
    return function + body + b"\x89" + EMPTY_ORDERED + more + b"tR"


def dict_of(**items):
    body = b"".join(text(key) + value for key, value in items.items())
    return b"}(" + body + b"u"


def program(value):
    return PROTO + value + b"."


GOOD = program(dict_of(w=tensor()))
DATA = bytes(16)


def archive(data=GOOD, records=None, notes=None, compression=zipfile.ZIP_STORED):
    """A well-formed archive around the given pickle and records."""
    out = io.BytesIO()
    notes = {"byteorder": b"little", "version": b"3\n"} if notes is None else notes
    records = {"data/0": DATA} if records is None else records
    with zipfile.ZipFile(out, "w") as file:
        for name, raw in {"data.pkl": data, **notes, **records}.items():
            entry = zipfile.ZipInfo(f"a/{name}")  # its date is 1980, so every run gives equal bytes
            file.writestr(entry, raw, compression)
    return out.getvalue()


def patch(raw, find, at, format, value, last=True):
    """Overwrites a number in the last (or first) header that begins with `find`."""
    start = raw.rindex(find) if last else raw.index(find)
    out = bytearray(raw)
    struct.pack_into(format, out, start + at, value)
    return bytes(out)


LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"


def zip_attacks():
    good = archive()
    yield "cut_in_the_directory", good[:-30]
    yield "cut_in_a_record", good[:100]
    yield "no_end_record", good[: good.rindex(END)]
    yield "nothing", b""
    yield "only_an_end_record", good[good.rindex(END) :]
    yield "bytes_in_front", b"#!/bin/sh\n" + good
    yield "bytes_behind", good + b"more"
    comment = patch(good, END, 20, "<H", 4)
    yield "a_comment", comment + b"more"
    yield "another_archive_in_the_comment", in_the_comment(good)
    yield "compressed", archive(compression=zipfile.ZIP_DEFLATED)
    yield "encrypted", patch(patch(good, CENTRAL, 8, "<H", 1), LOCAL, 6, "<H", 1)
    yield "directory_outside", patch(good, END, 16, "<I", 0x7FFFFFFF)
    yield "directory_of_4_gib", patch(good, END, 12, "<I", 0xFFFFFFFE)
    yield "more_entries_than_listed", patch(
        patch(good, END, 8, "<H", 3), END, 10, "<H", 3
    )
    yield "fewer_entries_than_said", patch(
        patch(good, END, 8, "<H", 5000), END, 10, "<H", 5000
    )
    yield "second_disk", patch(good, END, 4, "<H", 1)
    yield "entry_on_a_second_disk", patch(good, CENTRAL, 34, "<H", 1)
    huge = patch(good, CENTRAL, 24, "<I", 0x7FFFFFFF)
    yield "record_of_2_gib", patch(huge, CENTRAL, 20, "<I", 0x7FFFFFFF)
    yield "sizes_that_differ", patch(good, CENTRAL, 24, "<I", 15)
    yield "size_of_the_header_differs", patch(good, LOCAL, 22, "<I", 8)
    yield "header_outside", patch(good, CENTRAL, 42, "<I", 0x7FFFFFF0)
    yield "zip64_without_its_field", patch(good, CENTRAL, 42, "<I", 0xFFFFFFFF)
    yield "two_entries_for_one_record", two_for_one(good)
    yield "records_that_overlap", overlapping()
    yield "the_same_name_twice", twice()
    yield "the_same_name_but_for_case", archive(
        records={"data/0": DATA, "DATA/0": b"x" * 16}
    )
    yield "another_byte_order_but_for_case", archive(
        notes={"ByteOrder": b"big", "version": b"3\n"}
    )
    yield "another_folder_first", another_folder_first()
    yield "up_and_out", archive(records={"data/0": DATA, "../../etc/passwd": b"x"})
    yield "absolute_name", absolute()
    yield "backslashes", archive(records={"data/0": DATA, "..\\..\\x": b"x"})
    yield "two_pickles", two_pickles()
    yield "no_pickle", archive().replace(b"data.pkl", b"data.xyz")
    yield "wrong_crc_of_the_pickle", patch(good, CENTRAL, 16, "<I", 1, last=False)
    yield "extra_field_to_the_sky", patch(good, LOCAL, 28, "<H", 0xFFFF)
    yield "zip64_record_outside", zip64(good, 2**62, 2**40)
    yield "zip64_sizes_past_63_bits", zip64(good, 2**64 - 1, 2**64 - 1)


def two_for_one(good):
    """The last entry of the directory, listed twice for the same record."""
    end = good.rindex(END)
    entry = good[good.rindex(CENTRAL) : end]
    out = good[:end] + entry + good[end:]
    out = patch(out, END, 8, "<H", 5)
    out = patch(out, END, 10, "<H", 5)
    (size,) = struct.unpack_from("<I", out, out.rindex(END) + 12)
    return patch(out, END, 12, "<I", size + len(entry))


def overlapping():
    """A record that contains the next one, as in a zip bomb."""
    inner = archive(records={"data/0": b"x" * 16, "data/1": b"y" * 16})
    at = inner.index(b"a/data/0", inner.index(CENTRAL)) - 46
    out = bytearray(inner)
    begin = inner.index(b"a/data/0") - 30
    for offset in (20, 24):
        struct.pack_into("<I", out, at + offset, 60)
    for offset in (18, 22):
        struct.pack_into("<I", out, begin + offset, 60)
    return bytes(out)


def twice():
    raw = archive(records={"data/0": DATA, "data/1": DATA})
    return raw.replace(b"a/data/1", b"a/data/0")


def absolute():
    raw = archive(records={"data/0": DATA, "data/1": DATA})
    return raw.replace(b"a/data/1", b"/etc/pwd")


def in_the_comment(good):
    """An archive whose comment contains a second end record, so that two could be the real one."""
    other = good[good.rindex(END) :] + b"!"
    return patch(good, END, 20, "<H", len(other)) + other


def another_folder_first():
    """An archive with entries in two folders. torch uses the folder of the first listed entry."""
    raw = archive(records={"data/0": DATA, "data/1": DATA})
    raw = raw.replace(b"a/data/1", b"b/data/1")
    begin, last, end = raw.index(CENTRAL), raw.rindex(CENTRAL), raw.rindex(END)
    return raw[:begin] + raw[last:end] + raw[begin:last] + raw[end:]


def two_pickles():
    raw = archive(records={"data/0": DATA, "data.xkl": GOOD})
    return raw.replace(b"a/data.xkl", b"b/data.pkl")


def zip64(good, size, offset):
    end = good.rindex(END)
    record = struct.pack(
        "<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, 4, 4, size, offset
    )
    locator = struct.pack("<IIQI", 0x07064B50, 0, end, 1)
    tail = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 4, 4, 2**32 - 1, 2**32 - 1, 0)
    return good[:end] + record + locator + tail


def tensor_attacks():
    """Pickles of tensors whose sizes, strides or storages are wrong."""
    two = {"data/0": DATA, "data/1": DATA}
    yield "negative_size", tensor(shape=(-4,))
    yield "negative_stride", tensor(stride=(-1,))
    yield "negative_offset", tensor(offset=-1)
    yield "offset_outside", tensor(offset=1)
    yield "view_too_long", tensor(shape=(5,))
    yield "stride_too_long", tensor(shape=(2,), stride=(4,))
    yield "stride_that_wraps", tensor(shape=(2**30, 2**20), stride=(2**30, 2**31 - 1))
    yield "size_past_63_bits", tensor(shape=(2**30,) * 4, stride=(0,) * 4)
    yield "nine_dimensions", tensor(shape=(1,) * 9, stride=(1,) * 9)
    yield "more_sizes_than_strides", tensor(shape=(2, 2))
    yield "expanded", tensor(shape=(4, 4), stride=(0, 1))
    yield "elements_that_share_bytes", tensor(shape=(2, 2), stride=(1, 1))
    yield "numel_too_large", tensor(numel=5)
    yield "numel_too_small", tensor(shape=(1,), numel=3)
    yield "numel_negative", tensor(numel=-4)
    yield "no_such_storage", tensor(key="9")
    yield "storage_with_a_path", tensor(key="../data.pkl")
    yield "storage_of_no_type", tensor(kind=b"ctorch\nMoonStorage\n")
    yield "conjugated", tensor(more=dict_of(conj=b"\x88"))
    yield "sparse", b"ctorch._utils\n_rebuild_sparse_tensor\n(tR"
    yield "subclass", b"ctorch._tensor\n_rebuild_from_type_v2\n(tR"
    yield "quantized", b"ctorch._utils\n_rebuild_qtensor\n(tR"
    yield "parameter_of_nothing", b"ctorch._utils\n_rebuild_parameter\n(N\x88NtR"
    yield "storage_without_a_tensor", storage()
    yield "two_paths_with_one_name", (
        dict_of(a=dict_of(b=tensor()), **{"a.b": tensor(key="1")}),
        two,
    )


def pickle_attacks():
    yield "os_system", b"cos\nsystem\n(" + text("touch /tmp/holdfast-pwned") + b"tR"
    yield "eval_by_stack", b"\x8c\x08builtins\x8c\x04eval\x93(\x8c\x011tR"
    yield "hidden_global", b"cposix\nsystem\n0N"
    yield "instance", b"(ios\nsystem\n"
    yield "object", b"(cos\nsystem\no"
    yield "extension", b"\x82\x01"
    yield "unknown_opcode", b"\xff"
    yield "contains_itself", b"]q\x00h\x00a"
    yield "dict_contains_itself", b"}q\x00" + text("a") + b"h\x00s"
    yield "contains_itself_through_a_tuple", b"]q\x00h\x00\x85a"
    yield "billion_laughs", laughs()
    yield "long_text_many_times", text("x" * 4096) + b"q\x000](" + b"h\x00" * 9000 + b"e"
    yield "long_global_many_times", long_global()
    yield "huge_long", b"\x8b" + struct.pack("<I", 2**31 - 1) + b"\x01"
    yield "long_of_4_kib", b"\x8b" + struct.pack("<I", 4096) + b"\x7f" * 4096
    yield "long_text_that_is_short", b"X" + struct.pack("<I", 2**32 - 1) + b"x"
    yield "bytes_of_2_to_the_63", b"\x8e" + struct.pack("<Q", 2**63) + b"x"
    yield "frame_too_long", b"\x95" + struct.pack("<Q", 2**40)
    yield "memo_miss", b"h\x07"
    yield "stack_underflow", b"\x86"
    yield "reduce_of_nothing", b"R"
    yield "no_mark", b"t"
    yield "below_the_mark", b"N(a"
    yield "nothing", b""
    yield "two_values", b"NN"
    yield "odd_items", b"}(Nu"
    yield "append_to_a_tuple", b")Na"
    yield "list_for_a_key", b"}](" + b"eNs"
    yield "the_same_key_twice", b"}(" + (text("a") + b"N") * 2 + b"u"
    yield "equal_keys", b"}(K\x01N\x88Nu"
    yield "build_of_a_list", b"]}b"
    yield "not_utf8", b"X\x02\x00\x00\x00\xc3\x28"
    yield "surrogate", b"X\x03\x00\x00\x00\xed\xa0\x80"
    yield "deep", b"(" * 5000 + b"t" * 5000
    yield "protocol_9", b"\x80\x09N"
    yield "line_without_end", b"I" + b"1" * 10000


def long_global():
    """A long name that is used many times. A careless reader copies it each time."""
    name = text("torch") + b"q\x00" + text("x" * 50000) + b"q\x01"
    return b"](" + name + b"00" + b"h\x00h\x01\x93" * 10000 + b"e"


def laughs():
    out = b"](NNNNNNNNNNeq\x00"
    for i in range(1, 20):
        out += b"](" + (b"h" + bytes([i - 1])) * 10 + b"eq" + bytes([i])
    return b"(" + out + b"t"


def torch_attacks():
    yield from zip_attacks()
    for name, value in tensor_attacks():
        value, records = value if isinstance(value, tuple) else (value, None)
        if value[:1] != b"}":
            value = dict_of(w=value)
        yield name, archive(program(value), records)
    for name, value in pickle_attacks():
        yield "pickle_" + name, archive(program(value))
    yield "pickle_without_end", archive(GOOD[:-1])
    yield "bytes_behind_the_pickle", archive(GOOD + b"N.")
    yield "big_endian", archive(notes={"byteorder": b"big", "version": b"3\n"})
    yield "version_of_the_future", archive(notes={"version": b"99\n"})
    yield "no_version", archive(notes={})
    yield "script", archive(records={"data/0": DATA, "constants.pkl": b"N."})
    yield "legacy", pickle.dumps(0x1950A86A20F9469CFC6C, 2) + GOOD


def write(folder, files, extension):
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name, raw in files:
        (folder / (name + extension)).write_bytes(raw)


def main():
    write(FOLDER / "torch", torch_attacks(), ".pt")
    write(
        FOLDER / "pickle",
        ((name, program(value)) for name, value in pickle_attacks()),
        ".pkl",
    )
    # This file is not malicious. The others are made from it, so a test checks that it can be read.
    (FOLDER / "torch_good.pt").write_bytes(archive())


if __name__ == "__main__":
    main()
