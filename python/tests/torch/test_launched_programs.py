"""What programs under `holdfast launch` may do with process groups, gradients and what they print."""

import contextlib
import json
import os
import pty
import re
import select
import time

import pytest
import staged
from ranks import run_ranks
from recovered_jobs import SCRIPT, begin_launch, launch

from holdfast.launch.lines import Printing

EXCHANGE = """
import torch
import torch.distributed as dist
from holdfast.torch.recover.worker_side import current

dist.init_process_group("gloo")
rank = dist.get_rank()
heard, told = torch.zeros(2), torch.full((2,), float(rank))
waits = [dist.irecv(heard, 1 - rank), dist.isend(told, 1 - rank)]
for one in waits:
    one.wait()
for _ in range(3):
    dist.destroy_process_group(dist.new_group([0, 1]))
print("heard", heard.tolist(), "groups", len(current().groups._groups))
"""


def test_ranks_may_receive_before_they_send_and_groups_that_are_destroyed_are_let_go(tmp_path):
    script = tmp_path / "exchange.py"
    script.write_text(EXCHANGE)
    code, said = launch(["--hang", 20, script], ranks=2, said=tmp_path / "said", timeout=60)
    assert code == 0, said
    for rank in (0, 1):
        assert f"heard [{1 - rank:.1f}, {1 - rank:.1f}] groups 1\n" in said, said


@pytest.mark.parametrize("how", ["warms up", "plain"])
def test_stages_may_train_before_the_first_run_and_without_one(tmp_path, how):
    """While start-up is recorded, a call of one stage must not wait for a later one of another."""
    code, said = launch(["--hang", 30, SCRIPT.parent / "staged.py", tmp_path / "run", how], ranks=2,
                        said=tmp_path / "said", timeout=60)
    assert code == 0, said
    found = [json.loads((tmp_path / f"run.end.{rank}").read_text()) for rank in (0, 1)]
    assert found == run_ranks(2, staged.train, None, how)


SPARSE = """
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast

run, dies_in = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
words, head = nn.Embedding(50, 4, sparse=True), nn.Linear(4, 1)
model = DistributedDataParallel(nn.Sequential(words, head))
optimizers = [torch.optim.SparseAdam(words.parameters()), torch.optim.AdamW(head.parameters())]


def train(batch):
    loss = model(batch).pow(2).mean()
    loss.backward()
    if (rank, step) == (1, dies_in) and not Path(f"{run}.died").exists():
        Path(f"{run}.died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    for one in optimizers:
        one.step()
        one.zero_grad()
    return loss.detach()


ck = holdfast.Checkpointer(run, model=model, optimizer=optimizers, every="never")
for step in range(ck.resume(), 5):
    batch = torch.randint(0, 50, (8,), generator=torch.Generator().manual_seed(10 * step + rank))
    loss = ck.run(train, batch)
    ck.step(step, loss=loss)
    if rank == 0:
        print("loss", step, loss.item().hex(), flush=True)
ck.close(save=False)
print("end", rank, words.weight.double().sum().item().hex(), flush=True)
"""


def test_sparse_gradients_are_trained_and_a_rank_with_them_is_replaced_exactly(tmp_path):
    script = tmp_path / "sparse.py"
    script.write_text(SPARSE)
    lines = []
    for name, dies_in in (("whole", -1), ("killed", 2)):
        code, said = launch([script, tmp_path / name, dies_in], ranks=2, said=tmp_path / f"{name}.said",
                            timeout=100)
        assert code == 0, said
        lines.append(sorted(line for line in said.splitlines() if "loss " in line or "end " in line))
    assert "replica, exact, 0 steps lost" in said, said
    assert lines[0] == lines[1] and len(lines[0]) == 7


def test_each_rank_prints_to_a_file_of_its_own_if_asked_to(tmp_path):
    script = tmp_path / "prints.py"
    script.write_text("import os, sys\nprint('rank', os.environ['RANK'])\n"
                      "os.write(2, b'below python\\n')\n")
    code, said = launch(["--logs", tmp_path / "new" / "logs", script], ranks=2, said=tmp_path / "said",
                        timeout=60)
    assert (code, said) == (0, "")
    for rank in (0, 1):
        lines = (tmp_path / "new" / "logs" / f"rank-{rank}.log").read_text().splitlines()
        assert sorted(lines) == ["below python", f"rank {rank}"]


PRINTS = """
import os, signal, sys
rank = int(os.environ["RANK"])
for k in range(2000):
    print("line", k, file=[sys.stdout, sys.stderr][k % 2])
os.write(1, b"in ")
os.write(1, b"parts\\n\\n")
if rank == 1:
    os.write(2, b"last words")
    os.kill(os.getpid(), signal.SIGKILL)
signal.pause()  # a job of which a rank has ended already is not started again
"""


