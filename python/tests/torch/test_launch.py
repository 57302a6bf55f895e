"""What `holdfast launch` does when processes stop, hang, fail or lose their launcher."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from long_tests import LONG
from recovered_jobs import begin_launch, launch

from holdfast.launch import options
from holdfast.launch.environment import share_cores
from holdfast.launch.options import parse

SCRIPT = Path(__file__).parent / "launched.py"
PHASES = ("seen", "agreed", "started", "joined", "filled", "redone")


class Launch:
    """A job that runs. Use it as a context, so that nothing of it stays.

    Its launcher is forked from a process that has imported torch, or, with a prefix, is a new program:
    the prefix is the beginning of its command line.
    """

    def __init__(self, run, steps, events=(), *, options=(), ranks=2, pace=0.0, variables=(),
                 prefix=None):
        self.run, self.ranks = run, ranks
        self.out = Path(f"{run}.out-{len(list(Path(run).parent.glob('*.out-*')))}")
        self.out.touch()
        command = ["-n", str(ranks), *map(str, options), str(SCRIPT), str(run), str(steps), str(pace),
                   *events]
        if prefix is None:
            self.process = begin_launch(command, self.out, variables)
        else:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "holdfast.launch", *command],
                stdout=self.out.open("w"), stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, **dict(variables)})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.pids():
            with contextlib.suppress(OSError):  # forked workers have the command line of the launcher
                words = Path(f"/proc/{pid}/cmdline").read_text()
                if str(self.run) in words or words == Path("/proc/self/cmdline").read_text():
                    os.killpg(pid, signal.SIGKILL)

    def end(self, timeout=200):
        """Its exit code, and what it said."""
        code = self.process.wait(timeout)
        return code, self.said()

    def said(self):
        return self.out.read_text()

    def said_with_stacks(self):
        """Also where its ranks are, if they have come so far (launched.py)."""
        for pid in filter(_lives, self.pids()):
            os.kill(pid, signal.SIGUSR2)
        time.sleep(2)
        return self.said()

    def pids(self):
        return [int(line) for line in _text(f"{self.run}.pids").split()]

    def orphans_end(self, timeout=60):
        """Waits for the ranks of a launcher that was killed, and until all is printed that they have said."""
        until(lambda: not any(map(_lives, self.pids())), timeout, self)
        until(lambda: not _is_open(self.out), timeout, self)

    def children(self):
        """The processes of the launcher that are no ranks."""
        made = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return set(map(int, made.split())) - set(self.pids())

    def lines(self, rank=0):
        return [json.loads(line) for line in _text(f"{self.run}.losses.{rank}").splitlines()
                if line.endswith("]")]

    def losses(self, rank=0):
        return {step: loss for step, loss, _ in self.lines(rank)}

    def until_step(self, step, timeout=200):
        until(lambda: step in self.losses(), timeout, self)

    def events(self):
        lines = [json.loads(line) for path in sorted(Path(self.run).glob("events/*.jsonl"))
                 for line in path.read_text().splitlines()]
        return {name: [line for line in lines if line["event"] == name]
                for name in ("rank_lost", "recovered")}


def until(condition, timeout, job):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, job.said_with_stacks()
        time.sleep(0.02)


def _text(path):
    return Path(path).read_text() if Path(path).exists() else ""


def _name(pid):
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _lives(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] not in "ZX"
    return False


def _is_open(path):
    for one in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(one) == str(path):
                return True
    return False


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The end of rank 0 of a run of 2 ranks and 12 steps in which nothing happens."""
    run = tmp_path_factory.mktemp("whole") / "run"
    with Launch(run, 12) as job:
        code, said = job.end()
    assert code == 0, said
    return Path(f"{run}.end.0").read_text()


