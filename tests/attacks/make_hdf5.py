"""Writes malicious HDF5 files into hdf5/: loops, overlaps, counts and sizes made to break a reader.

    python3 tests/attacks/make_hdf5.py        # needs h5py 3.16

Each is a good file of h5py in which a structure was found by its letters and changed. The test
reads them and compares each refusal with its line in hdf5/expected.txt.
"""

import io
import struct
from pathlib import Path

import h5py
import numpy as np

FOLDER = Path(__file__).parent / "hdf5"
NOWHERE = 2**64 - 1


def lookup3(data):
    """The checksum of the newer structures."""
    def rotate(x, k):
        return (x << k | x >> 32 - k) & 0xFFFFFFFF

    a = b = c = (0xDEADBEEF + len(data)) & 0xFFFFFFFF
    while True:
        part, rest = data[:12].ljust(12, b"\0"), data[12:]
        if not data:
            return c
        x, y, z = struct.unpack("<3I", part)
        a, b, c = (a + x) & 0xFFFFFFFF, (b + y) & 0xFFFFFFFF, (c + z) & 0xFFFFFFFF
        if not rest:
            break
        for k, (p, q, r) in zip([4, 6, 8, 16, 19, 4], ["acb", "bac", "cba"] * 2):
            v = {"a": a, "b": b, "c": c}
            v[p] = ((v[p] - v[q]) & 0xFFFFFFFF) ^ rotate(v[q], k)
            v[q] = (v[q] + v[r]) & 0xFFFFFFFF
            a, b, c = v["a"], v["b"], v["c"]
        data = rest
    for k, (p, q) in zip([14, 11, 25, 16, 4, 14, 24], ["cb", "ac", "ba", "cb", "ac", "ba", "cb"]):
        v = {"a": a, "b": b, "c": c}
        v[p] = ((v[p] ^ v[q]) - rotate(v[q], k)) & 0xFFFFFFFF
        a, b, c = v["a"], v["b"], v["c"]
    return c


def made(build, **options):
    memory = io.BytesIO()
    with h5py.File(memory, "w", **options) as file:
        build(file)
    return bytearray(memory.getvalue())


def find(data, letters, number=0):
    at = -1
    for _ in range(number + 1):
        at = data.index(letters, at + 1)
    return at


def put(data, at, form, *values):
    struct.pack_into("<" + form, data, at, *values)
    return data


def get(data, at, form):
    return struct.unpack_from("<" + form, data, at)[0]


def two(file):
    file["a/w"] = np.arange(4, dtype="f4")
    file["b"] = np.arange(6, dtype="f4")


def chunked(file):
    file.create_dataset("c", data=np.arange(64, dtype="f4"), chunks=(16,))


def gzipped(file):
    file.create_dataset("z", data=np.zeros(64, "f4"), chunks=(16,), compression="gzip")


def many(file):
    for i in range(20):
        file[f"name of dataset {i}"] = np.arange(3)


ATTACKS = {}


def attack(function):
    ATTACKS[function.__name__] = function
    return function


@attack
def empty():
    return b""


@attack
def only_the_signature():
    return made(two)[:8]


@attack
def superblock_version_9():
    return put(made(two), 8, "B", 9)


@attack
def addresses_of_3_bytes():
    return put(made(two), 13, "B", 3)


@attack
def end_behind_the_file():
    return put(made(two), 40, "Q", 1 << 40)