def test_each_line_of_several_ranks_begins_with_its_rank(tmp_path):
    script = tmp_path / "prints.py"
    script.write_text(PRINTS)
    code, said = launch([script], ranks=2, said=tmp_path / "said", timeout=60)
    assert code == 137, said
    starts = said.count("[0] line 0\n")
    for rank in (0, 1):
        own = [line for line in said.splitlines() if line.startswith(f"[{rank}] ")]
        if rank == 1:
            made = [f"[1] line {k}" for k in range(2000)] + ["[1] in parts", "[1] ", "[1] last words"]
            assert sorted(own) == sorted(2 * made)
        whole = {f"[{rank}] {text}" for text in (*(f"line {k}" for k in range(2000)), "in parts", "", "last words")}
        # The launcher ends rank 0 each time, perhaps in the middle of a line.
        odd = {*own} - whole
        assert len(odd) <= 2 and all(any(line.startswith(one) for line in whole) for one in odd), odd
    others = [line for line in said.splitlines() if not re.match(r"\[[01]\] ", line)]
    assert starts and all(line.startswith("holdfast: ") for line in others), others
    # What a rank has printed comes before the line that tells of its death.
    assert said.index("[1] last words\nholdfast: rank 1 (pid ") > 0


def test_the_lines_of_one_rank_and_with_no_prefix_are_left_alone(tmp_path):
    script = tmp_path / "prints.py"
    script.write_text("print('a line', flush=True)\n")
    assert launch([script], ranks=1, said=tmp_path / "one") == (0, "a line\n")
    assert launch(["--no-prefix", script], ranks=2, said=tmp_path / "two") == (0, 2 * "a line\n")


def test_ranks_go_on_if_nobody_reads_what_they_print(tmp_path):
    script = tmp_path / "prints.py"
    script.write_text("import os, sys\nfrom pathlib import Path\n"
                      "for _ in range(5000):\n    print('x' * 100, flush=True)\n"
                      "Path(sys.argv[1] + os.environ['RANK']).touch()\n")
    os.mkfifo(tmp_path / "pipe")
    read = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    process = begin_launch(["-n", "2", script, tmp_path / "end"], tmp_path / "pipe")
    assert select.select([read], [], [], 60)[0]
    os.close(read)  # as head does it
    assert process.wait(60) == 0
    assert (tmp_path / "end0").exists() and (tmp_path / "end1").exists()


class Printed:
    """What is printed for two ranks."""

    def __init__(self, read, write):
        self._read, self._printing = read, Printing(write, write)
        os.set_blocking(read, False)
        self.ranks = []
        for rank in range(2):
            theirs, ours = os.pipe()
            os.set_blocking(theirs, False)
            self._printing.add(theirs, 1, b"[%d] " % rank)
            self.ranks.append(ours)

    def after(self, rank, data, idle=0.0):
        """What is printed when a rank has printed the data, and then nothing for some seconds."""
        os.write(self.ranks[rank], data)
        return self.read(idle)

    def read(self, idle=0.0):
        self._printing.read(set(self._printing.numbers()))
        self._printing.flush_idle(time.monotonic() + idle)
        with contextlib.suppress(BlockingIOError):
            return os.read(self._read, 1 << 16)
        return b""


def test_progress_bars_are_printed_as_they_come_and_lines_when_they_end():
    printed = Printed(*os.pipe())
    assert printed.after(0, b"\r10%") == b""
    assert printed.after(0, b" of all", idle=1) == b"[0] 10% of all"
    assert printed.after(0, b"\r20%\r30%") == b"\r[0] 20%\r"
    assert printed.after(1, b"loading", idle=1) == b"[0] 30%"
    assert printed.after(1, b" data\n") == b"\n[1] loading data\n"
    assert printed.after(0, b"\r40%\n") == b"[0] 40%\n"
    assert printed.after(1, b"a\r\nb\nc") == b"[1] a\r\n[1] b\n"
    os.close(printed.ranks[1])
    assert printed.read() == b"[1] c\n"


def test_on_a_terminal_other_lines_do_not_run_into_bars_and_questions():
    printed = Printed(*pty.openpty())
    assert printed.after(0, b"name?", idle=1) == b"[0] name?"
    assert printed.after(1, b"hello\n") == b"\r\n[1] hello\r\n"
    assert printed.after(1, b"\r10%", idle=1) == b"[1] 10%"
    assert printed.after(0, b"hello\n") == b"\r\x1b[K[0] hello\r\n"
