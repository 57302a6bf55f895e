"""Writes malicious HDF5 files into hdf5/: loops, overlaps, counts and sizes made to break a reader.

    python3 tests/attacks/make_hdf5.py        # needs h5py 3.16

Each is a good file of h5py, in which a structure may be found by its letters and changed. The test
reads them and compares each refusal with its line in hdf5/expected.txt.
"""

import io
import struct
from pathlib import Path

import h5py
import numpy as np

FOLDER = Path(__file__).parent / "hdf5"
NOWHERE = 2**64 - 1
NEWER = {"libver": ("v108", "v108")}
LATEST = {"libver": "latest"}


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


# Good files, by what is in them.


def two(file):
    file["a/w"] = np.arange(4, dtype="f4")
    file["b"] = np.arange(6, dtype="f4")


def many(file):
    for i in range(20):
        file[f"name of dataset {i}"] = np.arange(3)


def dataset(name, *arguments, **options):
    return lambda file: file.create_dataset(name, *arguments, **options)


chunked = dataset("c", data=np.arange(64, dtype="f4"), chunks=(16,))
gzipped = dataset("z", data=np.zeros(64, "f4"), chunks=(16,), compression="gzip")
gzipped_wide = dataset("z", data=np.zeros(64, "f4"), chunks=(32,), compression="gzip")
summed = dataset("f", data=np.arange(64, dtype="f4"), chunks=(16,), fletcher32=True)
strings = dataset("s", data=["abc", "defg"])
lzf = dataset("l", data=np.zeros(64, "u1"), chunks=(64,), compression="lzf")
growing = dataset("g", data=np.arange(64, dtype="f4"), chunks=(1,), maxshape=(None,))
growing_2 = dataset("t", data=np.arange(64, dtype="f4").reshape(8, 8), chunks=(4, 4),
                    maxshape=(None, None))  # fmt: skip
one_chunk = dataset("o", data=np.arange(64, dtype="f4"), chunks=(64,))


def implicit(file):
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((16,))
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    space = h5py.h5s.create_simple((64,))
    h5py.h5d.create(file.id, b"i", h5py.h5t.IEEE_F32LE, space, properties)


def links(**paths):
    """A file with an array at each path, and links to what is there already."""
    def build(file):
        for path, target in paths.items():
            file[path.replace("__", "/")] = np.arange(3) if target is None else file[target]

    return build


def doubling_groups(file):
    file["0/w"] = np.arange(3)
    for i in range(24):
        file[f"{i + 1}/x"] = file[f"{i}"]
        file[f"{i + 1}/y"] = file[f"{i}"]


def virtual(file):
    layout = h5py.VirtualLayout(shape=(4,), dtype="f4")
    layout[:] = h5py.VirtualSource("other.h5", "w", shape=(4,))
    file.create_virtual_dataset("v", layout)


def external_link(file):
    file["e"] = h5py.ExternalLink("/etc/passwd", "/w")


def long_name(file):
    file["a" * 40] = np.arange(3)
    file["b"] = file["c"] = np.arange(3)


def long_paths(file):
    path = "/".join(["n" * 2000] * 40)
    for i in range(260):
        file[f"{path}/{i}"] = h5py.SoftLink("nowhere")


def slow_soft_links(file):
    file.create_group("g")
    file["g/self"] = file["g"]
    file["long"] = h5py.SoftLink("/g" + "/self" * 6000)
    for i in range(200):
        file[f"to long {i}"] = h5py.SoftLink("/long")


def kept_names(file):
    file["w"] = np.arange(3)
    file.attrs["holdfast.names"] = '{"v": "x"}'


# Places in a file: functions from its bytes to an offset.


def get(data, at, form):
    return struct.unpack_from("<" + form, data, at)[0]


def letters(text, more=0, number=0):
    def find(data):
        at = -1
        for _ in range(number + 1):
            at = data.index(text, at + 1)
        return at + more

    return find


def field(place, form="Q", more=0):
    """What a field of the file says, plus a number."""
    return lambda data: get(data, place(data), form) + more


def root(more=0):
    """The object header of the root group."""
    return lambda data: get(data, 64, "Q") + more


def size_of_b(more=0):
    """The size in the dataspace message of a dataset with 6 elements."""
    return letters(struct.pack("<BBBBIQ", 1, 1, 1, 0, 0, 6), 8 + more)


