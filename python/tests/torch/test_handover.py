"""A job that is asked to stop leaves its state in memory, and the next one goes on with it: on
another number of ranks, with another cut, and if the pieces lie on several hosts. Here each host is
a folder of its own, as its /dev/shm would be."""

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from handed_over import Training, gathered, stop, undisturbed
from long_tests import LONG
from ranks import run_ranks
from test_launch_hosts import NAMESPACES, free_port, network  # noqa: F401
from training import Toy, clear

import holdfast

MORE = 3  # steps of a job that is not asked to stop


def live(rank, world, run, memories, shape, stops, options=None, resume=None):
    """Trains for some steps, or until it has stopped. Returns where it began, its tensors at the
    end or its exit code, and what was said."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("holdfast").addHandler(handler)
    training = Training(run, memories[rank], *shape, **(options or {}))
    start = training.checkpointer.resume(**(resume or {}))
    try:
        if stops:
            if rank == world - 1:
                training.checkpointer.step_calls.add(start + 1, stop)
            training.train(start, start + 10_000)
        training.train(start, start + MORE)
    except SystemExit as error:
        return start, error.code, said
    training.checkpointer.close(save=False)
    return start, gathered(training.model, training.optimizer), said


def run_job(world, *args):
    """Returns what all ranks return, which is the same but for what is said."""
    outcomes = run_ranks(world, live, *args)
    for outcome in outcomes:
        assert outcome[:2] == outcomes[0][:2]
    return outcomes[0]


def adoptions(run):
    """How many hosts there were, each time that the state came from memory."""
    lines = (run / "events" / "rank-0000.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return [event["hosts"] for event in events if event["event"] == "adopted_from_memory"]


def hosts(tmp_path, *numbers):
    made = [tmp_path / f"host-{number}" for number in numbers]
    for folder in made:
        folder.mkdir(exist_ok=True)
    return made


def steps_on_disk(run):
    return sorted(path.name for path in run.glob("step-*"))


def test_two_ranks_leave_what_three_go_on_with(tmp_path):
    run, memory = tmp_path / "run", hosts(tmp_path, 0, 0, 0)
    first, code, said = run_job(2, run, memory, (2, 1), True)
    assert (first, code) == (0, 143)
    assert "left in memory" in said[-1]
    (place,) = memory[0].iterdir()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert place.name == "holdfast-" + json.loads((run / "holdfast.json").read_text())["run"]
    start, end, _ = run_job(3, run, memory, (3, 1), False)
    assert start > 0 and end == undisturbed(start + MORE)
    assert steps_on_disk(run) == [] and adoptions(run) == [1]


def test_between_hosts_the_pieces_travel_and_a_lost_one_is_named(tmp_path):
    run, options = tmp_path / "run", {"every": "2 steps"}
    assert run_job(3, run, hosts(tmp_path, 0, 1, 1), (3, 1), True, options)[1] == 143
    start, code, said = run_job(3, run, hosts(tmp_path, 1, 0, 2), (3, 1), True, options)
    assert start > 0 and code == 143
    assert not any("passed over" in line for line in said) and adoptions(run) == [3]
    (place,) = (tmp_path / "host-1").iterdir()
    shutil.rmtree(place)
    kept = steps_on_disk(run)
    begun, end, said = run_job(2, run, hosts(tmp_path, 0, 2), (1, 2), False, options)
    (line,) = [line for line in said if "passed over" in line]
    assert " was in rank-0000.safetensors, which no host of this job has in its memory" in line
    assert kept[-1] == f"step-{begun - 1:08}"
    assert end == undisturbed(begun + MORE)


def test_without_a_place_in_memory_it_is_saved_to_disk(tmp_path):
    run, memory = tmp_path / "run", [tmp_path / "none"] * 2
    _, code, said = run_job(2, run, memory, (2, 1), True)
    assert code == 143 and len(steps_on_disk(run)) == 1
    assert any("is saved to disk, as it cannot stay in memory" in line for line in said)
    start, end, _ = run_job(1, run, memory, (1, 1), False)
    assert end == undisturbed(start + MORE)


def test_a_step_that_was_gone_back_to_is_not_gone_back_to_again(tmp_path):
    run, memory, options = tmp_path / "run", hosts(tmp_path, 0), {"every": "1 steps", "keep": None}
    run_job(1, run, memory, (1, 1), False, options)
    asked = {"step": 0}
    start, code, _ = run_job(1, run, memory, (1, 1), True, {"every": "never"}, asked)
    assert (start, code) == (1, 143)
    again, _, said = run_job(1, run, memory, (1, 1), False, {"every": "never"}, asked)
    assert again > start, said


def test_a_branch_that_is_lost_with_a_host_is_begun_again(tmp_path):
    run, never, asked = tmp_path / "run", {"every": "never"}, {"step": 0}
    run_job(2, run, hosts(tmp_path, 0, 1), (2, 1), False, {"every": "1 steps", "keep": None})
    start, code, _ = run_job(2, run, hosts(tmp_path, 0, 1), (2, 1), True, never, asked)
    assert (start, code) == (1, 143)
    (place,) = (tmp_path / "host-1").iterdir()
    shutil.rmtree(place)
    again, end, said = run_job(2, run, hosts(tmp_path, 0, 2), (2, 1), False, never, asked)
    assert again == start and end == undisturbed(start + MORE), said


def test_damage_with_nothing_on_disk_is_no_new_training(tmp_path):
    run, memory = tmp_path / "run", hosts(tmp_path, 0)
    assert run_job(1, run, memory, (1, 1), True)[1] == 143
    (shard,) = memory[0].glob("*/step-*/*.safetensors")
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    checkpointer = Training(run, memory[0]).checkpointer
    with pytest.raises(holdfast.CorruptError, match="no step is whole; the newest, "):
        checkpointer.resume()
    checkpointer.close(save=False)


def test_what_is_only_in_memory_is_saved_at_the_end(tmp_path):
    run, memory = tmp_path / "run", hosts(tmp_path, 0)
    run_job(1, run, memory, (1, 1), True, {"every": "1 steps"})
    before = steps_on_disk(run)
    run_ranks(1, resume_and_close, run, memory[0])
    assert len(steps_on_disk(run)) == len(before) + 1
    assert not list(memory[0].iterdir())


def resume_and_close(rank, world, run, memory):
    training = Training(run, memory, every="1 steps", keep=None)
    training.checkpointer.resume()
    training.checkpointer.close()


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm")
def test_what_is_left_in_dev_shm_is_told_of_and_collected_when_it_is_old(tmp_path):
    run, every = tmp_path / "run", {"every": "1 steps"}
    assert run_job(1, run, [True], (1, 1), True, every)[1] == 143
    place = Path("/dev/shm") / ("holdfast-" + json.loads((run / "holdfast.json").read_text())["run"])
    try:
        _, _, said = run_job(1, run, [False], (1, 1), False)
        assert any(str(place) in line and "is newer and is not taken" in line for line in said)
        assert str(place) not in collect(run) and place.exists()
        run_job(1, run, [False], (1, 1), False, every)
        assert str(place) in collect(run, "--dry-run") and place.exists()
        assert str(place) in collect(run) and not place.exists()
    finally:
        shutil.rmtree(place, ignore_errors=True)


def test_what_is_left_in_another_folder_is_collected_if_gc_is_told_of_it(tmp_path):
    run, memory, every = tmp_path / "run", hosts(tmp_path, 0), {"every": "1 steps"}
    assert run_job(1, run, memory, (1, 1), True, every)[1] == 143
    run_job(1, run, [False], (1, 1), False, every)
    place, = Path(memory[0]).iterdir()
    assert str(place) not in collect(run) and place.exists()
    assert str(place) in collect(run, "--memory", memory[0]) and not place.exists()


def collect(run, *options):
    """What `holdfast gc` removes from memory."""
    program = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"
    done = subprocess.run([program, "gc", run, "--keep-last", "3", "--json", *options],
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["memory"]


@pytest.mark.parametrize("handover", [1, "", b"/dev/shm", None])
def test_what_is_no_folder_is_refused(tmp_path, handover):
    with pytest.raises(TypeError) as error:
        Toy().checkpointer(tmp_path / "run", handover=handover)
    assert clear(error, f"handover={handover!r}; expected True, False or a folder in memory")


# Under torchrun


class Agents:
    """Agents of one elastic job. Each starts one rank. The first serves the rendezvous."""

    def __init__(self, run, memory, at, prefix, options=lambda number: ()):
        self.run, self._memory, self._at = run, memory, at
        self._prefix, self._options = prefix, options
        self._log = open(f"{run}.log", "w")
        self._agents = {}

    def add(self, *numbers):
        for number in numbers:
            self._agents[number] = subprocess.Popen(
                [*self._prefix(number), sys.executable, "-m", "torch.distributed.run",
                 "--nnodes=2:4", "--nproc-per-node=1", "--max-restarts=9", "--rdzv-backend=c10d",
                 f"--rdzv-endpoint={self._at}", "--rdzv-id=job",
                 f"--rdzv-conf=last_call_timeout=3,join_timeout=120,is_host={int(number == 0)}",
                 *self._options(number),
                 SCRIPT, self.run, self._memory],
                stdout=self._log, stderr=self._log, start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})

    def stop(self, *numbers):
        for number in numbers:
            self._agents[number].terminate()

    def wait(self, world):
        """Waits until so many ranks are at work together. Returns where they began."""
        end = time.monotonic() + 180
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                starts = Path(f"{self.run}.starts").read_text().splitlines()[-world:]
                if len(starts) == world and {line.split()[1] for line in starts} == {str(world)}:
                    return int(starts[0].split()[0])
            time.sleep(0.1)
        raise AssertionError(self.said())

    def finish(self, steps):
        """Lets the training end after so many steps. Returns what its rank 0 ends with."""
        written = Path(f"{self.run}.steps.tmp")
        written.write_text(str(steps))
        written.rename(f"{self.run}.steps")
        for agent in self._agents.values():
            agent.wait(180)
        return json.loads(Path(f"{self.run}.end.0").read_text())

    def said(self):
        return Path(f"{self.run}.log").read_text()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for agent in self._agents.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()
        self._log.close()


@LONG
@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_elastic_torchrun_goes_through_memory_and_no_tensor_to_disk(tmp_path):
    (memory,) = hosts(tmp_path, 0)
    trace = ["strace", "-D", "-f", "-qq", "--seccomp-bpf", "-e", "trace=open,openat,creat"]
    with Agents(tmp_path / "run", memory, f"127.0.0.1:{free_port()}",
                lambda number: [*trace, "-o", tmp_path / f"trace.{number}"]) as job:
        job.add(0, 1, 2, 3)
        assert job.wait(4) == 0
        time.sleep(2)
        job.stop(2, 3)
        second = job.wait(2)
        time.sleep(2)
        job.add(4)
        third = job.wait(3)
        assert 0 < second < third, job.said()
        assert job.finish(third + 60) == undisturbed(third + 60), job.said()
    assert steps_on_disk(job.run) == [] and adoptions(job.run) == [1, 1]
    written = set()
    for path in tmp_path.glob("trace.*"):
        written |= set(re.findall(r'"([^"]+)", [^)]*O_(?:WRONLY|RDWR)', path.read_text()))
    assert any(path.startswith(f"{memory}/") and "safetensors" in path for path in written)
    there = [path for path in written if path.startswith(f"{tmp_path}/run")]
    assert there and not [path for path in there if not KNOWN.search(path)]
    assert not [path for path in written if "safetensors" in path
                and not path.startswith(f"{memory}/")]


SCRIPT = Path(__file__).with_name("handed_over.py")
# Files of a run that hold no tensors.
KNOWN = re.compile(r"\.(starts|end\.\d|log|steps)$|/(holdfast|owner(-\d+)?)\.json|"
                   r"/events/rank-\d+\.jsonl$|/run$|/events$")


@NAMESPACES
def test_hosts_with_networks_and_memories_of_their_own(tmp_path, network, monkeypatch):  # noqa: F811
    """The third host is new, so it gets its part from the two others, over the network."""
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")

    def prefix(number):
        own = f'mount -t tmpfs -o size=64m tmpfs {memory} && exec "$@"'
        return [*network.prefix(number), "unshare", "-m", "sh", "-c", own, "-"]

    with Agents(tmp_path / "run", memory, "10.87.0.1:29400", prefix,
                lambda number: [f"--local-addr=10.87.0.{number + 1}"]) as job:
        job.add(0, 1)
        assert job.wait(2) == 0
        time.sleep(2)
        job.add(2)
        second = job.wait(3)
        assert second > 0 and adoptions(job.run) == [3], job.said()
        assert job.finish(second + 60) == undisturbed(second + 60), job.said()
    assert steps_on_disk(job.run) == []