def test_processes_that_stop_or_die_are_replaced_and_events_tell_it(tmp_path, whole):
    with Launch(tmp_path / "run", 12, ["1:4:stop", "0:8:kill"], pace=0.1) as job:
        code, said = job.end()
        assert code == 0, said
        assert Path(f"{job.run}.end.0").read_text() == whole
        assert re.search(r"rank 1 \(pid \d+\) died in step 4: no sign of life for 3 s", said)
        assert re.search(r"step 8 goes on after [0-9.]+ s: replica, exact, 0 steps lost \(seen .* agreed "
                         r".* started .* joined .* filled .* redone .*\)", said), said
        stopped, killed = sorted(job.events()["rank_lost"], key=lambda one: one["step"])
        first, second = sorted(job.events()["recovered"], key=lambda one: one["step"])
    assert (stopped["rank"], stopped["step"], stopped["generation"]) == (1, 4, 0)
    assert (killed["rank"], killed["step"], killed["why"]) == (0, 8, "signal 9")
    assert 2.5 < first["seen"] < 30  # 3 s, and what a busy machine adds
    with pytest.raises(ProcessLookupError):
        os.kill(stopped["pid"], signal.SIGCONT)  # it was ended, although it was stopped
    assert {"step": 8, "generation": 2, "outcome": "back", "rung": "replica", "reason": "",
            "exact": True, "steps_lost": 0}.items() <= second.items() and second["bytes"] > 0
    died = Path(f"{tmp_path}/run.did-kill-0-8").stat().st_mtime
    total = sum(second[phase] for phase in PHASES)
    # The event is written right after the update, as soon as a thread of a busy machine gets to it.
    assert total == pytest.approx(second["wall_ns"] / 1e9 - died, abs=5)


@LONG
def test_a_process_in_a_debugger_is_not_taken_for_stopped(tmp_path, whole):
    with Launch(tmp_path / "run", 12, pace=0.1) as job:
        job.until_step(2)
        pid = job.pids()[1]
        held = subprocess.run([sys.executable, "-c", HOLD, str(pid)], check=False, timeout=60,
                              capture_output=True, text=True)
        if held.returncode == 77:
            pytest.skip("this system forbids ptrace")
        assert held.returncode == 0, held.stderr
        code, said = job.end()
        assert code == 0 and "died" not in said, said
        assert Path(f"{job.run}.end.0").read_text() == whole


# What a debugger does: it stops all threads of a process, here for 5 s.
HOLD = """
import ctypes, os, sys, time
attach, detach, all_kinds = 16, 17, 0x40000000
call = ctypes.CDLL(None, use_errno=True).ptrace
call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
threads = [int(one) for one in os.listdir(f"/proc/{sys.argv[1]}/task")]
for one in threads:
    if call(attach, one, None, None) != 0:
        sys.exit(77)
    os.waitpid(one, all_kinds)
time.sleep(5)
for one in threads:
    call(detach, one, None, None)
"""


@LONG
def test_a_rank_that_does_not_come_to_a_collective_call_is_replaced(tmp_path, whole):
    with Launch(tmp_path / "run", 12, ["1:4:sleep"], options=["--hang", 2]) as job:
        code, said = job.end()
        assert code == 0, said
        assert Path(f"{job.run}.end.0").read_text() == whole
        assert re.search(r"rank 1 .* died in step 4: it is not in the collective call that rank 0 has "
                         "waited in for 2 s", said)
        (recovered,) = job.events()["recovered"]
        assert (recovered["rung"], recovered["steps_lost"]) == ("replica", 0), said
        assert len(job.pids()) == 3  # rank 0 has kept its process


@LONG
def test_all_ranks_restart_if_each_waits_in_another_call(tmp_path, whole):
    with Launch(tmp_path / "run", 12, ["1:4:other"], options=["--hang", 2]) as job:
        code, said = job.end()
        assert code == 0, said
        assert Path(f"{job.run}.end.0").read_text() == whole
        assert "all ranks have waited in collective calls for 2 s" in said
        (recovered,) = job.events()["recovered"]
        assert recovered["rung"] == "disk" and recovered["outcome"] == "restart"
        assert recovered["steps_lost"] == 4 and "all ranks have waited" in recovered["reason"]


