"""A training with Recover(undo=True) for test_undo.py, run by `holdfast launch -n 3`:

    undone.py RUN STEPS KILLS HOLDS OPTIMIZER

KILLS is a list, with commas, of rank:step:point: that rank ends itself with SIGKILL, once, when it is there, and when
another rank has made its update ("updated") or at once. HOLDS is a list of rank:step: that rank waits right
before its update until it hears that a rank is lost, so that it does not make the update. RUN.losses.R has a line
for each step of rank R, and RUN.end.R digests of all that it ends with.
"""

import json
import os
import signal
import sys
import time
from hashlib import sha256
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast
from holdfast.torch.recover import crash_points, worker_side

run, steps, kills, holds, chosen = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4].split(","), \
    sys.argv[5]
rank, step = int(os.environ["RANK"]), -1


def wait_until(is_true):
    until = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < until, "what a test waits for does not come"
        time.sleep(0.005)


def here(point):
    """Dies or waits, if this is a place for it."""
    mark, place = Path(f"{run}.marks"), f"{rank}:{step}:{point}"
    if point == "after update":
        (mark / f"{step} updated by {rank}").touch()
    if f"{rank}:{step}" in holds and point == "gate" and not (mark / f"{place} held").exists():
        (mark / f"{place} held").touch()
        wait_until(lambda: not worker_side.current().link.is_current)
    place = f"{rank}:*:{point}" if f"{rank}:*:{point}" in kills else place
    if place in kills and not (mark / place).exists():
        updated = [other for other in range(3) if other != rank and f"{other}:{step}" not in holds]
        if point == "gate":
            wait_until(lambda: all((mark / f"{step} updated by {other}").exists() for other in updated))
        (mark / place).touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Counter:
    """An object of the user's own."""

    def __init__(self):
        self.steps = self.loops = 0

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


def main():
    global step
    Path(f"{run}.marks").mkdir(exist_ok=True)
    crash_points.on_reach = here
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 1))
    model = DistributedDataParallel(net)
    optimizer = eval(f"torch.optim.{chosen}")(net.parameters())
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2 * steps)
    inputs = torch.randn(96, 8)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True), torch.arange(96))
    loader, counter = holdfast.data.loader(data, 12, seed=3, epochs=None), Counter()
    torch.manual_seed(100 + rank)
    ck = holdfast.Checkpointer(run, model=model, optimizer=optimizer, scheduler=scheduler, data=loader,
                               objects={"counter": counter}, every="3 steps",
                               recover=holdfast.Recover(undo=True), writing=holdfast.Writing(space_reserve=0))

    def train(batch):
        counter.steps += 1
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        here("forward")
        loss.backward()
        optimizer.step()
        here("after update")
        optimizer.zero_grad()
        return loss.detach()

    with open(f"{run}.losses.{rank}", "a") as losses:
        for step, batch in zip(range(ck.resume(), steps), loader):
            loss = ck.run(train, batch)
            here("after run")
            scheduler.step()
            counter.loops += 1
            losses.write(json.dumps([step, loss.item(), batch[-1].tolist(), os.getpid()]) + "\n")
            losses.flush()
            ck.step(step, loss=loss)
            here("after step")
    ck.close()
    slots = [optimizer.state[one] for one in net.parameters()]
    tensors = [*net.parameters(), *(one for state in slots for _, one in sorted(state.items()) if one is not None)]
    alike = sha256(b"".join(torch.as_tensor(one).detach().numpy().tobytes() for one in tensors)).hexdigest()
    Path(f"{run}.end.{rank}").write_text(json.dumps({
        "alike": alike, "finite": all(bool(torch.as_tensor(one).isfinite().all()) for one in tensors),
        "counter": vars(counter), "generator": sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(),
        "rate": scheduler.get_last_lr(), "parameters": [one.tolist() for one in net.parameters()]}))
    dist.destroy_process_group()


main()
