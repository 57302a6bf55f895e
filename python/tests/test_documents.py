"""Runs every block of code and of commands in README.md and docs/, and checks what they name.

docs/developing.md says what is done with each kind of block. `pytest -rP` on this file prints the
blocks that are not run, each with the reason that the document gives.
"""

import contextlib
import importlib.util
import inspect
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import holdfast

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(holdfast._native.__file__).parents[2] / "bin"
PACKAGE = Path(holdfast.__file__).parents[1]

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# These documents have a test of their own, which runs their blocks with packages that are not here.
RUN_BY = {"docs/adapters.md": "python/tests/adapters/test_document.py"}
# Why a block may not be run: <!-- not run: REASON --> on the line before it.
REASONS = {"takes minutes", "needs a GPU", "needs Slurm", "needs an object store",
           "is a part of a C++ program"}
LANGUAGES = {"python", "sh", "text", "json", "cpp"}

BLOCK = re.compile(r"(?:^<!-- not run: (?P<reason>[^>]*?) -->\n)?"
                   r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$",
                   re.M | re.S)


@dataclass
class Block:
    document: str
    line: int
    language: str
    name: str  # the second word behind the ```: a file's name, or "message"
    body: str
    reason: str | None  # why it is not run

    def __str__(self):
        return f"{self.document}:{self.line}"


def blocks_of(path):
    text, document = path.read_text(), str(path.relative_to(ROOT))
    for found in BLOCK.finditer(text):
        language, _, name = found["info"].strip().partition(" ")
        yield Block(document, text.count("\n", 0, found.start()) + 1, language, name,
                    found["body"], found["reason"])


ALL = {str(path.relative_to(ROOT)): list(blocks_of(path)) for path in DOCUMENTS}
HERE = {document: blocks for document, blocks in ALL.items() if document not in RUN_BY}


# What a block finds when it is run


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
                          stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
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


# What documents name


def spans():
    """All that stands in backticks, and all lines of commands, with the document's name."""
    for path in DOCUMENTS:
        name, text = str(path.relative_to(ROOT)), path.read_text()
        for block in ALL[name]:
            if block.language == "sh":
                yield from ((name, line) for line in block.body.splitlines())
        prose = BLOCK.sub("", text)
        yield from ((name, found.replace("\n", " ")) for found in re.findall(r"`([^`]+)`", prose))


@pytest.fixture(scope="module")
def options_of():
    """The options of every verb, from its help."""
    def help_of(*verb):
        return subprocess.run([BIN / "holdfast", *verb, "--help"], capture_output=True, text=True,
                              check=True).stdout

    subcommands = help_of().partition("Subcommands:")[2]
    verbs = re.findall(r"^  (\w+) ", subcommands, re.M)
    return {verb: set(re.findall(r"--[a-z][\w-]*", help_of(verb))) for verb in verbs}


def test_every_verb_and_option_exists(options_of):
    wrong, seen = [], 0
    for document, span in spans():
        for verb, rest in re.findall(r"(?:^|[\s/;&])holdfast ([a-z]+)\b([^|;&#]*)", span):
            seen += 1
            if verb not in options_of:
                wrong.append(f"{document}: holdfast {verb}")
                continue
            wrong += [f"{document}: holdfast {verb} {option}" for option
                      in re.findall(r"(?<!\S)--[a-z][\w-]*", rest)
                      if option not in options_of[verb]]
    assert not wrong
    assert seen > 30


# Options of programs that are not Holdfast's.
FOREIGN = {"--find-links", "--nproc-per-node", "--max-restarts", "--requeue", "--signal",
           "--install", "--preset", "--build", "--version"}


def test_every_option_that_stands_alone_belongs_to_a_program_here(options_of):
    known = set().union(*options_of.values()) | FOREIGN
    sources = [*ROOT.glob("*/*.py"), *ROOT.glob("bench/*/*.py"), *ROOT.glob("scripts/*.sh")]
    for source in sources:
        known |= set(re.findall(r"[\"' ](--[a-z][\w-]*)", source.read_text()))
    wrong = [f"{document}: {option}" for document, span in spans()
             for option in re.findall(r"(?<!\S)--[a-z][\w-]*", span) if option not in known]
    assert not wrong


