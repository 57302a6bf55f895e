"""Writes malicious folders of torch.distributed.checkpoint into dcp/. Each is made to break a reader.

    python3 tests/attacks/make_dcp.py

Each attack is NAME.metadata, with NAME.distcp if its items are not those of good.distcp. The test
puts the two into a folder as .metadata and __0_0.distcp. expected.json has a part of the message with
which each must be refused, or "" for those that are unusual, but good. odd.json has the lines that
name what is left out of folders of which the tensor "good" can be read. torch is not needed: classes
with the same names stand for its own.
"""

import enum
import json
import pickle
import shutil
import sys
import types
from pathlib import Path, PosixPath

from make_torch import archive, program, tensor, text

FOLDER = Path(__file__).parent / "dcp"
METADATA = "torch.distributed.checkpoint.metadata"
FILES = "torch.distributed.checkpoint.filesystem"
OLD = "torch.distributed._shard.sharded_tensor.metadata"


def in_module(module, name, value):
    """Makes pickle find the value under this name."""
    value.__module__ = module
    setattr(sys.modules.setdefault(module, types.ModuleType(module)), name, value)
    return value


def make_class(module, name):
    def init(self, state=None, **attributes):
        self.__dict__.update(attributes)
        self.get_state = lambda: state or attributes or None
    methods = {"__init__": init, "__getstate__": lambda self: self.get_state()}
    return in_module(module, name, type(name, (), methods))


class Named:
    """Pickled as the name of something in torch."""

    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return self.name


class Call:
    """Pickled as a call."""

    def __init__(self, function, *arguments):
        self.parts = (function, arguments)

    def __reduce__(self):
        return self.parts


class Items(dict):
    """Pickled as a dict whose keys need not be hashable or different."""

    def __init__(self, *pairs):
        super().__init__()
        self.pairs = pairs

    def __reduce__(self):
        return sys.modules["collections"].OrderedDict, (), None, None, iter(self.pairs)


def function(module, name):
    made = types.FunctionType((lambda: None).__code__, {}, name)
    made.__qualname__ = name
    return in_module(module, name, made)


Metadata, Tensor, Bytes, Chunk, Index, Properties = (
    make_class(METADATA, name) for name in
    ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
     "MetadataIndex", "TensorProperties"))
Info, StorageMeta = make_class(FILES, "_StorageInfo"), make_class(METADATA, "StorageMeta")
OldProperties = make_class(OLD, "TensorProperties")
Size = function("torch", "Size")
layout = function("torch.serialization", "_get_layout")
Format = enum.Enum("_MEM_FORMAT_ENCODING", {"TORCH_CONTIGUOUS_FORMAT": 0}, module=METADATA)
in_module(METADATA, "_MEM_FORMAT_ENCODING", Format)
float32, moon = (in_module("torch", name, Named(name)) for name in ("float32", "moon64"))


def size(*sizes):
    return Call(Size, tuple(sizes))


def properties(dtype=float32, made=Properties):
    return made((dtype, Call(layout, "torch.strided"), False, Call(Format, 0), False))


def chunk(offsets, sizes):
    return Chunk(offsets=size(*offsets), sizes=size(*sizes))


def of_tensor(shape=(4,), chunks=None, **more):
    chunks = [chunk((0,) * len(shape), shape)] if chunks is None else chunks
    return Tensor(**{"properties": properties(), "size": size(*shape), "chunks": chunks, **more})


ITEMS = {name: archive(program(value), records) for name, value, records in (
    ("w", tensor(), None), ("half", tensor((2,), numel=2), {"data/0": bytes(8)}),
    ("matrix", tensor((2, 2), (2, 1)), None), ("step", b"K\7", {}),
    ("pair", b"(" + tensor() + text("and") + b"t", None), ("good", tensor(), None),
    ("expanded", tensor(stride=(0,), numel=1), {"data/0": bytes(4)}),
    ("expanded_in_a_tuple",
     b"(" + tensor(stride=(0,), numel=1) + text("and") + b"t", {"data/0": bytes(4)}))}
PLACES, at = {}, 0
for name, raw in ITEMS.items():
    PLACES[name] = (at, len(raw))
    at += len(raw)
GOOD_ITEMS = b"".join(ITEMS.values())


def info(item="w", **more):
    offset, length = PLACES[item]
    return Info(**{"relative_path": "__0_0.distcp", "offset": offset, "length": length, **more})


def index(name="w", offset=(0,)):
    return Index(fqn=name, index=0, **({} if offset is None else {"offset": size(*offset)}))


def metadata(entries=None, items=None, paths=None, **more):
    entries = {"w": of_tensor()} if entries is None else entries
    items = ((index(), info()),) if items is None else items
    return Metadata(**{"state_dict_metadata": entries, "planner_data": paths,
                       "storage_data": Items(*items), **more})


