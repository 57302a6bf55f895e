"""Checks that what README.md and docs/ name exists: verbs, options, attributes, events, links."""

import importlib.util
import inspect
import os
import re
import sys
import subprocess

import pytest
import torch
from blocks import ALL, BIN, BLOCK, DOCUMENTS, ROOT
from torch import nn

import holdfast



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
                              env={**os.environ, "HOLDFAST_PYTHON": sys.executable},
                              check=True).stdout

    subcommands = help_of().partition("Subcommands:")[2]
    verbs = re.findall(r"^  (\w+) ", subcommands, re.M)
    options = {verb: set(re.findall(r"--[a-z][\w-]*", help_of(verb))) for verb in verbs}
    return {**options, "help": set()}  # another word for --help


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
FOREIGN = {"--find-links", "--nodes", "--wrap", "--nproc-per-node", "--max-restarts", "--requeue",
           "--signal", "--shutdown-timeout", "--install", "--prefix", "--preset", "--build",
           "--version", "--async-save", "--ckpt-format", "--load", "--no-load-rng"}


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


def has_path(value, names):
    """True if the object has the first name, what that names has the second, and so on."""
    for name in names:
        if not hasattr(value, name):
            return False
        value = getattr(value, name)
    return True


def test_every_member_of_the_checkpointer_exists(tmp_path):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer) as ck:
        wrong = []
        for path in DOCUMENTS:
            for dotted in re.findall(r"\bck((?:\.\w+)+)", path.read_text()):
                if not has_path(ck, dotted.split(".")[1:]):
                    wrong.append(f"{path.name}: ck{dotted}")
    assert not wrong


GROUPS = ["Writing", "Recover", "Resuming", "Failures", "Schedule", "Layout"]


@pytest.mark.parametrize("group", GROUPS)
def test_every_keyword_of_a_group_of_options_exists(group):
    fields = getattr(holdfast, group).__dataclass_fields__
    wrong = []
    for path in DOCUMENTS:
        for call in re.findall(rf"\b{group}\(([^()]*)", path.read_text()):
            wrong += [f"{path.name}: {group}({name}=)" for name in re.findall(r"(\w+)=", call)
                      if name not in fields]
    assert not wrong


def test_every_event_that_a_document_names_is_one():
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
