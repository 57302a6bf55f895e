"""Checks on a GPU that saves and restores keep to the order of training's CUDA stream.

    ordering_check.py [--folder PATH] [--cycles N]

Every check queues a kernel that takes about a second in a stream, then more work, and calls
Holdfast while this work has not run yet. It does so in the default stream and in another one.

  incremental   an update that has not run yet when save() is called must be in the checkpoint,
                although the tensors still have the values of the step before
  resume        an initialisation that has not run yet must not overwrite what is restored, and
                work that is queued next in the stream must see the restored values
  at once       an average, which is copied inside save(), must be saved as it is at that point of
                the stream, although the next change of it is queued right after save()

All comparisons are bit by bit. Exits with 1 if a check fails.
"""

import contextlib
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import holdfast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring.options import parser  # noqa: E402: it is in the folder above

WIDTH = 1024
State = dict[str, torch.Tensor]


class Job:
    """A model, its average and an optimizer, with a checkpointer over them."""

    def __init__(self, run: Path, **writing) -> None:
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).cuda()
        self.ema = AveragedModel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=True)
        self.ck = holdfast.Checkpointer(run, model=self.model, optimizer=self.optimizer,
                                        ema=self.ema, every="1000000 steps",
                                        writing=holdfast.Writing(**writing),
                                        failures=holdfast.Failures(signals=False))

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(8, WIDTH, device="cuda")).square().mean().backward()

    def tensors(self) -> State:
        """All tensors of the state, not copied."""
        found = {f"model.{name}": value for name, value in self.model.named_parameters()}
        found |= {f"ema.{name}": value for name, value in self.ema.module.named_parameters()}
        for name, value in self.model.named_parameters():
            for slot, content in self.optimizer.state.get(value, {}).items():
                found[f"optimizer.{name}.{slot}"] = content
        return {name: value.detach() for name, value in found.items()}

    def copies(self) -> State:
        """Copies of all tensors, made in the order of the current stream."""
        return {name: value.clone() for name, value in self.tensors().items()}

    def averages(self) -> list[torch.Tensor]:
        return [value.detach() for value in self.ema.module.parameters()]


class Checks:
    def __init__(self, folder: Path, cycles: int) -> None:
        self.folder = folder
        self.cycles = cycles
        self.runs = 0
        self.failed = 0

    def run(self) -> Path:
        self.runs += 1
        return self.folder / f"run-{self.runs}"

    def delay(self) -> torch.cuda.Event:
        """Keeps the current stream busy. Returns a CUDA event that is recorded after that."""
        torch.cuda.synchronize()
        torch.cuda._sleep(self.cycles)
        event = torch.cuda.Event()
        event.record()
        return event

    def expect(self, good: bool, what: str) -> None:
        print(f"{'ok' if good else 'FAILED':8}{what}", flush=True)
        self.failed += not good

    def expect_equal(self, got: State, want: State, what: str) -> None:
        torch.cuda.synchronize()
        missing = sorted(got.keys() ^ want.keys())
        differ = [name for name in want if name in got and not torch.equal(got[name], want[name])]
        self.expect(not missing and not differ,
                    f"{what}: {len(want)} tensors, missing {missing[:3]}, differ {differ[:3]}")

    def resumed(self, run: Path, what: str, want: State) -> None:
        job = Job(run)
        job.ck.resume()
        self.expect_equal(job.tensors(), want, what)
        job.ck.close()


def check_incremental(checks: Checks, where: str) -> None:
    run = checks.run()
    job = Job(run, incremental=True)
    job.ck.resume()
    job.backward()
    job.optimizer.step()
    torch.cuda.synchronize()
    job.ck.save(0).durable()
    before = job.copies()
    job.backward()
    busy = checks.delay()
    job.optimizer.step()
    want = job.copies()
    checks.expect(not busy.query(), f"incremental, {where}: the update has not run yet")
    job.ck.save(1).durable()
    checks.expect_equal(job.tensors(), want, f"incremental, {where}: nothing has changed since")
    checks.expect(not torch.equal(before["model.0.weight"], want["model.0.weight"]),
                  f"incremental, {where}: the update changes the tensors")
    job.ck.close()
    checks.resumed(run, f"incremental, {where}: the checkpoint", want)


def saved_once(run: Path) -> Job:
    job = Job(run)
    job.ck.resume()
    job.backward()
    job.optimizer.step()
    job.ck.save(0).durable()
    return job


def check_resume(checks: Checks, where: str) -> None:
    run = checks.run()
    job = saved_once(run)
    want = job.copies()
    job.ck.close()

    job = Job(run)
    busy = checks.delay()
    for value in job.tensors().values():
        value.fill_(7)
    checks.expect(not busy.query(), f"resume, {where}: the initialisation has not run yet")
    job.ck.resume()
    seen = job.copies()  # queued in the stream, without waiting
    checks.expect_equal(seen, want, f"resume, {where}: seen at once")
    checks.expect_equal(job.tensors(), want, f"resume, {where}: in the end")
    job.ck.close()


def check_at_once(checks: Checks, where: str) -> None:
    run = checks.run()
    job = saved_once(run)
    # Allocates the memory and loads the kernels that are needed below, because both would wait
    # until the device is idle.
    for value in job.copies().values():
        value.add_(1)
    busy = checks.delay()
    for value in job.averages():
        value.add_(1)
    want = job.copies()
    checks.expect(not busy.query(), f"at once, {where}: the change has not run yet")
    save = job.ck.save(1)
    for value in job.averages():
        value.add_(1)
    save.durable()
    job.ck.close()
    checks.resumed(run, f"at once, {where}: the checkpoint", want)


def main() -> int:
    made = parser(__doc__, folder=None)
    made.add_argument("--cycles", type=int, default=int(2e9),
                      help="clock cycles of the kernel that keeps the stream busy")
    options = made.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        checks = Checks(Path(folder), options.cycles)
        for where in ("default stream", "own stream"):
            own = where == "own stream"
            stream = torch.cuda.stream(torch.cuda.Stream()) if own else contextlib.nullcontext()
            with stream:
                check_incremental(checks, where)
                check_resume(checks, where)
                check_at_once(checks, where)
    print(f"{checks.failed} checks failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
