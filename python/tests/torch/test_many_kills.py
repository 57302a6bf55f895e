"""Kills ranks of one job again and again, at random times: the job goes on, every bit is that of a
job in which nobody died, and no process grows.

HOLDFAST_RECOVERIES is the number of kills of replicas; half as many are those of pipeline stages. The test is left
out unless it is set; make test-all sets it to 200, which takes some minutes.
"""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

KILLS = int(os.environ.get("HOLDFAST_RECOVERIES", "0"))
SEED = int(os.environ.get("HOLDFAST_SEED", "0")) or random.randrange(2**32)
SCRIPT = Path(__file__).parent / "recovered.py"
# As `python -m holdfast.launch`; says where it is, and so do the workers that it forks (tell_stacks()).
LAUNCH = """import faulthandler, runpy, signal
faulthandler.register(signal.SIGUSR2)
runpy.run_module("holdfast.launch", run_name="__main__", alter_sys=True)"""
RANKS = 3
STEPS_OF_KILL = 10  # a kill in this many steps
# Kills between two moments at which two ranks are killed at once. With 3 ranks, one of them keeps
# the record of the other, so all ranks start again from a checkpoint. Until then, one rank is spared.
SPARED_FOR = 25
PATIENCE = 120.0  # seconds without a step after which the job has failed


def tell_stacks(run):
    """Has the processes of a job print where they are. Its workers have the command line of the launcher."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if run.encode() in (folder / "cmdline").read_bytes() and int(folder.name) != os.getpid():
                os.kill(int(folder.name), signal.SIGUSR2)
    time.sleep(2)


class Running:
    """A job of recovered.py that is under way."""

    def __init__(self, kind, run, steps):
        self.run, self.steps = run, steps
        self.pids = {}  # the process of each rank that made a step last
        self.newest = -1
        self.losses = {}  # by rank and step: all losses that were seen
        self._at = [0] * RANKS
        self._said = open(f"{run}.said", "wb")
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, "-n", str(RANKS), str(SCRIPT), kind, run,
             str(steps), ""], stdout=self._said, stderr=subprocess.STDOUT, start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"})

    @property
    def said(self):
        return Path(f"{self.run}.said").read_text()

    def look(self):
        """Reads what the ranks have written since the last look."""
        for rank in range(RANKS):
            path = Path(f"{self.run}.losses.{rank}")
            if not path.exists():
                continue
            with open(path, "rb") as file:
                file.seek(self._at[rank])
                data = file.read()
            whole = data[:data.rfind(b"\n") + 1]
            self._at[rank] += len(whole)
            for line in whole.splitlines():
                self._hear(rank, line)

    def _hear(self, rank, line):
        step, loss, samples, pid = json.loads(line)
        self.losses.setdefault((rank, step), set()).add((str(loss), tuple(samples)))
        self.pids[rank] = pid
        self.newest = max(self.newest, step)

    def wait_for(self, is_so, what):
        """Waits until something is so. Fails if the job ends or makes no steps before."""
        heard, newest = time.monotonic(), self.newest
        while not is_so():
            self.look()
            if self.newest != newest:
                heard, newest = time.monotonic(), self.newest
            if self.process.poll() is not None or time.monotonic() - heard > PATIENCE:
                tell_stacks(self.run)
                pytest.fail(f"seed {SEED}: {what}: exit code {self.process.poll()}, step "
                            f"{self.newest}\n{self.said[-12000:]}")
            time.sleep(0.002)

    def wait_for_step(self, step):
        self.wait_for(lambda: self.newest >= step, f"waits for step {step}")

    def kill(self, pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def replacement_of(self, rank, already):
        """Waits until the launcher says that it has replaced the rank. Returns the process."""
        def found():
            return re.findall(rf"rank {rank} starts again \(pid (\d+)\)", self.said)[already:]

        self.wait_for(found, f"waits for a replacement of rank {rank}")
        return int(found()[0])

    def end(self):
        self.wait_for(lambda: self.newest >= self.steps - 1, "waits for its end")
        code = self.process.wait(60)
        self.look()
        return code

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)  # so that its workers end, too
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self._said.close()


def size_of(pid):
    """The descriptors, threads and resident MiB of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    value = {name: int(re.search(rf"^{name}:\s+(\d+)", status, re.M)[1])
             for name in ("Threads", "VmRSS")}
    return len(os.listdir(f"/proc/{pid}/fd")), value["Threads"], value["VmRSS"] / 1024


