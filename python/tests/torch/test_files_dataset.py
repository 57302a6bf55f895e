"""holdfast.data.Files and mix: the samples of the user's own files, in an order that any ranks resume."""

import io
import itertools
import json
import os
import pickle
import random
import re
import tarfile
import tempfile
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import IS_LONG

import holdfast
from holdfast.data import BatchSampler, Files, Sequence, loader, mix


@pytest.fixture
def lines(tmp_path):
    """Two files with 60 lines of several lengths."""
    for file in range(2):
        text = b"".join(b"%d%s\n" % (number, b"x" * (number * 37 % 50))
                        for number in range(file * 30, file * 30 + 30))
        (tmp_path / f"{file}.jsonl").write_bytes(text)
    return tmp_path / "*.jsonl"


def number_of(line):
    return int(line.rstrip(b"x"))


def test_samples_are_the_lines_that_python_reads(tmp_path):
    draw = random.Random(7)
    text = "\ufeff" + "".join(
        json.dumps({"n": n, "text": draw.choice("aä€😀") * draw.randrange(99)}, ensure_ascii=False)
        + draw.choice(["\n", "\r\n", "\n\n", "\n \t\r\n"]) for n in range(500))
    path = tmp_path / "a.jsonl"
    path.write_bytes((text + "last").encode())
    want = [line.rstrip(b"\r\n") for line in path.read_bytes()[3:].split(b"\n") if line.strip()]
    files = Files(path)
    assert len(files) == len(want) == 501
    assert files.__getitems__(range(501)) == [files[n] for n in range(501)] == want
    assert files[-1] == b"last"
    assert Files(path, transform=len)[0] == len(want[0])
    with pytest.raises(IndexError, match="sample 501; expected 0 or more, below 501"):
        files[501]


def test_a_folder_of_text_needs_no_torch(lines):
    import subprocess
    import sys

    script = f"""
import sys, holdfast
files = holdfast.data.Files({str(lines)!r})
assert len(files) == 60 and files[59].startswith(b"59")
assert "torch" not in sys.modules"""
    subprocess.run([sys.executable, "-c", script], check=True)


def write_megatron(path, documents, code, dtype):
    """What Megatron-LM's IndexedDatasetBuilder writes: one sequence for each document."""
    path.with_suffix(".bin").write_bytes(numpy.concatenate(documents).astype(dtype).tobytes())
    lengths = numpy.array([len(one) for one in documents], "<i4")
    begins = numpy.concatenate([[0], numpy.cumsum(lengths[:-1] * numpy.dtype(dtype).itemsize)])
    with path.with_suffix(".idx").open("wb") as idx:
        idx.write(b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + bytes([code]))
        idx.write(len(documents).to_bytes(8, "little") + (len(documents) + 1).to_bytes(8, "little"))
        idx.write(lengths.tobytes() + begins.astype("<i8").tobytes())
        idx.write(numpy.arange(len(documents) + 1, dtype="<i8").tobytes())


@pytest.mark.parametrize(("code", "dtype"), [(8, "<u2"), (4, "<i4")])
def test_tokens_of_megatron_are_documents_and_windows(tmp_path, code, dtype):
    draw = numpy.random.default_rng(3)
    documents = [draw.integers(0, 30000, size) for size in (5, 1, 40, 3)]
    write_megatron(tmp_path / "books", documents, code, dtype)
    books = Files(tmp_path / "books")
    assert all((books[n] == one).all() and books[n].dtype == dtype
               for n, one in enumerate(documents))
    windows = Files(tmp_path / "books", context=8)
    assert numpy.array_equal(numpy.stack(windows.__getitems__(range(len(windows)))),
                             numpy.concatenate(documents)[:48].reshape(6, 8))
    windows[0][:] = 0  # the array is the caller's own
    plain = Files(tmp_path / "books.bin", context=8, dtype=dtype[1:].replace("u2", "u16").replace("i4", "i32"),
                  index=tmp_path / "elsewhere")
    assert numpy.array_equal(plain[5], windows[5])
    assert len({books.fingerprint, windows.fingerprint, plain.fingerprint}) == 3
    batch = next(iter(loader(windows, 4, seed=1)))
    assert isinstance(batch, torch.Tensor) and batch.shape == (4, 8)


