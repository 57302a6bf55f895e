"""holdfast.data.Files over a real S3 server: samples are read by ranges of objects."""

import itertools
import os
import subprocess
import sys

import pytest
from s3_server import find_rclone, serving
from test_tiers import PROGRAM, VARIABLES

import holdfast
from holdfast.data import Files, loader


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder in which the server keeps the objects of s3://corpora/c4, with two files of lines."""
    if find_rclone() is None:
        pytest.skip("no rclone: scripts/setup.sh installs it")
    folder = tmp_path / "server/corpora/c4"
    folder.mkdir(parents=True)
    for file in range(2):
        (folder / f"{file}.jsonl").write_bytes(b"".join(
            b"%d%s\n" % (n, b"x" * (n * 997 % 30000)) for n in range(file * 100, file * 100 + 100)))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with serving(tmp_path / "server") as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield folder


def test_objects_are_read_as_the_files_are(tmp_path, folder):
    here = Files(folder / "*.jsonl", index=tmp_path / "here")
    there = Files("s3://corpora/c4/*.jsonl", index=tmp_path / "there")
    assert there.files == ["s3://corpora/c4/0.jsonl", "s3://corpora/c4/1.jsonl"]
    assert there.fingerprint == here.fingerprint
    assert there.__getitems__(range(200)) == here.__getitems__(range(200))
    assert Files("s3://corpora/c4/1.jsonl", index=tmp_path / "there")[99] == here[199]
    # A training goes on with a copy on local disks, and the other way round; workers are forked.
    first = loader(there, 16, seed=3)
    batches = list(itertools.islice(first, 5))
    for files, workers in ((here, 0), (there, 2)):
        again = loader(files, 16, seed=3, num_workers=workers)
        assert list(itertools.islice(again, 5)) == batches
        again.load_state_dict(first.state_dict())
        assert next(iter(again)) == [here[n] for n in
                                     holdfast.data.Sequence(200, 16, seed=3).indices(80, 96)]


def test_what_cannot_be_is_refused_in_words(tmp_path, folder, monkeypatch):
    index = tmp_path / "index"
    with pytest.raises(NotImplementedError, match="cannot lie in an object store; expected a folder for it"):
        Files("s3://corpora/c4/*.jsonl")
    for name, text in (("s3://corpora/c4/*.txt", "no file has such a name"), ("s3://corpora/c4/2.jsonl", "no such object")):
        with pytest.raises(holdfast.NotFoundError, match=text):
            Files(name, index=index)
    assert len(Files("s3://corpora/c4/*.jsonl", index=index)) == 200
    path = folder / "1.jsonl"
    path.write_bytes(path.read_bytes() + b"200\n")
    with pytest.raises(holdfast.ConflictError, match="s3://corpora/c4/1.jsonl: .* when it was indexed"):
        Files("s3://corpora/c4/*.jsonl", index=index)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(ValueError, match="AWS_ACCESS_KEY_ID"):
        Files("s3://corpora/c4/*.jsonl", index=index)


def test_one_of_several_processes_indexes_an_object(tmp_path, folder):
    script = f"""
import logging, holdfast
logging.basicConfig(level=logging.INFO)
print(len(holdfast.data.Files("s3://corpora/c4/*.jsonl", index={str(tmp_path / "index")!r})))"""
    ranks = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) for _ in range(3)]
    said = [rank.communicate() for rank in ranks]
    assert [out for out, _ in said] == ["200\n"] * 3, said
    assert sum(errors.count("data: indexes") for _, errors in said) == 2  # of two objects
    shown = subprocess.run([PROGRAM, "index", "s3://corpora/c4/*.jsonl", "--check", "--to", tmp_path / "index"],
                           capture_output=True, text=True, env=os.environ)
    assert shown.returncode == 0, shown
    assert shown.stdout.count("100 samples in") == 2, shown