class Killer:
    """Kills ranks of a job, and watches the sizes of the launcher and of the rank it spares."""

    def __init__(self, job, dice):
        self.job, self.dice = job, dice
        self.kills = 0
        self.sizes = {}  # by process: its size after each kill that it has survived

    def run(self, kills):
        while self.kills < kills:
            spared = self.kills // SPARED_FOR % RANKS
            self.job.wait_for_step(STEPS_OF_KILL * self.kills + self.dice.randrange(3, 8))
            self.watch(spared)
            time.sleep(self.dice.random() * 0.03)
            if self.kills % SPARED_FOR == SPARED_FOR - 1:
                self.kill_two()
            else:
                self.kill_one(self.dice.choice([r for r in range(RANKS) if r != spared]))

    def watch(self, spared):
        for pid in (self.job.process.pid, self.job.pids[spared]):
            try:
                self.sizes.setdefault(pid, []).append(size_of(pid))
            except (FileNotFoundError, TypeError):
                pass  # it is ending

    def kill_one(self, rank):
        already = len(re.findall(rf"rank {rank} starts again", self.job.said))
        self.kills += self.job.kill(self.job.pids[rank])
        if self.dice.random() < 0.2:
            pid = self.job.replacement_of(rank, already)
            time.sleep(self.dice.random() * 0.4)
            self.kills += self.job.kill(pid)

    def kill_two(self):
        for rank in self.dice.sample(range(RANKS), 2):
            self.kills += self.job.kill(self.job.pids[rank])


@pytest.mark.skipif(not KILLS, reason="HOLDFAST_RECOVERIES is not set; takes minutes")
@pytest.mark.parametrize("kind, kills", [("ddp", KILLS), ("stages", KILLS // 2)])
def test_a_job_survives_many_kills(tmp_path, kind, kills):
    print("seed", SEED)
    steps = STEPS_OF_KILL * kills
    whole, job = Running(kind, str(tmp_path / "whole"), steps), None
    try:
        assert whole.end() == 0, whole.said
        job = Running(kind, str(tmp_path / "run"), steps)
        killer = Killer(job, random.Random(SEED))
        killer.run(kills)
        code = job.end()
    finally:
        whole.close()
        if job is not None:
            job.close()
    said = job.said
    assert code == 0, said[-4000:]
    print(f"{killer.kills} kills, {said.count('goes on after')} recoveries, "
          f"{said.count('start again from')} restarts")
    assert {key: whole.losses[key] for key in job.losses} == job.losses, f"seed {SEED}"
    for rank in range(RANKS):
        ends = [Path(f"{one.run}.end.{rank}").read_text() for one in (whole, job)]
        assert ends[0] == ends[1], f"seed {SEED}: rank {rank} ends with other bits"
    assert "not exact" not in said
    # Only a rank that died together with the one that keeps its record needs a checkpoint.
    assert said.count("start again from") <= 2 * (kills // SPARED_FOR + 1), said
    assert kind == "ddp" or said.count(": messages, exact") >= kills // 2, said
    for pid, sizes in killer.sizes.items():
        check_flat(sizes, "the launcher" if pid == job.process.pid else f"a survivor ({pid})")


def check_flat(sizes, whose):
    """Fails if a process has grown since its first kills.

    Compared are the smallest sizes of the two halves: groups whose calls had not ended when they were
    replaced, each with 2 threads and 4 or 5 descriptors, are there until Python's collector comes to them.
    """
    if len(sizes) < 12:
        return
    sizes = sizes[4:]
    first, last = sizes[:len(sizes) // 2], sizes[len(sizes) // 2:]
    for index, (what, most) in enumerate((("descriptors", 1), ("threads", 1), ("MiB", 16))):
        before, after = (min(one[index] for one in part) for part in (first, last))
        print(f"{whose}: {what} {before:.0f} to {after:.0f} over {len(sizes)} kills")
        assert after <= before + most, f"seed {SEED}: {whose} grew: {sizes}"
