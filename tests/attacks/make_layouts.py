"""Writes the malicious layout files in layouts/. Each is made to break a reader of collections.

    python3 tests/attacks/make_layouts.py
"""

import json
from pathlib import Path

FOLDER = Path(__file__).parent / "layouts"


def collection(tensors, slices, holders=("d",)):
    return {
        "holdfast": "collection",
        "version": 1,
        "hosts": [{"name": "a"}],
        "holders": [{"name": h, "kind": "memory", "host": "a"} for h in holders],
        "tensors": tensors,
        "slices": slices,
    }


def tensor(name, shape, dtype="F32"):
    return {"name": name, "dtype": dtype, "shape": shape}


def piece(name, box, holder="d", offset=0, **more):
    return {
        "tensor": name,
        "box": box,
        "copies": [{"holder": holder, "offset": offset, **more}],
    }


def sums_past_63_bits():
    size = 2**59 - 1
    return collection(
        [tensor(f"t{i}", [size], "C128") for i in range(2)],
        [piece(f"t{i}", [[0, size]], f"d{i}") for i in range(2)],
        ("d0", "d1"),
    )


def stripes_along_every_axis():
    shape, slices = [16] * 8, []
    for axis in range(8):
        for i in range(16):
            box = [[0, 16]] * axis + [[i, i + 1]] + [[0, 16]] * (7 - axis)
            slices.append(piece("w", box, f"d{axis}", i << 40))
    return collection([tensor("w", shape, "U8")], slices, [f"d{k}" for k in range(8)])


def box_whose_size_wraps():
    return collection(
        [tensor("w", [4, 4, 4])], [piece("w", [[0, 2**62]] * 3, strides=[64, 16, 4])]
    )


def strides_that_leave_63_bits():
    return collection([tensor("w", [4])], [piece("w", [[0, 4]], strides=[2**62])])


def strides_that_go_back():
    return collection([tensor("w", [4])], [piece("w", [[0, 4]], strides=[-(2**63)])])


def strides_that_stand_still():
    return collection([tensor("w", [4])], [piece("w", [[0, 4]], strides=[0])])


def pieces_on_the_same_bytes():
    return collection(
        [tensor("u", [4]), tensor("v", [4])], [piece("u", [[0, 4]]), piece("v", [[0, 4]])]
    )


def one_name_for_two_tensors():
    return collection(
        [tensor("w", [4]), tensor("w", [4])], [piece("w", [[0, 4]])]
    )


def a_shape_of_nine():
    return collection([tensor("w", [1] * 9)], [])


def a_box_of_another_rank():
    return collection([tensor("w", [4, 4])], [piece("w", [[0, 4]])])


def an_escape_sequence_for_a_name():
    return collection([tensor("\x1b[2J", [4])], [piece("\x1b[2J", [[0, 5]])])


def main():
    FOLDER.mkdir(exist_ok=True)
    for make in (
        sums_past_63_bits, stripes_along_every_axis, box_whose_size_wraps,
        strides_that_leave_63_bits, strides_that_go_back, strides_that_stand_still,
        pieces_on_the_same_bytes, one_name_for_two_tensors, a_shape_of_nine,
        a_box_of_another_rank, an_escape_sequence_for_a_name,
    ):  # fmt: skip
        text = json.dumps(make(), separators=(",", ":"))
        (FOLDER / f"{make.__name__}.json").write_text(text + "\n")
    good = json.dumps(collection([tensor("w", [4])], [piece("w", [[0, 4]])]))
    (FOLDER / "cut_off.json").write_text(good[:-20])
    (FOLDER / "more_behind.json").write_text(good + "\x00{}")
    (FOLDER / "the_same_key_twice.json").write_text(good[:-1] + ',"version":1}')
    (FOLDER / "deep.json").write_text('{"hosts":' + "[" * 10_000)


if __name__ == "__main__":
    main()