def layout(count, more=0):
    """The address in the layout message of a contiguous dataset of `count` bytes."""
    def find(data):
        at = data.index(struct.pack("<Q", count))
        while data[at - 10 : at - 8] != b"\x03\x01":
            at = data.index(struct.pack("<Q", count), at + 1)
        return at - 8 + more

    return find


def chunk(number, more=0):
    """The entry of a chunk in the B-tree of chunks. An entry has 32 bytes, a key of 24 first."""
    return letters(b"TREE\x01", 24 + 32 * number + more)


def chunk_size(elements):
    """The size of a chunk in the layout message."""
    return lambda data: data.index(
        struct.pack("<II", elements, 4), letters(b"\x03\x02\x02")(data)
    )


def string_length(data):
    return data.index(struct.pack("<IQ", 3, letters(b"GCOL")(data)))


def sum_of(begin, count):
    """Makes the checksum of a newer structure right again."""
    return (lambda data: begin(data) + count, "I",
            lambda data: lookup3(bytes(data[begin(data) : begin(data) + count])))  # fmt: skip


def new_layout(chunk, more=0):
    """The kind of index in the layout message of chunks of one dimension. Its address follows."""
    width = (chunk.bit_length() + 7) // 8
    message = bytes([4, 2, 0, 2, width]) + chunk.to_bytes(width, "little")
    message += (4).to_bytes(width, "little")
    return lambda data: next(
        data.index(bytes([version]) + message[1:]) + len(message) + more
        for version in (4, 5) if bytes([version]) + message[1:] in data)  # fmt: skip


def header_sum(number):
    """Makes the checksum of an object header of version 2 right again."""
    def end(data):
        at = letters(b"OHDR", number=number)(data)
        flags = data[at + 5]
        size = at + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        return size + width + int.from_bytes(data[size : size + width], "little")

    return (end, "I", lambda data: lookup3(
        bytes(data[letters(b"OHDR", number=number)(data) : end(data)])))  # fmt: skip


FIXED, FIXED_BLOCK = letters(b"FAHD"), letters(b"FADB")
GROWING, GROWING_INDEX = letters(b"EAHD"), letters(b"EAIB")
GROWING_BLOCK = letters(b"EADB")
TREE, HEADER_2, HEAP_2 = letters(b"BTHD"), letters(b"OHDR"), letters(b"FRHP")
LEAF = letters(b"BTLF")
INNER = letters(b"BTIN")

# Files that are refused as they are: how they are made, and h5py's options.
BUILT = {
    "group_inside_itself": (links(a__w=None, a__again="a"), {}),
    "group_inside_itself_newer": (links(a__w=None, a__b__again="a"), NEWER),
    "groups_that_double_24_times": (doubling_groups, {}),
    "paths_of_80_kilobytes": (long_paths, {}),
    "soft_links_of_6000_steps": (slow_soft_links, {}),
    "strings_that_were_never_written": (
        dataset("s", (1000000, 1, 1, 1, 1, 1, 1, 1), h5py.string_dtype()), {}),
    "groups_100_deep": (dataset("/".join("g" * 100), data=1.0), {}),
    "dimensions_9": (dataset("w", data=np.zeros((1,) * 9)), {}),
    "filter_scaleoffset": (dataset("s", data=np.arange(64), chunks=(16,), scaleoffset=3), {}),
    "virtual_dataset": (virtual, LATEST),
    "link_to_another_file": (external_link, {}),
    "elements_in_another_file": (
        dataset("e", (8,), "f8", external=[("/etc/passwd", 0, 64)]), {}),
    "compound": (dataset("k", data=np.zeros(3, [("x", "f4"), ("y", "i4")])), {}),
    "lists_of_numbers": (dataset("v", (3,), h5py.vlen_dtype("i4")), {}),
    "references": (dataset("r", (3,), h5py.ref_dtype), {}),
    "petabytes_that_were_never_written": (
        dataset("p", (1 << 25, 1 << 25), "f4", chunks=(1024, 1024)), {}),
    "kept_names_of_tensors_that_are_not_there": (kept_names, {}),
}  # fmt: skip

