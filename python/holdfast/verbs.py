"""The verbs of the command line as functions: ls, show, verify, diff, repair, convert, export, and others.

    report = holdfast.verify("runs/gpt")
    assert report.ok, report["errors"]

The options of a function are those of the verb (`holdfast verify --help`), with "_" for "-". Each returns
a VerbReport, which has what the verb prints with --json.
"""

import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike, fsdecode
from typing import Any, TypedDict, Unpack

from holdfast import _native

_Path = str | PathLike[str]
_Time = str | float  # "8h", or seconds

_DAMAGE = 3  # an exit code
_log = logging.getLogger("holdfast")

# A verb takes SIGINT and SIGTERM while it works and gives them back, so two may not overlap.
_one_at_a_time = threading.Lock()


class VerbReport(Mapping[str, Any]):
    """What a verb has found, by the names of its --json."""

    def __init__(self, verb: str, exit_code: int, found: Mapping[str, Any]) -> None:
        self.verb = verb
        self.exit_code = exit_code  # of the command; 3 if it has found damage
        self._found = dict(found)

    @property
    def ok(self) -> bool:
        """True if the command exits with 0: nothing is damaged, nothing differs."""
        return self.exit_code == 0

    def __getitem__(self, name: str) -> Any:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return f"VerbReport({self.verb}: exit {self.exit_code}, {json.dumps(self._found)[:200]})"


def ls(*runs: _Path) -> VerbReport:
    """The runs in folders, and their steps, newest first."""
    return _run("ls", runs)


def show(path: _Path, *, tensors: bool = False, roles: bool = False, roles_from: _Path | None = None,
         layout: bool = False, objects: bool = False) -> VerbReport:
    """What a checkpoint or file contains. Only `layout` adds to the report: it has the boxes then."""
    return _run("show", (path,), tensors=tensors, roles=roles, roles_from=roles_from, layout=layout,
                objects=objects)


def pin(run: _Path, step: int | str) -> VerbReport:
    """Keeps a step, whatever the rules of retention say."""
    return _run("pin", (run, str(step)))


def unpin(run: _Path, step: int | str) -> VerbReport:
    """Leaves a step to the rules of retention again."""
    return _run("unpin", (run, str(step)))


def convert(source: _Path, target: _Path, *, format: str | None = None) -> VerbReport:
    """Writes a file in another format, which the ending of the target's name says, or `format`.

    The source is a file of any format, a step's folder, a run directory (its newest whole step)
    or RUN@STEP. Newer steps that are damaged are passed over, with a warning in the log
    "holdfast". ConflictError if the target exists. CorruptError if bytes are not those that were
    saved.
    """
    return _run("convert", (source, target), format=format)


def export(
    source: _Path,
    target: _Path,
    *,
    format: str = "",
    config: _Path | None = None,
    dtype: Any = None,
    ema: bool = False,
    optimizer: bool = False,
    select: str = "",
    strip: str = "",
    adapter: str = "",
    shard_size: str | int = "5GB",
    ties: str = "",
) -> VerbReport:
    """Writes the weights of a checkpoint as other tools read them. report["notes"] says what was chosen.

    Names are those of the model's own state_dict(), without the words that DDP and torch.compile
    add. The source is as in convert(). From one that no Checkpointer has made, all tensors are
    taken as they are called.

        >>> holdfast.export("runs/gpt", "model.pt")
        >>> model.load_state_dict(torch.load("model.pt"))
        >>> holdfast.export("runs/gpt@400", "gpt/", config="config.json", dtype=torch.bfloat16)
        >>> AutoModelForCausalLM.from_pretrained("gpt/")

    format      "safetensors", "torch", "hf" (a folder for from_pretrained) or "peft" (the folder
                of an adapter); by default the target's name says it, and a folder is "hf".
    config      for folders: the model's config.json (adapter_config.json for "peft"), or a
                folder with it, from which tokenizer files are copied, too.
    dtype       what floating-point tensors are converted to: a torch dtype, or "bf16".
    ema         the average that the Checkpointer was given as ema=, instead of the weights.
    optimizer   what optimizer.load_state_dict() takes instead of weights, in a .pt file.
    select, strip
                patterns with *, with commas between them, of the names to export, and what is
                removed from the beginning of these names.
    adapter     the name of the PEFT adapter; by default the one that was active in the training,
                or the only one.
    shard_size  the most bytes of a file in a folder for "hf".
    ties        "each" stores tied weights under each name, "once" under the first. By default
                they are one tensor in a .pt file, and stored under each name in a .safetensors
                file and once in a folder.
    """
    texts = {"format": format, "dtype": str(dtype or "").removeprefix("torch."), "select": select,
             "strip": strip, "adapter": adapter, "ties": ties}
    return _run("export", (source, target), config=config, ema=ema, optimizer=optimizer,
                shard_size=shard_size, **{name: text or None for name, text in texts.items()})