def one(entry=None, **more):
    return metadata({"w": of_tensor() if entry is None else entry}, **more)


def chunks(*boxes, shape=(4,)):
    """A tensor in chunks that all have the item of the same shape."""
    items = {(4,): "w", (2,): "half", (2, 2): "matrix"}
    return metadata({"w": of_tensor(shape, [chunk(*box) for box in boxes])},
                    [(index(offset=box[0]), info(items.get(box[1], "w"))) for box in boxes])


def entry_of(item, **more):
    return metadata({"w": Bytes()}, [(index(offset=None), info(item))], **more)


def two(path_a, path_b):
    return metadata({"a": of_tensor(), "b": Bytes()},
                    [(index("a"), info()), (index("b", None), info("step"))],
                    {"a": path_a, "b": path_b})


def cyclic():
    attributes = {"state_dict_metadata": {}}
    made = Metadata(attributes)
    attributes["storage_data"] = made
    return made


def many_uses(count):
    """One long name in many places."""
    name = "n" * 20_000
    return metadata({}, [(index(name, (i,)), info()) for i in range(count)])


LONG = ("k",) * 200

# Name: (metadata or its pickle, items or None for the good ones, a part of the message).
FOLDERS = {
    "good": (metadata({"w": of_tensor(), "step": Bytes()},
                      [(index(), info()), (index("step", None), info("step"))],
                      {"w": ("model", "w"), "step": ("list", 2)}, version="1.0.0",
                      storage_meta=StorageMeta(checkpoint_id=PosixPath("a/b"), save_id="x")),
             None, ""),
    "good_of_old_torch": (one(of_tensor(properties=properties(made=OldProperties))), None, ""),
    "good_enumeration_by_getattr": (
        one(of_tensor(properties=Properties(
            (float32, None, False, Call(getattr, Format, "TORCH_CONTIGUOUS_FORMAT"), False)))),
        None, ""),
    "good_tuple_with_a_tensor": (entry_of("pair"), None, ""),
    "good_chunk_of_nothing": (
        metadata({"w": of_tensor((4,), [chunk((0,), (4,)), chunk((4,), (0,))])}), None, ""),
    "good_other_planner": (one(paths=StorageMeta(modules=[])), None, ""),
    "good_tie": (metadata({"w": of_tensor(), "v": of_tensor()},
                          [(index(), info()), (index("v"), info())]), None, ""),
    "nothing": (b"", None, "needs 1 bytes"),
    "not_a_pickle": (b"hello", None, "byte 0"),
    "cut": (pickle.dumps(one(), 4)[:-20], None, "only"),
    "bytes_behind": (pickle.dumps(one(), 4) + b"N.", None, "bytes follow its end"),
    "runs_a_program": (b"cposix\nsystem\n(S'true'\ntR.", None, 'global "posix.system"'),
    "evaluates": (pickle.dumps(one(paths={"w": Call(eval, "1")}), 4), None, "builtins.eval"),
    "no_metadata": (pickle.dumps({"state_dict_metadata": {}}), None, "expected a dict"),
    "no_entries": (Metadata(storage_data={}), None, "state_dict_metadata is not as torch"),
    "entries_are_a_list": (Metadata(state_dict_metadata=[], storage_data={}), None,
                           "state_dict_metadata is not as torch"),
    "no_items": (Metadata(state_dict_metadata={}), None, "storage_data is not as torch"),
    "contains_itself": (cyclic(), None, "storage_data is not as torch"),
    "a_name_that_is_a_number": (metadata({7: of_tensor()}), None, "expected a text"),
    "a_name_twice": (metadata(Items(("w", of_tensor()), ("w", of_tensor()))), None,
                     "expected its name once"),
    "an_item_twice": (one(items=[(index(), info()), (index(), info())]), None, "expected it once"),
    "an_entry_of_no_kind": (one(StorageMeta()), None, "expected a TensorStorageMetadata or"),
    "an_entry_that_is_none": (metadata({"w": None}), None, "expected a TensorStorageMetadata or"),
    "no_item_of_a_tensor": (one(items=[]), None, "[0:4] is not as torch writes it; expected an item"),
    "no_item_of_an_object": (metadata({"w": Bytes()}, []), None, "expected an item in storage_data"),
    "an_item_of_nobody": (metadata({}), None, "expected a tensor or object that it belongs to"),
    "an_item_at_another_offset": (one(items=[(index(offset=(1,)), info())]), None,
                                  "expected an item in storage_data"),
    "a_key_that_is_a_text": (one(items=[("w", info())]), None, "expected a MetadataIndex"),
    "a_key_without_a_name": (one(items=[(Index(index=0), info())]), None,
                             "expected a MetadataIndex"),
    "an_offset_of_texts": (one(items=[(Index(fqn="w", offset=Call(Size, ("a",))), info())]), None,
                           "expected integers"),
    "an_item_without_a_length": (
        one(items=[(index(), Info(relative_path="__0_0.distcp", offset=0))]), None,
        "expected a _StorageInfo with"),
    "an_item_of_another_kind": (
        one(items=[(index(), StorageMeta(relative_path="a", offset=0, length=1))]), None,
        "expected a _StorageInfo with"),
    "too_many_attributes": (
        one(items=[(index(), info(**{f"a{i}": i for i in range(100)}))]), None,
        "expected a _StorageInfo with"),
    "up_and_out": (one(items=[(index(), info(relative_path="../__0_0.distcp"))]), None,
                   "expected a file in this folder"),
    "an_absolute_path": (one(items=[(index(), info(relative_path="/etc/passwd"))]), None,
                         "expected a file in this folder"),
    "no_such_file": (one(items=[(index(), info(relative_path="__1_0.distcp"))]), None,
                     '"__1_0.distcp" is missing'),
    "a_negative_offset": (one(items=[(index(), info(offset=-1))]), None, "expected a range in a file"),
    "a_negative_length": (one(items=[(index(), info(length=-1))]), None, "expected a range in a file"),
    "an_end_that_wraps": (one(items=[(index(), info(offset=2**63 - 1))]), None,
                          "expected a range in a file"),
    "behind_the_end": (one(items=[(index(), info(offset=len(GOOD_ITEMS)))]), None, "the file has"),
    "an_item_of_nothing_behind_the_end": (
        metadata({"w": of_tensor((4,), [chunk((0,), (4,)), chunk((4,), (0,))])},
                 [(index(), info()), (index(offset=(4,)), info(offset=len(GOOD_ITEMS)))]),
        None, "the file has"),
    "an_item_cut_short": (one(items=[(index(), info(length=PLACES["w"][1] - 1))]), None,
                          "no end of a zip directory"),
    "an_item_of_no_bytes": (one(items=[(index(), info(length=0))]), None, '"w"'),
    "items_that_share_bytes": (
        metadata({"w": of_tensor(), "v": of_tensor()},
                 [(index(), info()), (index("v"), info(offset=1))]), None, "share bytes of"),
    "one_item_for_two_chunks": (
        metadata({"w": of_tensor((8,), [chunk((0,), (4,)), chunk((4,), (4,))])},
                 [(index(), info()), (index(offset=(4,)), info())]), None,
        "are not the same tensor"),
    "one_item_for_a_tensor_and_an_object": (
        metadata({"w": of_tensor(), "v": Bytes()},
                 [(index(), info()), (index("v", None), info())]), None, "have the same item"),
    "another_dtype": (one(of_tensor(properties=properties(in_module(
        "torch", "int32", Named("int32"))))), None, "has F32 [4]; expected I32 [4]"),
    "no_dtype": (one(of_tensor(properties=None)), None, "expected properties with a dtype"),
    "another_shape": (one(of_tensor((2, 2)), items=[(index(offset=(0, 0)), info())]), None,
                      "has F32 [4]; expected F32 [2, 2]"),
    "an_object_for_a_tensor": (one(items=[(index(), info("step"))]), None, "is no tensor"),
    "a_size_of_texts": (one(Tensor(properties=properties(), size="4", chunks=[])), None,
                        "expected a size of integers"),
    "a_negative_size": (one(of_tensor((-4,))), None, "-4"),
    "a_size_past_63_bits": (one(of_tensor((2**40, 2**40))), None, '"w"'),
    "a_size_of_a_bignum": (one(of_tensor((2**70,))), None, "expected a size of integers"),
    "no_chunks": (one(of_tensor(chunks=[]), items=[]), None, "box [0:4] has no holder"),
    "chunks_of_a_text": (one(of_tensor(chunks="all")), None, "expected a list of chunks"),
    "a_chunk_of_two_dimensions": (one(of_tensor(chunks=[chunk((0, 0), (4, 1))])), None,
                                  "expected 1 offsets and sizes"),
    "a_chunk_outside": (chunks(((2,), (4,))), None, "has a chunk of [4] at [2]; expected it inside"),
    "a_chunk_that_wraps": (chunks(((2**63 - 1,), (4,))), None, "expected it inside"),
    "a_chunk_before_the_start": (chunks(((-2,), (4,))), None, "expected it inside"),
    "chunks_that_overlap": (chunks(((0,), (2,)), ((1,), (2,)), ((2,), (2,))), None,
                            "chunks that do not overlap"),
    "chunks_that_leave_a_hole": (chunks(((0,), (2,))), None, "box [2:4] has no holder"),
    "an_empty_path": (entry_of("step", paths={"w": ()}), None, "the path of"),
    "a_path_of_a_negative_index": (entry_of("step", paths={"w": ("a", -1)}), None, "the path of"),
    "a_path_of_a_float": (entry_of("step", paths={"w": ("a", 1.5)}), None, "the path of"),
    "a_path_that_begins_with_an_index": (entry_of("step", paths={"w": (0, "a")}), None,
                                         "the path of"),
    "a_path_too_long": (entry_of("step", paths={"w": LONG}), None, "expected a shorter one"),
    "a_list_of_2_to_the_62": (entry_of("step", paths={"w": ("a", 2**62)}), None,
                              "items of lists are missing"),
    "a_path_through_a_value": (two(("a",), ("a", "b")), None, "that of another value"),
    "two_values_with_one_path": (two(("a", "b"), ("a", "b")), None, "that of another value"),
    "a_list_that_is_a_dict": (two(("a", "b"), ("a", 0)), None, "that of another value"),
    "a_long_name_many_times": (many_uses(500), None, "grows too large"),
    "an_item_that_is_no_zip": (one(), bytes(len(GOOD_ITEMS)), "no end of a zip directory"),
    "an_item_that_runs_a_program": (
        entry_of("step"), GOOD_ITEMS.replace(b"\x80\x02K\7.", b"\x80\x02K\7c"), '"w"'),
    "no_items_file": (one(), b"", "the file has 0"),
    "ties_that_are_no_json": (
        metadata({"holdfast.ties": Bytes()}, [(index("holdfast.ties", None), info("step",
                 offset=0, length=len(archive(program(text("{"))))))]),
        archive(program(text("{"))), "holdfast.ties"),
}