# Files that are cut: how they are made, and which part of them stays.
CUT = {
    "empty": (two, lambda size: 0),
    "only_the_signature": (two, lambda size: 8),
    "cut_in_the_middle": (two, lambda size: size // 2),
}

# Files in which numbers are changed: how they are made, and for each change its place, the form of
# its numbers (struct) and the numbers. Places and numbers may depend on the file.
CHANGED = {
    "superblock_version_9": (two, (8, "B", 9)),
    "addresses_of_3_bytes": (two, (13, "B", 3)),
    "end_behind_the_file": (two, (40, "Q", 1 << 40)),
    "root_nowhere": (two, (64, "Q", NOWHERE)),
    "root_outside": (two, (64, "Q", 1 << 62)),
    "root_is_a_dataset": (two, (64, "Q", field(letters(b"SNOD", 8 + 40 + 8)))),
    "header_version_7": (two, (root(), "B", 7)),
    "header_of_4_gigabytes": (two, (root(8), "I", 0xFFFFFFF0)),
    "message_longer_than_header": (two, (root(18), "H", 0xFFF8)),
    "header_continues_at_itself": (
        two, (root(2), "H", 9), (root(16), "HHBBBBQQ", 0x10, 16, 0, 0, 0, 0, root(16), 24)),
    "tree_is_its_own_child": (
        two, (letters(b"TREE", 5), "B", 1), (letters(b"TREE", 32), "Q", letters(b"TREE"))),
    "tree_of_level_200": (two, (letters(b"TREE", 5), "B", 200)),
    "tree_of_another_type": (two, (letters(b"TREE", 4), "B", 1)),
    "tree_with_65535_children": (two, (letters(b"TREE", 6), "H", 65535)),
    "tree_with_a_child_outside": (two, (letters(b"TREE", 32), "Q", 1 << 50)),
    "tree_with_one_node_twice": (
        two, (letters(b"TREE", 6), "H", 2),
        (letters(b"TREE", 48), "Q", field(letters(b"TREE", 32)))),
    "symbols_65535": (two, (letters(b"SNOD", 6), "H", 65535)),
    "name_outside_the_heap": (two, (letters(b"SNOD", 8), "Q", 1 << 40)),
    "heap_larger_than_the_file": (two, (letters(b"HEAP", 8), "Q", 1 << 29)),
    "heap_of_exabytes": (two, (letters(b"HEAP", 8), "Q", 1 << 62)),
    "names_that_overlap": (
        long_name, (letters(b"SNOD", 48), "Q", field(letters(b"SNOD", 8), more=1)),
        (letters(b"SNOD", 88), "Q", field(letters(b"SNOD", 8), more=2))),
    "two_links_of_one_name": (two, (letters(b"SNOD", 48), "Q", field(letters(b"SNOD", 8)))),
    "link_with_a_slash": (two, (field(letters(b"HEAP", 24), more=8), "B", ord("/"))),
    "dimension_of_2_to_63": (two, (size_of_b(), "Q", 1 << 63)),
    "dimension_larger_than_its_storage": (two, (size_of_b(), "Q", 7)),
    "dimensions_255": (two, (size_of_b(-7), "B", 255)),
    "elements_outside_the_file": (two, (layout(24), "Q", 1 << 40)),
    "datasets_that_share_bytes": (two, (layout(24), "Q", field(layout(16), more=8))),
    "layout_class_9": (two, (layout(24, -1), "B", 9)),
    "layout_version_1": (two, (layout(24, -2), "B", 1)),
    "chunks_that_share_bytes": (chunked, (chunk(1, 24), "Q", field(chunk(0, 24), more=4))),
    "chunk_twice": (chunked, (chunk(1, 8), "Q", 0)),
    "chunk_outside_the_dataset": (chunked, (chunk(1, 8), "Q", 1 << 20)),
    "chunk_between_two_places": (chunked, (chunk(1, 8), "Q", 17)),
    "chunk_outside_the_file": (chunked, (chunk(0, 24), "Q", 1 << 40)),
    "chunk_of_other_size": (chunked, (chunk(0), "I", 60)),
    "chunk_tree_is_its_own_child": (
        chunked, (letters(b"TREE\x01", 5), "B", 1),
        # The level has changed, but the letters are still there.
        (chunk(0, 24), "Q", letters(b"TREE\x01"))),
    "chunks_of_no_elements": (chunked, (chunk_size(16), "I", 0)),
    "chunks_of_gigabytes": (chunked, (chunk_size(16), "I", 1 << 30)),
    "bomb": (gzipped, (chunk_size(16), "I", 1 << 24)),
    "stream_that_is_too_long": (
        gzipped_wide, (letters(b"TREE\x01", 6), "H", 1), (chunk_size(32), "I", 16)),
    "stream_of_noise": (gzipped, (field(chunk(0, 24), more=2), "8B", *range(248, 256))),
    "fletcher32_is_wrong": (summed, (field(chunk(0, 24), more=5), "B", 77)),
    "strings_nowhere": (strings, (letters(b"GCOL", 16), "H", 9)),
    "strings_in_a_heap_of_exabytes": (strings, (letters(b"GCOL", 8), "Q", 1 << 60)),
    "string_longer_than_its_object": (strings, (string_length, "I", 0x7FFFFFFF)),
}  # fmt: skip

# The same for files with newer structures, which have checksums.
CHANGED_NEWER = {
    "newer_superblock_with_a_wrong_checksum": (two, (44, "I", 7)),
    "newer_header_with_a_wrong_checksum": (
        two, (letters(b"OHDR", 20), "B", lambda data: data[HEADER_2(data) + 20] ^ 1)),
    "newer_tree_is_its_own_child": (
        many, (letters(b"BTHD", 12), "H", 1), (letters(b"BTHD", 24), "H", 1), sum_of(TREE, 34),
        (LEAF, "4s", b"BTIN"), (letters(b"BTIN", 17), "QB", INNER, 1),
        (letters(b"BTIN", 26), "QB", INNER, 1), sum_of(INNER, 35)),
    "newer_tree_of_65535_levels": (many, (letters(b"BTHD", 12), "H", 65535), sum_of(TREE, 34)),
    "newer_tree_with_65535_records": (many, (letters(b"BTHD", 24), "H", 65535), sum_of(TREE, 34)),
    "fractal_heap_with_a_wrong_checksum": (many, (letters(b"FRHP", 110), "B", 3)),
    "fractal_heap_with_rows_of_no_blocks": (
        many, (letters(b"FRHP", 110), "H", 0), sum_of(HEAP_2, 142)),
    "fractal_heap_whose_root_is_outside": (
        many, (letters(b"FRHP", 132), "Q", 1 << 50), sum_of(HEAP_2, 142)),
}  # fmt: skip

# The same for the indexes of chunks since HDF5 1.10. The fixed array has 4 elements. The index
# block of the extensible one has 4, then the addresses of 6 data blocks, then those of super
# blocks.
CHANGED_LATEST = {
    "fixed_array_with_a_wrong_checksum": (chunked, (letters(b"FAHD", 8), "B", 7)),
    "fixed_array_of_another_kind": (chunked, (letters(b"FAHD", 5), "B", 1), sum_of(FIXED, 24)),
    "fixed_array_with_elements_of_200_bytes": (
        chunked, (letters(b"FAHD", 6), "B", 200), sum_of(FIXED, 24)),
    "fixed_array_with_pages_of_2_to_200": (
        chunked, (letters(b"FAHD", 7), "B", 200), sum_of(FIXED, 24)),
    "fixed_array_of_exabytes": (chunked, (letters(b"FAHD", 8), "Q", 1 << 60), sum_of(FIXED, 24)),
    "fixed_array_of_terabytes": (chunked, (letters(b"FAHD", 8), "Q", 1 << 40), sum_of(FIXED, 24)),
    "fixed_array_outside": (chunked, (letters(b"FAHD", 16), "Q", 1 << 50), sum_of(FIXED, 24)),
    "fixed_array_is_its_own_block": (
        chunked, (letters(b"FAHD", 16), "Q", FIXED), sum_of(FIXED, 24)),
    "fixed_array_of_another_header": (
        chunked, (letters(b"FADB", 6), "Q", 77), sum_of(FIXED_BLOCK, 46)),
    "fixed_array_with_a_chunk_twice": (
        chunked, (letters(b"FADB", 22), "Q", field(letters(b"FADB", 14))),
        sum_of(FIXED_BLOCK, 46)),
    "fixed_array_with_a_chunk_outside": (
        chunked, (letters(b"FADB", 14), "Q", 1 << 50), sum_of(FIXED_BLOCK, 46)),
    "fixed_array_with_pages_nowhere": (
        chunked, (letters(b"FAHD", 7), "B", 1), sum_of(FIXED, 24)),
    "extensible_array_of_2_to_200": (
        growing, (letters(b"EAHD", 7), "B", 200), sum_of(GROWING, 68)),
    "extensible_array_with_blocks_of_3": (
        growing, (letters(b"EAHD", 9), "B", 3), sum_of(GROWING, 68)),
    "extensible_array_with_blocks_of_0": (
        growing, (letters(b"EAHD", 9), "BB", 0, 0), sum_of(GROWING, 68)),
    "extensible_array_with_128_pointers": (
        growing, (letters(b"EAHD", 10), "B", 128), sum_of(GROWING, 68)),
    "extensible_array_with_pages_of_1": (
        growing, (letters(b"EAHD", 11), "B", 0), sum_of(GROWING, 68)),
    "extensible_array_nowhere": (
        growing, (letters(b"EAHD", 60), "Q", GROWING), sum_of(GROWING, 68)),
    "extensible_array_with_a_block_twice": (
        growing, (letters(b"EAIB", 54), "Q", field(letters(b"EAIB", 46))),
        sum_of(GROWING_INDEX, 294)),
    "extensible_array_with_a_super_block_that_is_a_block": (
        growing, (letters(b"EAIB", 94), "Q", GROWING_BLOCK),
        sum_of(GROWING_INDEX, 294)),
    "newer_chunk_tree_with_a_chunk_outside": (
        growing_2, (letters(b"BTLF", 6 + 8), "Q", 1 << 40), sum_of(LEAF, 6 + 4 * 24)),
    "index_of_one_chunk_for_four": (
        chunked, (new_layout(16), "B", 1), header_sum(1)),
    "index_of_kind_9": (one_chunk, (new_layout(64), "B", 9), header_sum(1)),
    "implicit_index_outside": (implicit, (new_layout(16, 1), "Q", 1 << 40), header_sum(1)),
    "lzf_stream_that_goes_back_too_far": (
        lzf, (letters(b"\x01\0\0\xe0\x33\0\x01\0\0", 5), "B", 0xFF)),
    "lzf_stream_that_is_cut": (lzf, (letters(b"\x01\0\0\xe0\x33\0\x01\0\0", 6), "B", 9)),
}  # fmt: skip


def made(build, options):
    memory = io.BytesIO()
    with h5py.File(memory, "w", **options) as file:
        build(file)
    return bytearray(memory.getvalue())


def changed(data, changes):
    for place, form, *numbers in changes:
        now = [number(data) if callable(number) else number for number in numbers]
        struct.pack_into("<" + form, data, place(data) if callable(place) else place, *now)
    return data


def overlapping_headers():
    """1,200 links to object headers of 80 KB, each of which begins 16 bytes behind the one before."""
    head = struct.pack("<BBHIII", 1, 0, 0, 1, 80_000, 0)

    def build(file):
        file["w"] = np.frombuffer(head * 6250, "u1")
        for i in range(1200):
            file[f"g/{i}"] = file["w"]

    data = made(build, {})
    at, address = letters(b"SNOD")(data), data.index(head * 2)  # the root's links come first
    while (at := data.find(b"SNOD", at + 1)) > 0:
        for i in range(get(data, at + 6, "H")):
            struct.pack_into("<Q", data, at + 8 + 40 * i + 8, address)
            address += 16
    return data


def attacks():
    yield "object_headers_that_overlap", overlapping_headers()
    for name, (build, options) in BUILT.items():
        yield name, made(build, options)
    for name, (build, part) in CUT.items():
        data = made(build, {})
        yield name, data[: part(len(data))]
    for table, options in ((CHANGED, {}), (CHANGED_NEWER, NEWER), (CHANGED_LATEST, LATEST)):
        for name, (build, *changes) in table.items():
            yield name, changed(made(build, options), changes)


def main():
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.h5"):
        old.unlink()
    written = [(FOLDER / f"{name}.h5").write_bytes(data) for name, data in attacks()]
    print(len(written), "files")


if __name__ == "__main__":
    main()
