"""Runs elastic_job.py under `holdfast launch`, and reads what the job has left."""

import json
from pathlib import Path

import torch
from recovered_jobs import launch

SCRIPT = Path(__file__).parent / "elastic_job.py"
AGAIN = "start again from the newest checkpoint"


class Left:
    """What a job has left."""

    def __init__(self, run):
        self.run = run
        self.workers = lines_of(run, "steps")
        self.answers = sorted((json.loads(path.read_text()) for path in (run / "control").glob("answer-*")),
                              key=lambda one: one.get("step", -1))

    @property
    def said(self):
        return "\n".join(path.read_text() for path in sorted(self.run.parent.glob(f"{self.run.name}.said*")))

    def events(self, name):
        """The events of that name in the log of the run, in the order in which they happened."""
        lines = [line for path in (self.run / "events").glob("*") for line in path.read_text().splitlines()]
        return sorted((one for one in map(json.loads, lines) if one["event"] == name),
                      key=lambda one: one["mono_ns"])

    def killed(self):
        """The kills that have happened."""
        return sorted(path.name.partition(".killed.")[2]
                      for path in self.run.parent.glob(f"{self.run.name}.killed.*"))

    def lines(self):
        """The lines of each step that count: those of the newest generation that has made it."""
        found = {}
        for lines in self.workers.values():
            for line in lines:
                newest = found.setdefault(line[0], (line[5], []))
                if line[5] > newest[0]:
                    newest = found[line[0]] = (line[5], [])
                if line[5] == newest[0]:
                    newest[1].append(line)
        return {step: of_step for step, (_, of_step) in sorted(found.items())}

    def losses(self):
        """The loss of each step."""
        return {step: loss for step, lines in self.lines().items() for _, _, loss, *_ in lines if loss}

    def batches(self):
        """The samples of each step, of all replicas together; those of a rank are in the rank's order."""
        return {step: sorted(one for part in {tuple(line[3]) for line in lines} for one in part)
                for step, lines in self.lines().items()}

    def configurations(self):
        """The configuration of each step."""
        return {step: lines[0][1] for step, lines in self.lines().items()}

    def changed(self):
        """(step, what is not exact, what the old model says) of each change, by workers."""
        return lines_of(self.run, "changed")

    def counts(self):
        """What each worker has noted of itself."""
        return lines_of(self.run, "counts")

    def check_bits(self):
        """Fails unless every whole tensor is after each change what it was before. Returns how many
        changes there were.

        A change that has failed ends as a later generation, or all ranks have started again.
        """
        folder = Path(f"{self.run}.bits")
        changes = sorted({tuple(path.name.split(".")[:2]) for path in folder.glob("*.before.*")})
        ends = sorted({tuple(path.name.split(".")[:2]) for path in folder.glob("*.after.*")})
        compared = 0
        for number in changes:
            end = next((one for one in ends if one[0] == number[0] and one >= number), None)
            if end is None or any(number < one <= end for one in changes if one != number):
                assert AGAIN in self.said, (number, self.said)
                continue
            before, after = (whole_tensors(folder, ".".join(one), what)
                             for one, what in ((number, "before"), (end, "after")))
            assert len(before) > 30
            other = [name for name in after if not is_kept(before, name, after[name])]
            assert not other, (number, other)
            assert not {base_of(name) for name in before} - {base_of(name) for name in after}
            compared += 1
        return compared

    def check_steps(self, whole, near=1e-4):
        """Fails unless every step was made, of the same samples as by a job that has not changed, and has
        nearly the same loss."""
        batches, expected = self.batches(), whole.batches()
        assert list(batches) == list(range(len(batches)))
        other = [step for step in batches if batches[step] != expected[step]]
        assert not other, (other, self.said)
        losses, others = self.losses(), whole.losses()
        far = {step: (one, others[step]) for step, one in losses.items()
               if not abs(float.fromhex(one) - float.fromhex(others[step])) < near}
        assert losses.keys() == batches.keys() and not far, (far, self.said)


def base_of(name):
    """The name of a buffer of which each rank has its own values, without the rank."""
    return name.partition("@rank")[0]


def is_kept(before, name, tensor):
    """True if a tensor has the values that it had before the change. A replica that is new takes the values of a
    buffer from one that was there."""
    if name in before:
        return torch.equal(before[name], tensor)
    kept = [one for other, one in before.items() if base_of(other) == base_of(name)]
    return any(torch.equal(one, tensor) for one in kept)


class Job(Left):
    """A job that has run to its end."""

    def __init__(self, run, first, plan="", steps=300, kills="", how=(), ranks=4, most=4, timeout=180, options=()):
        """Forgets what a job before has asked for, and its answers."""
        for path in [Path(f"{run}.wanted"), Path(f"{run}.last"), *Path(run, "control").glob("answer-*")]:
            path.unlink(missing_ok=True)
        self.code, _ = launch(["--most", most, *options, SCRIPT, run, first, plan, steps, kills, *how], ranks=ranks,
                              said=f"{run}.said", timeout=timeout)
        super().__init__(run)


def lines_of(run, what):
    """The lines of JSON that each worker has written to its file."""
    return {int(path.suffix[1:]): [json.loads(line) for line in path.read_text().splitlines()]
            for path in sorted(run.parent.glob(f"{run.name}.{what}.*"))}


def whole_tensors(folder, number, what):
    """All tensors, put together from the parts of all workers; replicas must be equal."""
    whole, filled = {}, {}
    for path in folder.glob(f"{number}.{what}.*"):
        for name, (shape, box, part) in torch.load(path, weights_only=False).items():
            if name not in whole:
                whole[name] = torch.zeros(shape, dtype=part.dtype)
                filled[name] = torch.zeros(shape, dtype=torch.bool)
            place = tuple(slice(first, last) for first, last in box)
            there = filled[name][place]
            assert torch.equal(whole[name][place][there], part[there]), name
            whole[name][place], filled[name][place] = part, True
    assert all(one.all() for one in filled.values())
    return whole
