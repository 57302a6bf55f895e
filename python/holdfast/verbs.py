"""The verbs of the command line as functions: verify, diff, repair, reshard, seal, gc, interval, simulate.

    report = holdfast.verify("runs/gpt")
    assert report.ok, report["errors"]

The options of a function are those of the verb (`holdfast verify --help`), with "_" for "-". Each returns
a VerbReport, which has what the verb prints with --json.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike, fspath
from typing import Any

from holdfast import _native

_Path = str | PathLike[str]

_DAMAGE = 3  # an exit code


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


def gc(run: _Path, *, keep_last: int | None = None, keep_every: int | None = None,
       keep_best: int | None = None, metric: str | None = None, max: bool = False,
       memory: _Path | None = None, dry_run: bool = False) -> VerbReport:
    """Removes the steps of a run that no rule keeps."""
    return _run("gc", (run,), keep_last=keep_last, keep_every=keep_every, keep_best=keep_best,
                metric=metric, max=max, memory=memory, dry_run=dry_run)


def interval(run: _Path | None = None, **options: Any) -> VerbReport:
    """How often to save. The options are those of `holdfast interval`: mtbf="8h", stall="200ms"."""
    return _run("interval", (run,), **options)


def simulate(run: _Path | None = None, **options: Any) -> VerbReport:
    """What schedules of saves cost, by simulation. The options are those of `holdfast simulate`."""
    return _run("simulate", (run,), **options)


def _run(verb: str, positionals: Iterable[_Path | None], **options: Any) -> VerbReport:
    paths = (fspath(one) for one in positionals if one is not None)
    return run_words(verb, *option_words(options), "--", *paths)


def run_words(verb: str, *words: str) -> VerbReport:
    """Runs a verb with these words and --json."""
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