# Names of files, which look like attributes.
FILES = {"json", "h"}
# What the variables of the documents are.
CLASSES = {"ck": holdfast.Checkpointer}


def attribute(dotted):
    """The object of that name, or None. Fields of dataclasses count, too."""
    value = holdfast
    for name in dotted.split(".")[1:]:
        if name in getattr(value, "__dataclass_fields__", {}):
            return True
        is_package = inspect.ismodule(value) and "__path__" in vars(value)
        if is_package and importlib.util.find_spec(f"{value.__name__}.{name}"):
            try:
                importlib.import_module(f"{value.__name__}.{name}")
            except ImportError:  # an adapter whose package is not installed here
                return True
        value = getattr(value, name, None)
        if value is None:
            return None
    return value


def test_every_attribute_of_holdfast_exists():
    wrong, seen = set(), 0
    for path in DOCUMENTS:
        for dotted in re.findall(r"(?<![\w/.-])holdfast(?:\.[A-Za-z_]\w*)+", path.read_text()):
            if dotted.split(".")[1] in FILES:
                continue
            seen += 1
            if attribute(dotted) is None:
                wrong.add(f"{path.name}: {dotted}")
    assert not wrong
    assert seen > 40


def test_every_member_of_the_checkpointer_exists(surroundings):
    surroundings.renew()
    names = surroundings.names
    with holdfast.Checkpointer("run", model=names["model"], optimizer=names["opt"]) as ck:
        wrong = []
        for path in DOCUMENTS:
            for dotted in re.findall(r"\bck((?:\.\w+)+)", path.read_text()):
                value = ck
                for name in dotted.split(".")[1:]:
                    value = getattr(value, name, None)
                if value is None:
                    wrong.append(f"{path.name}: ck{dotted}")
    assert not wrong


GROUPS = ["Writing", "Resuming", "Failures", "Schedule", "Layout"]


@pytest.mark.parametrize("group", GROUPS)
def test_every_keyword_of_a_group_of_options_exists(group):
    fields = getattr(holdfast, group).__dataclass_fields__
    wrong = []
    for path in DOCUMENTS:
        for call in re.findall(rf"\b{group}\(([^()]*)", path.read_text()):
            wrong += [f"{path.name}: {group}({name}=)" for name in re.findall(r"(\w+)=", call)
                      if name not in fields]
    assert not wrong


def test_every_event_that_a_document_names_is_one(tmp_path):
    headers = "".join(path.read_text() for path in ROOT.glob("holdfast/*/events.h"))
    events = set(re.findall(r'kName = "(\w+)"', headers))
    named = set(re.findall(r"`((?:save|step|run|tier|replicas|ranks|job)_[a-z_]+)`",
                           (ROOT / "docs/failures.md").read_text()))
    assert len(named) > 6 and named <= events


def test_messages_that_are_quoted_alone_are_in_the_sources():
    """Ranks, numbers and what stands for any text are left out of the comparison."""
    sources = "".join(path.read_text() for pattern in ("holdfast/*/*.cpp", "python/holdfast/**/*.py")
                      for path in ROOT.glob(pattern) if "_test" not in path.name)
    sources = re.sub(r'"\s*\n\s*f?"', "", sources)
    quoted = [block for blocks in ALL.values() for block in blocks if block.name == "message"]
    assert quoted
    for block in quoted:
        variable = r"rank \d+(?: and rank \d+)?|\d+ s\b|step \d+|: |\.\.\."
        for fixed in re.split(variable, block.body.strip()):
            if len(fixed.strip()) > 6:
                assert fixed.strip() in sources, f"{block}: {fixed!r} is in no source"


def test_every_link_leads_somewhere():
    wrong, seen = [], 0
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", path.read_text()):
            link = target[0] or target[1]
            if link.startswith(("http://", "https://")):
                continue
            seen += 1
            file, _, anchor = link.partition("#")
            there = (path.parent / file).resolve() if file else path
            if not there.exists() or (anchor and anchor not in anchors(there)):
                wrong.append(f"{path.name}: {link}")
    assert not wrong
    assert seen > 60


def anchors(path):
    """The anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_programs_that_commands_call_are_there():
    for program in ("bash", "python", "holdfast", "torchrun"):
        assert shutil.which(program, path=f"{BIN}:{Path(sys.executable).parent}:/usr/bin:/bin")