def test_ranks_that_wait_for_each_other_at_every_start_end_the_job(tmp_path):
    script = tmp_path / "waits.py"
    script.write_text("import torch\nimport torch.distributed as dist\n"
                      "dist.init_process_group('gloo')\n"
                      "dist.recv(torch.zeros(1), src=1 - dist.get_rank())\n")
    code, said = launch(["--hang", 1, script], ranks=2, said=tmp_path / "said", timeout=30)
    assert code == 1, said
    assert said.count("all ranks start again: ") == 1, said  # there is no checkpoint
    assert ("the start was lost 2 times, the last time by all ranks have waited in collective calls for "
            "1 s; expected the same calls on all ranks, and a network between them: the job ends") in said


@LONG
def test_each_of_several_ranks_computes_in_one_thread(tmp_path):
    script = tmp_path / "threads.py"
    script.write_text("import torch\nprint(torch.get_num_threads(), flush=True)\n")
    kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    said = subprocess.run([sys.executable, "-m", "holdfast.launch", "-n", "2", str(script)], env=kept,
                          check=True, timeout=60, capture_output=True, text=True)
    assert sorted(said.stdout.splitlines()) == ["[0] 1", "[1] 1"], said.stderr


@pytest.mark.parametrize("ranks, given, made", [(1, None, None), (2, None, "1"), (2, "3", "3")])
def test_the_number_of_threads_is_set_for_several_ranks_unless_the_user_has(ranks, given, made,
                                                                            monkeypatch):
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": given} if given else {})
    share_cores(ranks)
    assert os.environ.get("OMP_NUM_THREADS") == made


def test_a_run_in_use_is_refused_and_a_killed_launcher_leaves_a_checkpoint(tmp_path):
    with Launch(tmp_path / "run", 1000, pace=0.05, prefix=[]) as job:
        job.until_step(1)
        code, said = Launch(tmp_path / "run", 1000).end()
        assert code == 1
        assert ("the program has failed before the first update of all ranks: exit code 1 "
                "(ConflictError: ") in said and "starts again" not in said
        os.kill(job.process.pid, signal.SIGKILL)
        job.orphans_end()
        last = max(job.losses())
        assert f"stopped after step {last}, which is saved" in job.said()
        assert (tmp_path / "run" / f"step-{last:08}").is_dir()
        until(lambda: subprocess.run(["pgrep", "-f", str(tmp_path)], check=False,
                                     stdout=subprocess.DEVNULL).returncode == 1, 10, job)


def test_a_step_that_fails_again_ends_the_job_and_loses_no_step(tmp_path, whole):
    with Launch(tmp_path / "run", 12, ["1:4:fail"]) as job:
        code, said = job.end()
        assert code == 1, said
        assert ("step 4 was lost 2 times, the last time by exit code 1 (ValueError: this batch is "
                "bad): all ranks save what is done, and the job ends") in said
        assert "stopped after step 3, which is saved" in said
    with Launch(tmp_path / "run", 12) as job:
        code, said = job.end()
        assert code == 0, said
        assert Path(f"{job.run}.end.0").read_text() == whole
        assert [step for step, *_ in job.lines()] == list(range(12))


def test_a_job_that_is_asked_to_stop_while_a_replacement_starts_saves(tmp_path):
    with Launch(tmp_path / "run", 1000, ["1:4:kill"], options=["--hang", 10], pace=0.02,
                variables={"SLOW": "1"}) as job:
        until(lambda: "rank 1 starts again" in job.said(), 60, job)
        time.sleep(0.2)
        job.process.send_signal(signal.SIGTERM)
        code, said = job.end(60)
        assert code == 143, said
        assert said.count("died") == 1 and "step 4 goes on" in said, said
        last = max(job.losses())
        assert f"stopped after step {last}, which is saved: signal 15" in said
        assert (tmp_path / "run" / f"step-{last:08}").is_dir()


def test_a_rank_that_dies_between_a_stop_signal_and_the_save_is_replaced_so_that_all_save(tmp_path):
    with Launch(tmp_path / "run", 1000, ["1:4:preempt"], ranks=3, pace=0.02) as job:
        code, said = job.end(60)
        assert code == 143, said
        assert re.search("rank 1 .* died in step 4: signal 9", said) and "Traceback" not in said, said
        last = max(job.losses())
        assert last >= 4 and f"stopped after step {last}, which is saved: signal 15" in said, said
        assert (tmp_path / "run" / f"step-{last:08}").is_dir()