def write_tar(path, members, format):
    with tarfile.open(path, "w", format=format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if data is None:
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
                continue
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def webdataset_samples(path):
    """The samples of an archive in WebDataset's form, by Python's tarfile."""
    samples = []
    with tarfile.open(path) as tar:
        for member in tar:
            name = re.match(r"^((?:.*/|)[^./][^./]*|[^./]+)\.([^/]*)$", member.name)
            if not member.isreg() or name is None:
                continue
            key, field = name[1], name[2].lower()
            if not samples or samples[-1]["__key__"] != key:
                samples.append({"__key__": key})
            samples[-1][field] = tar.extractfile(member).read()
    return samples


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_are_read_as_webdataset_reads_them(tmp_path, format):
    draw = random.Random(5)
    members = [("README", b"no sample"), ("d", None)]
    for n in range(40):
        folder = "d/" if n % 3 else "d.x/" + "/".join(["long" * 10] * (1 if n % 2 else 3)) + "/"
        members += [(f"{folder}{n}.{field}", draw.randbytes(draw.choice([0, 1, 511, 512, 513, 3000])))
                    for field in ("JPG", "cls", "seg.png")]
        if n % 7 == 0:
            members += [("d/folder.x", None), ("d/.hidden", b"x"), (f"{folder}{n}.json", b"{}")]
    if format != tarfile.USTAR_FORMAT:
        members.append(("ü" * 90 + ".txt", b"a name that is no ASCII"))
    for file in range(2):
        write_tar(tmp_path / f"{file}.tar", members[file * 60:(file + 1) * 60 + file * 99], format)
    files = Files(tmp_path / "*.tar")
    want = [sample for file in range(2) for sample in webdataset_samples(tmp_path / f"{file}.tar")]
    assert len(want) > 39
    assert files.__getitems__(range(len(files))) == want


def test_records_are_those_that_tensorflow_wrote():
    """tests/fixtures/tensorflow/make_records.py wrote the files and the list with TensorFlow."""
    folder = Path(__file__).parents[3] / "tests/fixtures/tensorflow"
    want = [bytes.fromhex(one) for one in json.loads((folder / "records.json").read_text())]
    with tempfile.TemporaryDirectory() as index:
        assert Files(folder / "records.tfrecord-0000?-of-00002", index=index).__getitems__(range(len(want))) == want


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_reads_each_sample_once_also_in_workers(lines, workers):
    files = Files(lines, transform=number_of)
    batches = list(loader(files, 7, seed=2, epochs=1, num_workers=workers))
    seen = [int(n) for batch in batches for n in batch]
    assert seen == Sequence(60, 7, seed=2).indices(0, 60)
    assert sorted(seen) == list(range(60))


def test_files_go_through_pickle_and_refuse_to_be_others(lines):
    files = Files(lines)
    packed = pickle.dumps(files)
    assert pickle.loads(packed)[31] == files[31]
    changed = lines.parent / "1.jsonl"
    changed.write_bytes(changed.read_bytes() + b"60\n")
    with pytest.raises(holdfast.ConflictError, match="bytes, and .* when it was indexed"):
        pickle.loads(packed)
    assert holdfast.index(lines).ok
    with pytest.raises(ValueError, match="the fingerprint is .*; expected"):
        pickle.loads(packed)


def test_a_training_on_other_files_is_refused(lines):
    state = loader(Files(lines), 6, seed=1).state_dict()
    path = lines.parent / "1.jsonl"
    path.write_bytes(path.read_bytes().replace(b"31", b"13"))
    assert holdfast.index(lines).ok
    with pytest.raises(ValueError, match=r"the dataset is not the one of the checkpoint.*data\.loader\(\.\.\., fingerprint="):
        loader(Files(lines), 6, seed=1).load_state_dict(state)
    loader(Files(lines), 6, seed=1, fingerprint=state["fingerprint"]).load_state_dict(state)


def test_nothing_is_seeded_for_files_unless_asked_for(lines):
    draws = Files(lines, transform=lambda line: random.random())
    assert list(loader(draws, 60, seed=1, epochs=1))[0].tolist() != list(
        loader(draws, 60, seed=1, epochs=1))[0].tolist()
    same = [list(loader(draws, 60, seed=1, epochs=1, seeded=True))[0].tolist() for _ in range(2)]
    assert same[0] == same[1]


def test_wrong_calls_are_refused_in_words(tmp_path, lines):
    for call, text in [
        (lambda: Files(), "no files; expected at least one"),
        (lambda: Files(lines, context=0), "context=0; expected 1 or more"),
        (lambda: Files(lines, threads=10**20), r"threads=10+; expected a number below 2\*\*31"),
        (lambda: loader(Files(lines), 0), "batch_size=0; expected 1 or more"),
        (lambda: loader(Files(lines), 2, seed=-1), "seed=-1; expected 0 or more"),
        (lambda: loader(Files(lines), 2).load_state_dict({}), "the state has no cursor; expected one of holdfast.data.loader"),
        (lambda: loader(Files(lines), 2).load_state_dict({**loader(Files(lines), 2).state_dict(), "cursor": -1}),
         "cursor=-1; expected 0 or more"),
        (lambda: Files(lines.parent / "**/*.jsonl"), r"expected one \* for each level"),
        (lambda: Files(lines, kind="rows"), 'kind: "rows"; expected one of text tokens megatron tar tfrecord'),
        (lambda: Files(lines, dtype="f32"), 'dtype: "f32"; expected u8'),
        (lambda: loader(Files(lines), 61, rank=0, world=62), "leaves some without a sample"),
        (lambda: mix({"a": (Files(lines), 0)}).order(1, 0, True), "expected at least one above 0"),
        (lambda: loader(mix({"a": (Files(lines), 1)}), 4, epochs=1), "expected epochs=None"),
        (lambda: mix({"a": (Files(lines), 10**30)}), "expected 0 to 1000000"),
        (lambda: mix({"a": (Files(lines), -1)}), "the weight -1; expected 0 to 1000000"),
    ]:
        with pytest.raises(ValueError, match=text):
            call()
    for wrong in ({}, {"a": Files(lines)}, {"a": (Files(lines), 0.5)}, {"a": (3, 1)},
                  {"a": (mix({"a": (Files(lines), 1)}), 1)}):
        with pytest.raises(TypeError, match="expected"):
            mix(wrong)
    with pytest.raises(holdfast.NotFoundError, match="no file has such a name"):
        Files(tmp_path / "*.txt")
    for call, text in [(lambda: Files(lines)[0:2], "expected a whole number"), (lambda: Files(lines)["0"], "sample '0'"),
                       (lambda: Files(lines, transform=3), "transform: 3; expected a function"),
                       (lambda: Files(lines, dtype=numpy.uint16), "dtype=.*; expected a text"),
                       (lambda: Files(lines, context=1.5), "context=1.5; expected a whole number"),
                       (lambda: Files(lines).__getitems__([1.5]), "sample=1.5; expected a whole number"),
                       (lambda: loader(Files(lines), 1.5), "batch_size=1.5; expected a whole number")]:
        with pytest.raises(TypeError, match=text):
            call()


def test_files_may_be_named_in_a_list(lines):
    assert len(Files([lines, lines], lines)) == 3 * len(Files(lines))
    assert Files([lines])[torch.tensor(1)] == Files(lines)[1]
    assert Files(os.fsencode(lines)).__getitems__(torch.tensor([1, 0])) == Files(lines).__getitems__([1, 0])


# Mixtures

def numbers(first, count):
    return list(range(first, first + count))


def test_a_mixture_reads_its_sources_in_their_shares(lines):
    files = Files(lines, transform=number_of)
    both = mix({"lines": (files, 7), "list": (numbers(1000, 9), 3)})
    stream = itertools.chain.from_iterable(loader(both, 5, seed=3))
    seen = [int(n) for n in itertools.islice(stream, 400)]
    for at in range(390):
        assert sum(n < 1000 for n in seen[at:at + 10]) == 7
    lines_read = [n for n in seen if n < 1000]
    assert sorted(lines_read[:60]) == sorted(lines_read[60:120]) == list(range(60))
    assert lines_read[:60] != lines_read[60:120]


def test_a_mixture_of_files_is_read_together(lines):
    files = Files(lines, transform=number_of)
    both = mix({"a": (files, 1), "b": (Files(lines, transform=lambda line: -1 - number_of(line)), 2)})
    for batch in itertools.islice(loader(both, 6, seed=3), 5):
        assert sum(n < 0 for n in batch.tolist()) == 4
    assert pickle.loads(pickle.dumps(mix({"a": (Files(lines), 1)})))[59].startswith(b"59")
    with pytest.raises(IndexError, match="below 120"):
        both[120]


def test_a_mixture_is_resumed_only_with_its_own_names_and_datasets():
    def of(**weights):
        return loader(mix({name: (numbers(0, 9), weight) for name, weight in weights.items()}), 4)

    state = of(a=1, b=2).state_dict()
    with pytest.raises(ValueError, match="samples is 27; expected 18"):
        of(a=1, b=2, c=1).load_state_dict(state)
    with pytest.raises(ValueError, match="the checkpoint has no mixture"):
        of(a=1, b=2).load_state_dict({**state, "mixture": None})
    of(a=2, b=0).load_state_dict(state)


class Ranks:
    """The loaders of all ranks, whose shares together must be the order of one rank."""

    def __init__(self, dataset, batch, world, state):
        order = dataset.order(batch, 11, True) if hasattr(dataset, "order") else Sequence(
            len(dataset), batch, seed=11)
        self.samplers = [BatchSampler(order, rank=rank, world=world) for rank in range(world)]
        for sampler in self.samplers if state is not None else []:
            sampler.load_state_dict(state)

    def step(self):
        shares = [next(iter(sampler)) for sampler in self.samplers]
        for sampler in self.samplers:
            sampler.advance()
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        return list(itertools.chain(*shares))

    def state(self):
        states = [sampler.state_dict() for sampler in self.samplers]
        assert all(state == states[0] for state in states)
        return states[0]


@settings(max_examples=2000 if IS_LONG else 60, deadline=None)
@given(st.data())
def test_whatever_happens_to_the_ranks_a_mixture_gives_each_sample_once(data):
    """Ranks, batches and weights change, and the run rolls back, through more than three epochs."""
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    firsts = [sum(sizes[:n]) for n in range(len(sizes))]
    weights = [1] * len(sizes)
    state, seen = None, []  # a checkpoint, and the samples of all positions before it
    kept = []
    for _ in range(data.draw(st.integers(3, 10))):
        if kept and data.draw(st.integers(0, 3)) == 0:
            state, seen = data.draw(st.sampled_from(kept))  # the run goes back to a checkpoint
        if data.draw(st.booleans()):
            weights = data.draw(st.lists(st.integers(0, 4), min_size=len(sizes),
                                         max_size=len(sizes)).filter(any))
        batch = data.draw(st.integers(1, 20))
        both = mix({str(n): (numbers(first, size), weight) for n, (first, size, weight)
                    in enumerate(zip(firsts, sizes, weights, strict=True))})
        ranks = Ranks(both, batch, data.draw(st.integers(1, min(9, batch))), state)
        for _ in range(data.draw(st.integers(0, 12))):
            seen = seen + ranks.step()
            state = ranks.state()
            assert state["cursor"] == len(seen)
            kept.append((state, seen))
        for first, size in zip(firsts, sizes, strict=True):
            own = [n for n in seen if first <= n < first + size]
            for at in range(0, len(own), size):
                epoch = own[at:at + size]
                assert len(set(epoch)) == len(epoch)
                assert len(epoch) < size or set(epoch) == set(range(first, first + size))


def test_the_defects_of_the_published_dataset_path_are_not_here(lines):
    """It split the data twice, gave byte offsets for the length, and dropped and ended early."""
    files = Files(lines, transform=number_of)
    assert len(files) == 60  # and not where the last sample lies
    shares = [[int(n) for batch in itertools.islice(loader(files, 8, seed=4, rank=rank, world=3), 24)
               for n in batch] for rank in range(3)]
    # Split once: together they are three epochs, whose last batches of 4 are there, too.
    assert sorted(itertools.chain(*shares)) == sorted(list(range(60)) * 3)
    assert Files(lines).files == [str(lines.parent / f"{file}.jsonl") for file in range(2)]
    (lines.parent / "2.jsonl").write_bytes(b"60\n")
    assert len(Files(lines)) == 61  # an index that is there keeps no older list of files
