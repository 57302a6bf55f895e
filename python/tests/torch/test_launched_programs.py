"""What programs under `holdfast launch` may do with process groups and gradients."""

import json

import pytest
import staged
from ranks import run_ranks
from recovered_jobs import SCRIPT, launch

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