@pytest.mark.parametrize("event, code", [("leave", 1), ("leave143", 143)])
def test_a_rank_that_leaves_in_mid_training_is_named_and_all_save(tmp_path, whole, event, code):
    with Launch(tmp_path / "run", 12, [f"1:4:{event}"]) as job:
        ended, said = job.end(60)
        assert ended == code, said
        assert re.search(rf"rank 1 \(pid \d+\) has left in step 4 with exit code {code if code > 1 else 0}, "
                         "and rank 0 waits for it", said), said
        assert "stopped after step 3, which is saved" in said and "Traceback" not in said, said
    with Launch(tmp_path / "run", 12) as job:
        ended, said = job.end()
        assert ended == 0, said
        assert Path(f"{job.run}.end.0").read_text() == whole


def test_ranks_whose_launcher_is_killed_while_a_replacement_starts_save_and_end(tmp_path):
    with Launch(tmp_path / "run", 1000, ["1:4:kill"], ranks=3, pace=0.02, variables={"SLOW": "1"}) as job:
        until(lambda: "rank 1 starts again" in job.said(), 60, job)
        until(lambda: len(job.pids()) == 4, 60, job)
        job.process.kill()
        job.orphans_end(100)
        last = max(job.losses())
        assert last >= 4 and f"stopped after step {last}, which is saved: signal 15" in job.said()
        assert (tmp_path / "run" / f"step-{last:08}").is_dir()


@LONG
def test_a_rank_that_is_stuck_ends_although_its_launcher_was_killed(tmp_path):
    with Launch(tmp_path / "run", 1000, ["1:4:kill", "2:4:sleep"], ranks=3, pace=0.02) as job:
        until(lambda: "rank 1 starts again" in job.said(), 60, job)
        job.process.kill()
        job.orphans_end(180)
        assert "[2] rank 2 ends without a save: the launcher was killed, a rank is lost, and the training " \
            "does not come to the end of its step; expected the job to be started again" in job.said()


@pytest.mark.parametrize("events", [["0:2:kill", "1:6:alone"], ["1:end:alone"]], ids=["in a step", "at the end"])
def test_ranks_end_if_another_one_dies_together_with_the_launcher(tmp_path, events):
    """Also if they have heard a decision of the launcher before, which was about another death."""
    with Launch(tmp_path / "run", 12, events, ranks=3) as job:
        job.process.wait(100)
        job.orphans_end()
        assert len(re.findall(r"\[[02]\] rank [02] ends without a save: ", job.said())) == 2, job.said()
        assert "Traceback" not in job.said(), job.said()


def test_a_job_whose_store_dies_saves_and_ends(tmp_path):
    with Launch(tmp_path / "run", 1000, pace=0.05) as job:
        job.until_step(2)
        (store,) = [one for one in job.children() if _name(one) != "holdfast-print"]
        os.kill(store, signal.SIGKILL)
        code, said = job.end(100)
        assert code == 143, said
        assert "the store of the job has died" in said, said
        assert f"stopped after step {max(job.losses())}, which is saved" in said, said


def test_a_job_goes_on_if_the_process_dies_that_prints_its_lines(tmp_path, whole):
    with Launch(tmp_path / "run", 12, ["1:8:kill"], pace=0.05) as job:
        job.until_step(2)
        (printer,) = [one for one in job.children() if _name(one) == "holdfast-print"]
        os.kill(printer, signal.SIGKILL)
        code, said = job.end(60)
        assert code == 0, said
        assert Path(f"{job.run}.end.0").read_text() == whole
        assert "step 8 goes on after" in said, said