@attack
def cut_in_the_middle():
    data = made(two)
    return data[: len(data) // 2]


@attack
def root_nowhere():
    return put(made(two), 64, "Q", NOWHERE)


@attack
def root_outside():
    return put(made(two), 64, "Q", 1 << 62)


@attack
def root_is_a_dataset():
    data = made(two)
    symbols = find(data, b"SNOD", 0)
    return put(data, 64, "Q", get(data, symbols + 8 + 40 + 8, "Q"))


def root_header(data):
    return get(data, 64, "Q")


@attack
def header_version_7():
    data = made(two)
    return put(data, root_header(data), "B", 7)


@attack
def header_of_4_gigabytes():
    data = made(two)
    return put(data, root_header(data) + 8, "I", 0xFFFFFFF0)


@attack
def message_longer_than_header():
    data = made(two)
    return put(data, root_header(data) + 18, "H", 0xFFF8)


@attack
def header_continues_at_itself():
    data = made(two)
    at = root_header(data)
    put(data, at + 2, "H", 9)
    return put(data, at + 16, "HHBBBBQQ", 0x10, 16, 0, 0, 0, 0, at + 16, 24)


@attack
def tree_is_its_own_child():
    data = made(two)
    tree = find(data, b"TREE")
    put(data, tree + 5, "B", 1)
    return put(data, tree + 32, "Q", tree)


@attack
def tree_of_level_200():
    data = made(two)
    return put(data, find(data, b"TREE") + 5, "B", 200)


@attack
def tree_of_another_type():
    data = made(two)
    return put(data, find(data, b"TREE") + 4, "B", 1)


@attack
def tree_with_65535_children():
    data = made(two)
    return put(data, find(data, b"TREE") + 6, "H", 65535)


@attack
def tree_with_a_child_outside():
    data = made(two)
    return put(data, find(data, b"TREE") + 32, "Q", 1 << 50)


@attack
def tree_with_one_node_twice():
    data = made(two)
    tree = find(data, b"TREE")
    put(data, tree + 6, "H", 2)
    return put(data, tree + 48, "Q", get(data, tree + 32, "Q"))


@attack
def symbols_65535():
    data = made(two)
    return put(data, find(data, b"SNOD") + 6, "H", 65535)


@attack
def name_outside_the_heap():
    data = made(two)
    return put(data, find(data, b"SNOD") + 8, "Q", 1 << 40)


@attack
def heap_larger_than_the_file():
    data = made(two)
    return put(data, find(data, b"HEAP") + 8, "Q", 1 << 29)


@attack
def heap_of_exabytes():
    data = made(two)
    return put(data, find(data, b"HEAP") + 8, "Q", 1 << 62)


@attack
def two_links_of_one_name():
    data = made(two)
    symbols = find(data, b"SNOD")
    return put(data, symbols + 48, "Q", get(data, symbols + 8, "Q"))


@attack
def link_with_a_slash():
    data = made(two)
    heap = get(data, find(data, b"HEAP") + 24, "Q")
    return put(data, heap + 8, "B", ord("/"))


@attack
def group_inside_itself():
    def build(file):
        file["a/w"] = np.arange(3)
        file["a/again"] = file["a"]

    return made(build)


@attack
def group_inside_itself_newer():
    def build(file):
        file["a/w"] = np.arange(3)
        file["a/b/again"] = file["a"]

    return made(build, libver=("v108", "v108"))


@attack
def groups_that_double_24_times():
    def build(file):
        file["0/w"] = np.arange(3)
        for i in range(24):
            file[f"{i + 1}/x"] = file[f"{i}"]
            file[f"{i + 1}/y"] = file[f"{i}"]

    return made(build)


@attack
def groups_100_deep():
    return made(lambda file: file.create_dataset("/".join("g" * 100), data=1.0))


def space_of_b(data):
    """Where the dataspace message of a dataset with 6 elements has its size."""
    return data.index(struct.pack("<BBBBIQ", 1, 1, 1, 0, 0, 6)) + 8


@attack
def dimension_of_2_to_63():
    data = made(two)
    return put(data, space_of_b(data), "Q", 1 << 63)


@attack
def dimension_larger_than_its_storage():
    data = made(two)
    return put(data, space_of_b(data), "Q", 7)


@attack
def dimensions_255():
    data = made(two)
    return put(data, space_of_b(data) - 7, "B", 255)


@attack
def dimensions_9():
    return made(lambda file: file.create_dataset("w", data=np.zeros((1,) * 9)))


def layout_of(data, count):
    """Where the layout message of a contiguous dataset of `count` bytes has its address."""
    at = data.index(struct.pack("<Q", count))
    while data[at - 10 : at - 8] != b"\x03\x01":
        at = data.index(struct.pack("<Q", count), at + 1)
    return at - 8


@attack
def elements_outside_the_file():
    data = made(two)
    return put(data, layout_of(data, 24), "Q", 1 << 40)


@attack
def datasets_that_share_bytes():
    data = made(two)
    return put(data, layout_of(data, 24), "Q", get(data, layout_of(data, 16), "Q") + 8)


@attack
def layout_class_9():
    data = made(two)
    return put(data, layout_of(data, 24) - 1, "B", 9)


@attack
def layout_version_1():
    data = made(two)
    return put(data, layout_of(data, 24) - 2, "B", 1)


def chunk_entries(data):
    """Where the B-tree of chunks has its first key. An entry has 32 bytes."""
    return find(data, b"TREE\x01") + 24


@attack
def chunks_that_share_bytes():
    data = made(chunked)
    at = chunk_entries(data)
    return put(data, at + 32 + 24, "Q", get(data, at + 24, "Q") + 4)


@attack
def chunk_twice():
    data = made(chunked)
    return put(data, chunk_entries(data) + 32 + 8, "Q", 0)


@attack
def chunk_outside_the_dataset():
    data = made(chunked)
    return put(data, chunk_entries(data) + 32 + 8, "Q", 1 << 20)


@attack
def chunk_between_two_places():
    data = made(chunked)
    return put(data, chunk_entries(data) + 32 + 8, "Q", 17)


@attack
def chunk_outside_the_file():
    data = made(chunked)
    return put(data, chunk_entries(data) + 24, "Q", 1 << 40)


@attack
def chunk_of_other_size():
    data = made(chunked)
    return put(data, chunk_entries(data), "I", 60)


@attack
def chunk_tree_is_its_own_child():
    data = made(chunked)
    tree = find(data, b"TREE\x01")
    put(data, tree + 5, "B", 1)
    return put(data, chunk_entries(data) + 24, "Q", tree)


@attack
def chunks_of_no_elements():
    data = made(chunked)
    at = data.index(struct.pack("<II", 16, 4), find(data, b"\x03\x02\x02"))
    return put(data, at, "I", 0)


@attack
def chunks_of_gigabytes():
    data = made(chunked)
    at = data.index(struct.pack("<II", 16, 4), find(data, b"\x03\x02\x02"))
    return put(data, at, "I", 1 << 30)


@attack
def bomb():
    data = made(gzipped)
    at = data.index(struct.pack("<II", 16, 4), find(data, b"\x03\x02\x02"))
    put(data, at, "I", 1 << 24)
    return data


@attack
def stream_that_is_too_long():
    def build(file):
        options = {"chunks": (32,), "compression": "gzip"}
        file.create_dataset("z", data=np.zeros(64, "f4"), **options)

    data = made(build)
    at = data.index(struct.pack("<II", 32, 4), find(data, b"\x03\x02\x02"))
    tree = find(data, b"TREE\x01")
    put(data, tree + 6, "H", 1)
    return put(data, at, "I", 16)


@attack
def stream_of_noise():
    data = made(gzipped)
    at = get(data, chunk_entries(data) + 24, "Q")
    return put(data, at + 2, "8B", *range(248, 256))


@attack
def fletcher32_is_wrong():
    def build(file):
        options = {"chunks": (16,), "fletcher32": True}
        file.create_dataset("f", data=np.arange(64, dtype="f4"), **options)

    data = made(build)
    at = get(data, chunk_entries(data) + 24, "Q")
    return put(data, at + 5, "B", 77)


@attack
def filter_lzf():
    options = {"chunks": (16,), "compression": "lzf"}
    return made(lambda file: file.create_dataset("l", data=np.zeros(64), **options))


@attack
def filter_scaleoffset():
    options = {"chunks": (16,), "scaleoffset": 3}
    return made(lambda file: file.create_dataset("s", data=np.arange(64), **options))


@attack
def index_of_a_fixed_array():
    return made(chunked, libver="latest")


@attack
def index_of_an_extensible_array():
    options = {"chunks": (16,), "maxshape": (None,)}
    build = lambda file: file.create_dataset("c", data=np.arange(64), **options)
    return made(build, libver="latest")


@attack
def virtual_dataset():
    def build(file):
        layout = h5py.VirtualLayout(shape=(4,), dtype="f4")
        layout[:] = h5py.VirtualSource("other.h5", "w", shape=(4,))
        file.create_virtual_dataset("v", layout)

    return made(build, libver="latest")


@attack
def link_to_another_file():
    def build(file):
        file["e"] = h5py.ExternalLink("/etc/passwd", "/w")

    return made(build)


@attack
def elements_in_another_file():
    options = {"external": [("/etc/passwd", 0, 64)]}
    return made(lambda file: file.create_dataset("e", (8,), "f8", **options))


@attack
def compound():
    kind = [("x", "f4"), ("y", "i4")]
    return made(lambda file: file.create_dataset("k", data=np.zeros(3, kind)))


@attack
def lists_of_numbers():
    kind = h5py.vlen_dtype("i4")
    return made(lambda file: file.create_dataset("v", (3,), kind))


@attack
def references():
    return made(lambda file: file.create_dataset("r", (3,), h5py.ref_dtype))


@attack
def strings_nowhere():
    data = made(lambda file: file.create_dataset("s", data=["abc", "defg"]))
    return put(data, find(data, b"GCOL") + 16, "H", 9)


@attack
def strings_in_a_heap_of_exabytes():
    data = made(lambda file: file.create_dataset("s", data=["abc", "defg"]))
    return put(data, find(data, b"GCOL") + 8, "Q", 1 << 60)


@attack
def string_longer_than_its_object():
    data = made(lambda file: file.create_dataset("s", data=["abc", "defg"]))
    heap = find(data, b"GCOL")
    at = data.index(struct.pack("<IQ", 3, heap))
    return put(data, at, "I", 0x7FFFFFFF)


@attack
def petabytes_that_were_never_written():
    options = {"chunks": (1024, 1024)}
    return made(lambda file: file.create_dataset("p", (1 << 25, 1 << 25), "f4", **options))


@attack
def newer_superblock_with_a_wrong_checksum():
    return put(made(two, libver=("v108", "v108")), 44, "I", 7)


@attack
def newer_header_with_a_wrong_checksum():
    data = made(two, libver=("v108", "v108"))
    at = find(data, b"OHDR")
    return put(data, at + 20, "B", data[at + 20] ^ 1)


def summed(data, begin, end):
    return put(data, end, "I", lookup3(bytes(data[begin:end])))


@attack
def newer_tree_is_its_own_child():
    data = made(many, libver=("v108", "v108"))
    tree, leaf = find(data, b"BTHD"), find(data, b"BTLF")
    put(data, tree + 12, "H", 1)
    put(data, tree + 24, "H", 1)
    summed(data, tree, tree + 34)
    data[leaf : leaf + 4] = b"BTIN"
    for i in range(2):
        put(data, leaf + 6 + 11 + 9 * i, "QB", leaf, 1)
    return summed(data, leaf, leaf + 6 + 11 + 18)


@attack
def newer_tree_of_65535_levels():
    data = made(many, libver=("v108", "v108"))
    tree = find(data, b"BTHD")
    put(data, tree + 12, "H", 65535)
    return summed(data, tree, tree + 34)


@attack
def newer_tree_with_65535_records():
    data = made(many, libver=("v108", "v108"))
    tree = find(data, b"BTHD")
    put(data, tree + 24, "H", 65535)
    return summed(data, tree, tree + 34)


@attack
def fractal_heap_with_a_wrong_checksum():
    data = made(many, libver=("v108", "v108"))
    return put(data, find(data, b"FRHP") + 110, "B", 3)


@attack
def fractal_heap_with_rows_of_no_blocks():
    data = made(many, libver=("v108", "v108"))
    heap = find(data, b"FRHP")
    put(data, heap + 110, "H", 0)
    return summed(data, heap, heap + 142)


@attack
def fractal_heap_whose_root_is_outside():
    data = made(many, libver=("v108", "v108"))
    heap = find(data, b"FRHP")
    put(data, heap + 132, "Q", 1 << 50)
    return summed(data, heap, heap + 142)


@attack
def kept_names_of_tensors_that_are_not_there():
    def build(file):
        file["w"] = np.arange(3)
        file.attrs["holdfast.names"] = '{"v": "x"}'

    return made(build)


def main():
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.h5"):
        old.unlink()
    for name, function in ATTACKS.items():
        (FOLDER / f"{name}.h5").write_bytes(function())
    print(len(ATTACKS), "files")


if __name__ == "__main__":
    main()
