"""Runs every block of code and of commands in README.md and docs/.

docs/developing.md says what is done with each kind of block. `pytest -rP` on this file prints the
blocks that are not run, each with the reason that the document gives.
"""

import contextlib
import io
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from blocks import ALL, BIN, HERE, LANGUAGES, REASONS, ROOT, RUN_BY
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import holdfast

PACKAGE = Path(holdfast.__file__).parents[1]
# These start Python and torchrun many times, which takes a minute: only make test-all runs them.
SLOW = {"docs/getting_started.md", "docs/resume_elsewhere.md", "docs/failures.md",
        "docs/recovery.md", "docs/campaigns.md", "docs/models.md"}  # fmt: skip


class Surroundings:
    """The names that short examples use without making them, and the folder they are run in."""

    def __init__(self, folder):
        self.folder = folder
        self.names = {}
        self.opened = []  # Checkpointers for blocks that do not make one
        (folder / "examples").symlink_to(ROOT / "examples")

    def renew(self):
        """Gives the next block a new model, so that no block depends on the one before."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
        inputs = torch.randn(32, 8)
        dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True))
        loader = holdfast.data.resumable(DataLoader(dataset, batch_size=4))

        def train(batch):
            loss = nn.functional.mse_loss(model(batch[0]), batch[1])
            loss.backward()
            opt.step()
            opt.zero_grad()
            return loss.detach()

        self.names |= {
            "__name__": "document", "holdfast": holdfast, "torch": torch, "model": model,
            "opt": opt, "sched": torch.optim.lr_scheduler.StepLR(opt, 100), "dataset": dataset,
            "loader": loader, "train": train, "validate": lambda: None, "epochs": 1, "step": 0,
            "sampler": DistributedSampler(dataset, num_replicas=1, rank=0),
        }
        run = self.folder / "runs" / f"around-{len(self.opened)}"
        self.names["ck"] = holdfast.Checkpointer(run, model=model, optimizer=opt, data=loader,
                                                 every="never",
                                                 failures=holdfast.Failures(signals=False))
        self.opened.append(self.names["ck"])

    def save_a_run(self):
        """Makes runs/gpt with the steps 300 and 400."""
        self.renew()
        self.close()
        names = {"model": "model", "optimizer": "opt", "scheduler": "sched", "data": "loader"}
        parts = {keyword: self.names[name] for keyword, name in names.items()}
        with holdfast.Checkpointer("runs/gpt", **parts) as ck:
            for step, batch in zip((300, 400), self.names["loader"]):
                self.names["train"](batch)
                ck.save(step).durable()

    def close(self):
        """Closes what a block has left open, as the end of a script does."""
        for value in [*self.names.values(), *self.opened]:
            if isinstance(value, (holdfast.Checkpointer, holdfast.Saver)):
                with contextlib.suppress(Exception):
                    value.close()


@pytest.fixture
def surroundings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.setenv(variable, "")  # so that what a block sets is undone after the test
    monkeypatch.setenv("PATH", f"{BIN}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = Surroundings(tmp_path)
    yield made
    made.close()


def run_python(block, surroundings):
    """Runs the block in this process. Returns all that it prints and logs."""
    surroundings.renew()
    printed = io.StringIO()
    log, handler = logging.getLogger("holdfast"), logging.StreamHandler(printed)
    handler.setLevel(logging.WARNING)
    log.addHandler(handler)
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(block.body, str(block), "exec"), surroundings.names)
    finally:
        surroundings.close()
        log.removeHandler(handler)
    return printed.getvalue()


def run_commands(block):
    """Runs the block with bash, as a person would. Returns all that it prints."""
    lines = []
    for line in block.body.splitlines():
        expected = re.search(r"# exit code (\d+)$", line)
        lines.append(line if not expected else
                     f"{line}\n[ $? = {expected[1]} ] || {{ echo wrong exit code >&2; exit 99; }}")
        if not line.endswith("\\") and not expected:
            lines.append('[ $? = 0 ] || { echo "failed" >&2; exit 99; }')
    done = subprocess.run(["bash", "-c", "\n".join(lines)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{block}:\n{done.stdout}"
    return done.stdout


def assert_printed(block, printed):
    """Each line of the block must be in the output, in this order; ... stands for any text."""
    rest = printed.splitlines()
    for line in block.body.splitlines():
        pattern = ".*".join(re.escape(part) for part in line.strip().split("..."))
        while rest and not re.fullmatch(pattern, rest[0].strip()):
            rest.pop(0)
        assert rest, f"{block}: this was not printed:\n  {line}\nbut:\n{printed}"
        rest.pop(0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("document", [name for name, blocks in HERE.items() if blocks])
def test_every_block_runs_and_prints_what_the_document_says(document, surroundings):
    if document in SLOW and not os.environ.get("HOLDFAST_LONG"):
        pytest.skip("takes up to a minute; HOLDFAST_LONG=1 runs it")
    surroundings.save_a_run()
    printed = None  # the output of the block before
    for block in HERE[document]:
        if block.language == "text" and printed is not None and not block.name:
            assert_printed(block, printed)
        printed = None
        if block.reason is not None:
            continue
        if block.language == "python" and block.name:
            Path(block.name).write_text(block.body)
        elif block.language == "python":
            printed = run_python(block, surroundings)
        elif block.language == "sh":
            printed = run_commands(block)
        elif block.language == "json":
            json.loads(block.body)


def test_every_block_has_a_language_and_a_known_reason_if_it_is_not_run():
    for block in (block for blocks in ALL.values() for block in blocks):
        assert block.language in LANGUAGES, f"{block}: ```{block.language}; expected a language"
        assert block.reason is None or block.reason in REASONS, f"{block}: {block.reason}"
        assert block.language != "cpp" or block.reason, f"{block}: expected a reason before it"
        if block.reason is not None:
            print(f"not run: {block} {block.reason}")  # pytest -rP shows it
    assert sum(len(blocks) for blocks in ALL.values()) > 40  # a pattern that finds nothing passes


def test_documents_that_other_tests_run_are_named_by_these_tests():
    for document, test in RUN_BY.items():
        assert Path(document).name in (ROOT / test).read_text()