def test_a_start_of_all_ranks_with_what_was_left_in_memory_is_told_as_such(tmp_path, whole):
    memory = tmp_path / "memory"
    memory.mkdir()
    with Launch(tmp_path / "run", 12, ["1:4:fail"], variables={"HANDOVER": str(memory)}) as job:
        code, said = job.end()
        assert code == 1 and "stopped after step 3, which is left in memory" in said, said
    with Launch(tmp_path / "run", 12, ["1:4:kill"], variables={"HANDOVER": str(memory)}) as job:
        code, said = job.end()
        assert code == 0, said
        assert Path(f"{job.run}.end.0").read_text() == whole
        (recovered,) = [one for one in job.events()["recovered"] if one["outcome"] == "restart"]
    assert (recovered["rung"], recovered["step"], recovered["steps_lost"]) == ("memory", 4, 0)
    assert re.search(r"step 4 goes on after [0-9.]+ s: memory, exact, 0 steps lost", said), said


def test_a_launcher_of_one_host_does_not_begin_the_training_again_on_another_node(capsys):
    step = {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[1-2]"}
    assert parse(["--hosts", "1", str(SCRIPT)], step | {"SLURM_NODEID": "0"}).host == 0
    assert parse(["--hosts", "1", "--host", "0", str(SCRIPT)], step | {"SLURM_NODEID": "1"}).host == 0
    with pytest.raises(SystemExit) as ended:
        parse(["--hosts", "1", str(SCRIPT)], step | {"SLURM_NODEID": "1"})
    assert ended.value.code == 2
    assert ("holdfast: launch: --hosts 1, and this is node 1 of a job step of 2 nodes; expected --hosts "
            "2, or srun --nodes=1") in capsys.readouterr().err


@pytest.mark.parametrize("text, seconds", [("600", 600), ("10m", 600), ("1.5h", 5400), ("2 min", 120),
                                           ("0", 0), ("90s", 90)])
def test_times_may_have_a_unit(text, seconds):
    made = parse(["--hang", text, "--wait", text, str(SCRIPT)], {})
    assert made.hang == made.wait == seconds


def test_there_is_a_rank_for_each_gpu(monkeypatch, capsys):
    monkeypatch.setattr(options, "_count_gpus", lambda: 3)
    assert parse(["-n", "gpu", str(SCRIPT)], {}).ranks == 3
    monkeypatch.setattr(options, "_count_gpus", lambda: 0)
    with pytest.raises(SystemExit):
        parse(["-n", "gpu", str(SCRIPT)], {})
    assert "-n gpu: torch sees no GPU; expected one, or a number of ranks" in capsys.readouterr().err


@pytest.mark.parametrize("arguments, words", [
    (["-n", "0", "train.py"], "-n 0; expected 1 to 1024"),
    (["-n", "100000", "train.py"], "-n 100000; expected 1 to 1024"),
    (["-n", "2", "--most", "5000", str(SCRIPT)], "--most 5000; expected 2, the number of ranks, to 1024"),
    ([300 * "long"], "no such file; expected a Python script"),
    (["missing.py"], "missing.py: no such file; expected a Python script"),
    (["--rank", "3", "train.py"], "unrecognized arguments"),
    (["--hang", "-1", "train.py"], "--hang: -1; expected seconds, 0 or more"),
    (["--hang", "10d", "train.py"], "--hang: 10d; expected seconds, 0 or more, or a time such as 10m"),
    (["-n", "many", "train.py"], "-n/--ranks: many; expected a number of ranks, or gpu"),
    (["--logs", str(SCRIPT), str(SCRIPT)], "File exists; expected a folder, or a name for one"),
    (["--hosts", "2", str(SCRIPT)], "--hosts without --host"),
    (["--hosts", "2", "--host", "1", str(SCRIPT)], "--hosts without --at"),
    (["--hosts", "2", "--host", "2", "--at", "h:1", str(SCRIPT)], "--host 2; expected 0 to 1, or spare"),
    (["--hosts", "2", "--host", "0", "--at", "h", str(SCRIPT)], "--at h; expected ADDRESS:PORT"),
])
def test_wrong_options_are_refused_in_a_sentence(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(arguments, {})
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1
    assert said.startswith("holdfast: launch: ") and words in said, said