def verify(*paths: _Path, fast: bool = False, seals: bool = False) -> VerbReport:
    """Compares files, steps and runs with their digests. Damage makes `ok` false."""
    return _run("verify", paths, fast=fast, seals=seals)


def diff(a: _Path, b: _Path, *, all: bool = False) -> VerbReport:
    """Compares two checkpoints of any format, tensor by tensor. `ok` is true if they are equal."""
    return _run("diff", (a, b), all=all)


def repair(path: _Path, to: _Path | None = None, *, in_place: bool = False,
           tier: Iterable[_Path] = (), from_: _Path | None = None, search: int | None = None,
           dry_run: bool = False) -> VerbReport:
    """Mends a damaged file or step; a file as a new one, `to`, unless it is mended in place."""
    return _run("repair", (path, to), in_place=in_place, tier=tier, search=search, dry_run=dry_run,
                **{"from": from_})


def reshard(source: _Path, target: _Path | None = None, *, to: str, rules: _Path | None = None,
            format: str | None = None, vocabulary: int | None = None,
            plan_only: bool = False) -> VerbReport:
    """Cuts a checkpoint again for another parallel configuration, such as to="tp=2,pp=4"."""
    return _run("reshard", (source, target), to=to, rules=rules, format=format,
                vocabulary=vocabulary, plan_only=plan_only)


def seal(path: _Path) -> VerbReport:
    """Writes the seals of a file's or folder's tensors beside it, by which repair finds damage."""
    return _run("seal", (path,))


def index(*files: _Path, kind: str | None = None, context: int | None = None,
          dtype: str | None = None, to: _Path | None = None, check: bool = False) -> VerbReport:
    """Finds the samples in data files, and writes an index beside each; `check` reads them again."""
    return _run("index", files, kind=kind, context=context, dtype=dtype, to=to, check=check)


def gc(run: _Path, *, keep_last: int | None = None, keep_every: int | None = None,
       keep_best: int | None = None, metric: str | None = None, max: bool = False,
       memory: _Path | None = None, dry_run: bool = False) -> VerbReport:
    """Removes the steps of a run that no rule keeps."""
    return _run("gc", (run,), keep_last=keep_last, keep_every=keep_every, keep_best=keep_best,
                metric=metric, max=max, memory=memory, dry_run=dry_run)


class JobOptions(TypedDict, total=False):
    """What interval() and simulate() are told about a job; `holdfast interval --help` explains each."""

    length: _Time
    stall: _Time
    persist: _Time
    restart: _Time
    step: _Time
    mtbf: _Time
    workers: str | int
    curve: str | Iterable[str]
    allocate: int
    reallocate: _Time
    objective: str
    stop: _Time
    hard: str | float
    deadline: _Time
    rungs: str
    graceful: bool
    price: _Time
    second: str | float
    budget: int
    events: _Path | Iterable[_Path]
    positions: int


class IntervalOptions(JobOptions, total=False):
    slack: str | float
    tier: str | Iterable[str]
    log_budget: str | int
    log_limit: str | int
    log_steps: int
    log_bandwidth: str | int


class SimulateOptions(JobOptions, total=False):
    schedules: str
    failures: str
    runs: int
    seed: int
    stop_at: _Time


def interval(run: _Path | None = None, **options: Unpack[IntervalOptions]) -> VerbReport:
    """How often to save, such as for mtbf="8h", stall="200ms"."""
    return _run("interval", (run,), **options)


def simulate(run: _Path | None = None, **options: Unpack[SimulateOptions]) -> VerbReport:
    """What schedules of saves cost, by simulation."""
    return _run("simulate", (run,), **options)


def _run(verb: str, positionals: Iterable[_Path | None], **options: Any) -> VerbReport:
    paths = (fsdecode(one) for one in positionals if one is not None)
    return run_words(verb, *option_words(options), "--", *paths)


def run_words(verb: str, *words: str) -> VerbReport:
    """Runs a verb with these words and --json."""
    with _one_at_a_time:
        code, out, err = _native.run_verb([verb, "--json", *words])
    try:
        found = json.loads(out)
    except ValueError:
        raise RuntimeError(err.strip() or f"{verb}: exit code {code}, without a word") from None
    if "error" in found:
        _native._raise_error(found["error"]["code"], found["error"]["message"])
    if code not in (0, 1, _DAMAGE):  # verify names the paths that it has not found in a list
        first = found["errors"][0]
        _native._raise_error(first["code"], first["why"])
    for step in found.get("skipped", []):
        _log.warning("%s: %s is passed over: %s", verb, step["folder"], step["why"])
    return VerbReport(verb, code, found)


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Options as words of the command line."""
    return [word for name, value in options.items() for word in _words(name, value)]


def _words(name: str, value: Any) -> list[str]:
    """An option as words of the command line; none if it is not given."""
    option = "--" + name.replace("_", "-")
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    if isinstance(value, (list, tuple)):
        return [word for one in value for word in _words(name, one)]
    return [f"{option}={value}"]