def beside_good(entries, items):
    """These entries, and a tensor "good" that can be read."""
    return metadata({**entries, "good": of_tensor()}, [*items, (index("good"), info("good"))])


HALVES = [chunk((0,), (2,)), chunk((2,), (4,))]
# Name: (metadata, the lines of what is left out).
ODD = {
    "zstd": (beside_good({"w": of_tensor()},
                         [(index(), info(transform_descriptors=["stream.zstd"]))]),
             ['w: is transformed by "stream.zstd"; expected it as torch.save writes it']),
    "an_object_in_zstd": (
        beside_good({"w": Bytes()},
                    [(index(offset=None), info(transform_descriptors=["stream.zstd"]))]),
        ['w: is transformed by "stream.zstd"; expected it as torch.save writes it']),
    "an_unknown_dtype": (beside_good({"w": of_tensor(properties=properties(moon))},
                                     [(index(), info())]),
                         ['w: has the dtype "torch.moon64", which is not known']),
    "nine_dimensions": (beside_good({"w": of_tensor((1,) * 9)}, [(index(offset=(0,) * 9), info())]),
                        ["w: has 9 dimensions, limit 8"]),
    "expanded": (beside_good({"w": of_tensor()}, [(index(), info("expanded"))]),
                 ["w: has an expanded or conjugated tensor; expected a clone"]),
    "expanded_in_a_chunk": (
        beside_good({"w": of_tensor((6,), HALVES)},
                    [(index(), info("half")), (index(offset=(2,)), info("expanded"))]),
        ["w: has an expanded or conjugated tensor; expected a clone"]),
    "expanded_and_tied": (
        beside_good({"w": of_tensor(), "v": of_tensor()},
                    [(index(), info("expanded")), (index("v"), info("expanded"))]),
        ["w: has an expanded or conjugated tensor; expected a clone",
         'v: has the item of "w", which is left out']),
    "expanded_in_a_tuple": (
        beside_good({"w": Bytes()}, [(index(offset=None), info("expanded_in_a_tuple"))]),
        ["w: has an expanded or conjugated tensor; expected a clone"]),
}


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for name, (made, items, _) in FOLDERS.items():
        raw = made if isinstance(made, bytes) else pickle.dumps(made, 4)
        (FOLDER / f"{name}.metadata").write_bytes(raw)
        if items is not None:
            (FOLDER / f"{name}.distcp").write_bytes(items)
    (FOLDER / "good.distcp").write_bytes(GOOD_ITEMS)
    expected = {name: message for name, (_, _, message) in FOLDERS.items()}
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    for name, (made, _) in ODD.items():
        (FOLDER / f"{name}.metadata").write_bytes(pickle.dumps(made, 4))
    odd = {name: lines for name, (_, lines) in ODD.items()}
    (FOLDER / "odd.json").write_text(json.dumps(odd, indent=1) + "\n")


if __name__ == "__main__":
    main()
