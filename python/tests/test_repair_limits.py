"""Repair of files that cannot be mended: it ends, says what it tried, and exits with 3."""

import json
import os
import pty
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

import holdfast

PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"


def repair(*words):
    # A search without bounds takes minutes.
    return subprocess.run([PROGRAM, "repair", *map(str, words)], capture_output=True, text=True,
                          timeout=100)


def overwrite(path, at, new):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(new)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A file of so many tensors that opening it takes some time."""
    path = tmp_path_factory.mktemp("many") / "many.pt"
    torch.save({f"layer.{i}.weight": torch.full((2,), float(i)) for i in range(5000)}, path)
    return path


def test_a_search_for_a_flipped_bit_ends_and_says_what_was_tried(many, tmp_path):
    hurt = shutil.copy(many, tmp_path / "hurt.pt")
    overwrite(hurt, zipfile.ZipFile(many).infolist()[2000].header_offset + 4, bytes(40))
    done = repair(hurt, "--in-place", "--search", 1)
    assert done.returncode == 3
    assert "has another name" in done.stderr
    assert "were tried in 1 s" in done.stderr
    assert "the others were not" in done.stderr


def shown_on_a_terminal(*words):
    """What a command shows on a terminal, and its exit code."""
    ours, theirs = pty.openpty()
    call = subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:  # the command has closed its end
            break
    os.close(ours)
    return shown.decode(), call.wait(timeout=100)


def test_a_search_for_a_flipped_bit_shows_how_many_bits_were_tried(many, tmp_path):
    hurt = shutil.copy(many, tmp_path / "hurt.pt")
    overwrite(hurt, zipfile.ZipFile(many).infolist()[2000].header_offset + 4, bytes(40))
    shown, code = shown_on_a_terminal(PROGRAM, "repair", hurt, "--in-place", "--search", 2)
    assert code == 3
    tried = [(int(done.replace(",", "")), int(total.replace(",", "")))
             for done, total in re.findall(r"bits tried +\d+ %  ([\d,]+) of ([\d,]+)", shown)]
    assert len(tried) >= 3, shown
    counts, totals = zip(*tried)
    assert list(counts) == sorted(counts) and counts[0] < counts[-1] < totals[0]
    assert len(set(totals)) == 1
    said = re.search(r"([\d,]+) of ([\d,]+) bits that may be damaged", shown)
    assert int(said[2].replace(",", "")) == totals[0]


def test_a_damaged_record_is_not_searched_for_in_the_header(many, tmp_path):
    hurt = shutil.copy(many, tmp_path / "hurt.pt")
    with zipfile.ZipFile(many) as archive:
        names = archive.infolist()[0]
    assert names.filename.endswith("data.pkl")
    overwrite(hurt, names.header_offset + 2000, bytes(40))
    done = repair(hurt, "--in-place", "--search", 0)
    assert done.returncode == 3
    assert "data.pkl has more damage than one flipped bit" in done.stderr


def test_one_flipped_bit_of_the_pickle_is_mended(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"w": torch.arange(6.0), "b": torch.ones(3)}, path)
    good = path.read_bytes()
    at = good.index(b"OrderedDict") if b"OrderedDict" in good else good.index(b"FloatStorage")
    overwrite(path, at, bytes([good[at] ^ 0x80]))
    done = repair(path, "--in-place")
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == good


def damaged_hdf5(folder):
    h5py = pytest.importorskip("h5py")
    path = folder / "model.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("w", data=list(range(1000)), chunks=(500,), fletcher32=True)
        at = dataset.id.get_chunk_info(1).byte_offset
    overwrite(path, at + 8, b"\xff" * 8)
    return path, "model.h5"


def damaged_dcp(folder):
    path = folder / "dcp"
    dcp.save({"w": torch.arange(1000.0)}, checkpoint_id=path, no_dist=True)
    shard, = path.glob("*.distcp")
    with open(shard, "r+b") as file:
        file.truncate(100)
    return path, shard.name


def damaged_index(folder):
    path = folder / "shards"
    path.mkdir()
    save_file({"w": torch.arange(10.0)}, path / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"w": "model-00001-of-00002.safetensors",
                            "v": "model-00002-of-00002.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path, "model-00002-of-00002.safetensors"


@pytest.mark.parametrize("make", [damaged_hdf5, damaged_dcp, damaged_index])
def test_damage_that_cannot_be_mended_exits_with_3_and_is_named(tmp_path, make):
    path, named = make(tmp_path)
    done = repair(path, "--in-place")
    assert (done.returncode, named in done.stderr) == (3, True), done.stderr
