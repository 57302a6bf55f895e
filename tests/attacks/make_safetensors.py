"""Writes the malicious files in safetensors/. Each is made to break a reader of that format.

    python3 tests/attacks/make_safetensors.py

Folders of safetensors files, as Hugging Face writes them, are attacked only through their index:
*.index.json.
"""

import json
import struct
from pathlib import Path

FOLDER = Path(__file__).parent / "safetensors"


def file(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(first, last, shape=None, dtype="U8"):
    shape = [last - first] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


FILES = {
    "nothing": b"",
    "seven_bytes": bytes(7),
    "a_length_alone": struct.pack("<Q", 2),
    "no_header": file(b""),
    "header_cut_off": file({"a": tensor(0, 4)}, bytes(4))[:30],
    "data_cut_off": file({"a": tensor(0, 4)}, bytes(3)),
    "header_longer_than_the_file": file({"a": tensor(0, 4)}, bytes(4), length=10_000),
    "header_of_2_to_the_63": file({}, length=2**63),
    "header_of_2_to_the_64_less_one": file({}, length=2**64 - 1),
    "header_just_above_the_limit": file({}, length=100_000_001),
    "bytes_behind": file({"a": tensor(0, 4)}, bytes(5)),
    "bytes_behind_nothing": file({}, bytes(1)),
    "a_hole": file({"a": tensor(0, 4), "b": tensor(6, 8)}, bytes(8)),
    "a_hole_at_the_start": file({"a": tensor(4, 8)}, bytes(8)),
    "an_overlap": file({"a": tensor(0, 4), "b": tensor(2, 6)}, bytes(6)),
    "the_same_bytes_twice": file({"a": tensor(0, 4), "b": tensor(0, 4)}, bytes(4)),
    "nothing_in_the_middle": file(
        {"a": tensor(0, 4), "b": tensor(2, 2)}, bytes(4)
    ),
    "offsets_reversed": file({"a": tensor(4, 0, [4])}, bytes(4)),
    "offsets_negative": file({"a": tensor(-4, 0, [4])}, bytes(4)),
    "offsets_past_63_bits": file({"a": tensor(0, 2**63, [2**63])}, bytes(4)),
    "offsets_past_64_bits": file({"a": tensor(0, 2**65, [2**65])}, bytes(4)),
    "offsets_that_wrap": file(
        {"a": tensor(0, 2**63 - 1), "b": tensor(2**63 - 1, 2**63 + 4)}, bytes(4)
    ),
    "three_offsets": file({"a": tensor(0, 4) | {"data_offsets": [0, 4, 4]}}, bytes(4)),
    "a_product_that_wraps_to_4": file(
        {"a": tensor(0, 4, [2**32, 2**32, 2**32, 4])}, bytes(4)
    ),
    "a_product_that_wraps_to_0": file({"a": tensor(0, 0, [2**32, 2**32])}),
    "bytes_that_wrap": file({"a": tensor(0, 8, [2**61 + 1], "F64")}, bytes(8)),
    "a_product_past_a_zero": file({"a": tensor(0, 4, [0, 2**62, 2**62])}, bytes(4)),
    "a_size_that_is_negative": file({"a": tensor(0, 4, [-4])}, bytes(4)),
    "a_size_that_is_a_float": file({"a": tensor(0, 4, [4.0])}, bytes(4)),
    "a_size_that_is_a_string": file({"a": tensor(0, 4, ["4"])}, bytes(4)),
    "a_thousand_dimensions": file({"a": tensor(0, 1, [1] * 1000)}, bytes(1)),
    "nine_dimensions": file({"a": tensor(0, 1, [1] * 9)}, bytes(1)),
    "a_dtype_of_half_a_byte": file({"a": tensor(0, 2, [4], "F4")}, bytes(2)),
    "a_dtype_unknown": file({"a": tensor(0, 4, dtype="Q8")}, bytes(4)),
    "a_dtype_that_is_a_number": file({"a": tensor(0, 4, dtype=8)}, bytes(4)),
    "a_name_twice": file(
        b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},'
        b'"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}',
        bytes(8),
    ),
    "a_name_twice_by_escapes": file(
        b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},'
        b'"\\u0061":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}',
        bytes(8),
    ),
    "a_field_twice": file(
        b'{"a":{"dtype":"U8","dtype":"F32","shape":[4],"data_offsets":[0,4]}}', bytes(4)
    ),
    "no_name": file({"": tensor(0, 4)}, bytes(4)),
    "an_escape_sequence_for_a_name": file({"\x1b[2J": tensor(0, 5, [4])}, bytes(5)),
    "a_name_that_is_not_utf8": file(
        b'{"\xff":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', bytes(4)
    ),
    "metadata_of_numbers": file({"__metadata__": {"a": 1}}),
    "metadata_of_lists": file({"__metadata__": ["a"]}),
    "metadata_twice": file(b'{"__metadata__":{"a":"b"},"__metadata__":{}}'),
    "no_object": file(b"[1]"),
    "two_objects": file(b"{}{}"),
    "padded_with_nul": file(json.dumps({"a": tensor(0, 4)}).encode() + b"\0", bytes(4)),
    "deep": file(b"[" * 5_000),
    "deep_under_a_name": file(b'{"a":' * 5_000),
    "deep_under_an_unknown_field": file(b'{"a":{"x":' + b"[" * 10_000),
    "ties_to_itself": file(
        {"__metadata__": {"holdfast.ties": '{"a":["a"]}'}, "a": tensor(0, 4)}, bytes(4)
    ),
    "ties_of_nobody": file({"__metadata__": {"holdfast.ties": '{"a":["b"]}'}}),
    "complex_of_four_bytes": file(
        {"__metadata__": {"holdfast.dtypes": '{"a":"C128"}'}, "a": tensor(0, 4)},
        bytes(4),
    ),
    "objects_that_name_a_stranger": file(
        {"__metadata__": {"holdfast.objects": '{"$tensor":"b"}'}, "a": tensor(0, 4)},
        bytes(4),
    ),
    "objects_too_deep": file(
        {"__metadata__": {"holdfast.objects": "[" * 1000 + "]" * 1000}}
    ),
}

INDEXES = {
    "up_and_out": {"weight_map": {"a": "../nothing.safetensors"}},
    "from_the_root": {"weight_map": {"a": "/etc/passwd"}},
    "into_a_folder": {"weight_map": {"a": "x/y.safetensors"}},
    "the_folder_itself": {"weight_map": {"a": "."}},
    "a_name_cut_by_nul": {"weight_map": {"a": "nothing.safetensors\0.txt"}},
    "the_other_slash": {"weight_map": {"a": "..\\nothing.safetensors"}},
    "no_file": {"weight_map": {"a": ""}},
    "a_number": {"weight_map": {"a": 3}},
    "no_map": {"metadata": {"total_size": 4}},
    "a_list": {"weight_map": ["a"]},
    "a_damaged_file": {"weight_map": {"a": "data_cut_off.safetensors"}},
}


def main():
    FOLDER.mkdir(exist_ok=True)
    for name, content in FILES.items():
        (FOLDER / f"{name}.safetensors").write_bytes(content)
    for name, content in INDEXES.items():
        path = FOLDER / f"{name}.safetensors.index.json"
        path.write_text(json.dumps(content) + "\n")
    deep = '{"weight_map":' + "[" * 10_000
    (FOLDER / "deep.safetensors.index.json").write_text(deep)


if __name__ == "__main__":
    main()
