"""holdfast mount: each worker's share of data files as files, by FUSE."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from command import PROGRAM, run

import holdfast
from holdfast.data import Files, Sequence

MOUNTS = pytest.mark.usefixtures("can_mount")


class Mount:
    """A `holdfast mount` that runs, and its folder."""

    def __init__(self, folder, *words):
        self.folder = folder
        self.process = subprocess.Popen(
            [PROGRAM, "mount", *map(str, words), str(folder)], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)
        self.ready = self.process.stdout.readline()
        assert "Ctrl-C unmounts" in self.ready, self.process.communicate()

    def stop(self, by=signal.SIGTERM):
        self.process.send_signal(by)
        self.errors = self.process.communicate(timeout=20)[1]
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.communicate(timeout=20)
        subprocess.run(["umount", "-l", self.folder], capture_output=True, check=False)


@pytest.fixture(scope="session")
def can_mount(tmp_path_factory):
    """Skips a test if this build, or this machine, has no FUSE. The program itself is asked."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs /dev/fuse, which cannot be opened here")
    folder = tmp_path_factory.mktemp("can_mount")
    (folder / "a.txt").write_text("1\n")
    words = [PROGRAM, "mount", folder / "a.txt", folder / "m", "--batch", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        is_ready = program.stdout.readline()
        program.terminate()
        errors = program.communicate(timeout=20)[1]
    if not is_ready and "this build has no FUSE" in errors:
        pytest.skip("needs a build with libfuse3")


@pytest.fixture
def data(tmp_path):
    """Two files with 5,000 lines of several lengths; some lines end with CRLF."""
    folder = tmp_path / "data"
    folder.mkdir()
    for file in range(2):
        (folder / f"{file}.jsonl").write_bytes(b"".join(
            b'{"n": %d, "x": "%s"}%s' % (n, b"y" * (n * 37 % 400), b"\r\n" if n % 3 else b"\n")
            for n in range(file * 2500, file * 2500 + 2500)))
    return folder / "*.jsonl"


def worker_bytes(folder):
    """All parts of a worker, in order."""
    return b"".join(part.read_bytes() for part in sorted(folder.glob("part-*")))


def share(files, sequence, cursor, worker, workers):
    """What a worker reads until the end of the epoch, by the order that loaders have."""
    end = (sequence.epoch(sequence.step(cursor)[0]) + 1) * sequence.samples
    read = []
    while (batch := sequence.step(cursor))[0] < end:
        read += sequence.indices(*Sequence.share(*batch, worker, workers))
        cursor = batch[1]
    return b"".join(line + b"\n" for line in files.__getitems__(read))


@MOUNTS
def test_the_workers_files_are_their_shares_of_the_order(data, tmp_path):
    files, sequence = Files(data), Sequence(5000, 3, seed=7)  # 1,667 batches: two parts
    with Mount(tmp_path / "m", data, "--batch", 3, "--seed", 7) as mount:
        for cursor, workers in [(0, 1), (0, 3), (1234, 2), (9999, 3)]:
            folder = mount.folder / f"from-{cursor:012}-of-{workers}"
            assert sorted(os.listdir(folder)) == [f"worker-{k}" for k in range(workers)]
            for worker in range(workers):
                assert worker_bytes(folder / f"worker-{worker}") == share(
                    files, sequence, cursor, worker, workers)
        folder = mount.folder / "from-0-of-2/worker-1"
        assert sorted(os.listdir(folder)) == ["list.txt", "part-00000.jsonl", "part-00001.jsonl"]
        assert (folder / "list.txt").read_text().splitlines()[1:] == [
            "part-00000.jsonl 0 3072 2048", "part-00001.jsonl 3072 5000 1285",
            "next from-000000005000-of-2"]
        text = worker_bytes(mount.folder / "from-0-of-1/worker-0")
        assert sorted(text.splitlines()) == sorted(files.__getitems__(range(5000)))
        part = folder / "part-00000.jsonl"
        assert subprocess.check_output(["wc", "-l", part]).split()[0] == b"2048"
        assert subprocess.check_output(["cat", part]) == part.read_bytes()
        assert subprocess.check_output(["grep", "-c", '"n": 1', part]).strip() == str(
            sum(b'"n": 1' in line for line in part.read_bytes().splitlines())).encode()
        with part.open("rb") as file:
            for at in (0, 1, 999, part.stat().st_size - 5, part.stat().st_size, 10**9):
                file.seek(at)
                assert file.read(1000) == part.read_bytes()[at:at + 1000]
        for missing in ("x", "from-0-of-0", "from-0-of-4", "from--1-of-1", "from-0-of-2/worker-2",
                        "current-of-1", "from-0-of-1/worker-0/part-00002.jsonl",
                        "from-0-of-1/worker-0/part-0.jsonl", "from-99999999999999999999-of-1"):
            assert not (mount.folder / missing).exists(), missing
        for change in (lambda: part.write_bytes(b""), lambda: part.unlink(),
                       lambda: (mount.folder / "new").mkdir()):
            with pytest.raises(OSError, match="Read-only|Permission|not implemented|not permitted"):
                change()


@MOUNTS
def test_tokens_are_shown_without_anything_between_them(tmp_path):
    (tmp_path / "t.bin").write_bytes(bytes(range(250)))
    files, sequence = Files(tmp_path / "t.bin", dtype="u8", context=8), Sequence(31, 4, seed=0)
    words = (tmp_path / "t.bin", "--dtype", "u8", "--context", 8, "--batch", 4)
    with Mount(tmp_path / "m", *words) as mount:
        for worker in range(2):
            want = [files[n].tobytes() for first in range(0, 31, 4) for n in sequence.indices(
                *Sequence.share(first, min(first + 4, 31), worker, 2))]
            assert worker_bytes(mount.folder / f"from-0-of-2/worker-{worker}") == b"".join(want)


@MOUNTS
def test_parts_of_archives_and_records_are_whole_files_of_their_kind(tmp_path):
    import io
    import tarfile

    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for n in range(20):
            for field in ("jpg", "cls"):
                info = tarfile.TarInfo(f"{n}.{field}")
                info.size = n * 100
                tar.addfile(info, io.BytesIO(bytes([n]) * info.size))
    folder = Path(__file__).parents[2] / "tests/fixtures/tensorflow"
    for shard in folder.glob("records.tfrecord-*"):
        (tmp_path / shard.name).write_bytes(shard.read_bytes())
    order = Sequence(20, 4, seed=0).indices(0, 20)
    with Mount(tmp_path / "m", tmp_path / "a.tar", "--batch", 4) as mount:
        names = []
        for worker in range(2):
            with tarfile.open(mount.folder / f"from-0-of-2/worker-{worker}/part-00000.tar") as tar:
                names += [member.name for member in tar]
                assert all(len(tar.extractfile(one).read()) == int(one.name.split(".")[0]) * 100
                           for one in tar.getmembers())
        assert sorted(names) == sorted(f"{n}.{field}" for n in order for field in ("jpg", "cls"))
    with Mount(tmp_path / "m", tmp_path / "records*", "--batch", 4, "--no-shuffle") as mount:
        parts = list((mount.folder / "from-0-of-1/worker-0").glob("part-*"))
        assert [part.name for part in parts] == ["part-00000.tfrecord"]
        assert parts[0].read_bytes() == b"".join(
            path.read_bytes() for path in sorted(folder.glob("records.tfrecord-*")))


READ = """
import json, sys, tensorflow as tf
print(json.dumps([one.numpy().hex() for one in tf.data.TFRecordDataset(sys.argv[1:])]))
"""


@MOUNTS
@pytest.mark.skipif("HOLDFAST_TENSORFLOW_PYTHON" not in os.environ, reason="needs HOLDFAST_TENSORFLOW_PYTHON")
def test_tensorflow_reads_the_shares_of_workers_as_its_own_files(tmp_path):
    fixtures = Path(__file__).parents[2] / "tests/fixtures/tensorflow"
    for shard in fixtures.glob("records.tfrecord-*"):
        (tmp_path / shard.name).write_bytes(shard.read_bytes())
    files = Files(tmp_path / "records*")
    sequence = Sequence(len(files), 4, seed=5)
    with Mount(tmp_path / "m", tmp_path / "records*", "--batch", 4, "--seed", 5) as mount:
        for worker in range(2):
            parts = sorted((mount.folder / f"from-4-of-2/worker-{worker}").glob("part-*"))
            read = subprocess.run([os.environ["HOLDFAST_TENSORFLOW_PYTHON"], "-c", READ, *parts],
                                  stdout=subprocess.PIPE, check=True)
            want = [n for first in range(4, len(files), 4) for n in sequence.indices(
                *Sequence.share(first, min(first + 4, len(files)), worker, 2))]
            assert [bytes.fromhex(one) for one in json.loads(read.stdout)] == files.__getitems__(want)


JOB = """
import os, sys
mount, out, workers, worker, most = sys.argv[1:4] + sys.argv[4:6]
position, left = int(open(out + "/cursor").read()), int(most)
folder = f"{mount}/from-{position:012}-of-{workers}/worker-{worker}"
lines = open(folder + "/list.txt").read().splitlines()
rows = [line.split() for line in lines if line.startswith("part-")]
with open(f"{out}/seen-{position}-{worker}", "w") as seen:
    for name, *_ in rows:
        for line in open(f"{folder}/{name}"):
            if left == 0:
                os.kill(os.getpid(), 9)
            seen.write(line)
            seen.flush()
            left -= 1
"""


@MOUNTS
def test_a_job_that_only_reads_the_mount_is_killed_and_goes_on_with_other_workers(data, tmp_path):
    """Two workers are killed after 250 batches of 4, and three go on from there."""
    (tmp_path / "cursor").write_text("0")
    with Mount(tmp_path / "m", data, "--batch", 4) as mount:
        def job(workers, most):
            done = [subprocess.Popen(["python3", "-c", JOB, mount.folder, tmp_path, str(workers),
                                      str(worker), str(most)]) for worker in range(workers)]
            return [one.wait() for one in done]

        assert job(2, 500) == [-9, -9]
        (tmp_path / "cursor").write_text("1000")
        assert job(3, -1) == [0, 0, 0]
        seen = "".join(path.read_text() for path in sorted(tmp_path.glob("seen-*"))).splitlines()
        assert len(seen) == 5000
        assert sorted(seen) == sorted(line.decode() for line in Files(data).__getitems__(range(5000)))
        # A reader that was killed has harmed nobody.
        assert worker_bytes(mount.folder / "from-0-of-1/worker-0").count(b"\n") == 5000


@MOUNTS
def test_current_is_the_position_of_the_runs_newest_step(data, tmp_path):
    import itertools

    import torch

    model = torch.nn.Linear(1, 1)
    loader = holdfast.data.loader(Files(data, transform=len), 10, seed=2**63 + 5)
    ck = holdfast.Checkpointer(tmp_path / "run", model=model, data=loader, every="never")
    batches = iter(loader)
    words = (data, "--batch", 10, "--run", tmp_path / "run")
    for step, _ in enumerate(itertools.islice(batches, 3)):
        ck.step(step)
    ck.save(2).durable()
    with Mount(tmp_path / "m", *words) as mount:
        link = mount.folder / "current-of-3"
        assert os.readlink(link) == "from-000000000030-of-3"
        want = share(Files(data), Sequence(5000, 10, seed=2**63 + 5), 30, 1, 3)
        assert worker_bytes(link / "worker-1") == want
        for step, _ in enumerate(itertools.islice(batches, 2), 3):
            ck.step(step)
        ck.save(4)
        ck.close()
        assert os.readlink(link) == "from-000000000050-of-3"
    (data.parent / "0.jsonl").write_bytes(b"1\n")
    assert run("index", data.parent / "0.jsonl").returncode == 0
    other = run("mount", data, tmp_path / "m", "--batch", 10, "--run", tmp_path / "run")
    assert other.returncode == 2
    assert "the training reads data with the fingerprint" in other.stderr


def test_a_run_without_a_loader_is_nothing_found(data, tmp_path):
    import torch

    ck = holdfast.Checkpointer(tmp_path / "run", model=torch.nn.Linear(1, 1), every="never")
    ck.step(0)
    ck.save(0)
    ck.close()
    done = run("mount", data, tmp_path / "m", "--batch", 4, "--run", tmp_path / "run")
    assert done.returncode == 4
    assert "has no state of a holdfast.data.loader" in done.stderr


@MOUNTS
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unmounts(data, tmp_path, by):
    with Mount(tmp_path / "m", data, "--batch", 4) as mount:
        assert os.path.ismount(mount.folder)
        assert mount.stop(by) == 0
        assert not os.path.ismount(mount.folder)
        assert os.listdir(mount.folder) == []


@MOUNTS
def test_a_dead_mount_in_the_way_is_unmounted_with_a_word(data, tmp_path):
    with Mount(tmp_path / "m", data, "--batch", 4) as mount:
        mount.process.kill()
        mount.process.wait()
        with pytest.raises(OSError, match="not connected"):
            os.listdir(mount.folder)
        with Mount(tmp_path / "m", data, "--batch", 4) as second:
            assert "from-000000000000-of-1" in os.listdir(second.folder)
            second.stop()
            assert "unmounted what a killed program left there" in second.errors


@MOUNTS
def test_a_file_that_is_cut_while_it_is_read_is_an_error_that_names_it(data, tmp_path):
    with Mount(tmp_path / "m", data, "--batch", 4, "--no-shuffle") as mount:
        os.truncate(data.parent / "1.jsonl", 1000)
        whole = mount.folder / "from-0-of-1/worker-0"
        with pytest.raises(OSError, match="Input/output error"):
            worker_bytes(whole)
        with (whole / "part-00000.jsonl").open("rb") as file:
            assert file.readline() == b'{"n": 0, "x": ""}\n'  # the other file is whole
        mount.stop()
        assert "1.jsonl" in mount.errors


@MOUNTS
def test_bytes_that_are_changed_while_they_are_mounted_are_never_shown(data, tmp_path):
    """In the order of the files, where the system passes the bytes on, and in another one."""
    path = data.parent / "1.jsonl"
    for way in ["--no-shuffle"], []:
        with Mount(tmp_path / "m", data, "--batch", 4, *way) as mount:
            whole = mount.folder / "from-0-of-1/worker-0"
            assert len(worker_bytes(whole).splitlines()) == 5000
            with path.open("r+b") as file:
                file.write(b'{"m"')
            os.utime(path, ns=(1, path.stat().st_mtime_ns + 10**9))
            with pytest.raises(OSError, match="Input/output error"):
                worker_bytes(mount.folder / "from-4-of-1/worker-0")
            with pytest.raises(OSError, match="Input/output error"):
                worker_bytes(whole)
            mount.stop()
            assert "1.jsonl: was changed after it was indexed" in mount.errors
        assert run("index", data).returncode == 0


@MOUNTS
def test_parts_of_numbers_can_be_mapped_into_memory(tmp_path):
    import numpy

    numbers = numpy.arange(10_000, dtype="u2")
    numbers.tofile(tmp_path / "t.bin")
    words = (tmp_path / "t.bin", "--dtype", "u16", "--context", 100, "--batch", 10, "--no-shuffle")
    with Mount(tmp_path / "m", *words) as mount:
        part = mount.folder / "from-0-of-1/worker-0/part-00000.bin"
        mapped = numpy.memmap(part, dtype="u2", mode="r")
        assert (mapped == numbers).all()
        del mapped


@MOUNTS
def test_files_with_unusual_names_are_mounted(tmp_path):
    folder = tmp_path / "a b\nü'\""
    folder.mkdir()
    (folder / "-n %s.jsonl").write_bytes(b"1\n")
    (folder / "\udcff.jsonl").write_bytes(b"2\n")
    (folder / "empty.jsonl").write_bytes(b"")
    with Mount(folder / "m m", folder / "*.jsonl", "--batch", 1, "--no-shuffle") as mount:
        assert worker_bytes(mount.folder / "from-0-of-1/worker-0") == b"1\n2\n"


@MOUNTS
def test_the_files_of_many_samples_are_listed_at_once(tmp_path):
    with (tmp_path / "t.bin").open("wb") as file:
        file.truncate(10**8)
    words = (tmp_path / "t.bin", "--dtype", "u8", "--context", 1, "--batch", 256)
    with Mount(tmp_path / "m", *words) as mount:
        names = os.listdir(mount.folder / "from-000000054321-of-7/worker-3")
        assert len(names) == 1 + -(-(10**8 - 54321) // (256 * 1024))
        assert (mount.folder / "from-000000054321-of-7/worker-3/part-00380.bin").stat().st_size > 0
        memory = (f"/proc/{mount.process.pid}/status")
        with open(memory) as status:
            peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        assert peak < 64 << 10


def test_wrong_calls_are_refused_in_words(data, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("")
    for words, text in [
        ((data, "--batch", 4), "expected files, then the folder to mount at"),
        ((data, tmp_path / "m"), "--batch"),
        ((data, tmp_path / "m", "--batch", 0), "batches of 0; expected at least 1"),
        ((data, tmp_path / "m", "--batch", 10**20), "--batch: 100000000000000000000; expected a number below 2^63"),
        ((data, tmp_path / "m", "--batch", 4, "--seed", -1), "--seed: -1; expected 0 or more"),
        ((data, tmp_path / "m", "--batch", 4, "--last", "none"), "expected short, drop or join"),
        ((tmp_path / "*.txt", tmp_path / "m", "--batch", 4), "no file has such a name"),
        ((data, tmp_path / "full", "--batch", 4), "is not empty"),
    ]:
        done = run("mount", *words)
        assert done.returncode in (1, 2, 4), words
        assert text in done.stderr, words
