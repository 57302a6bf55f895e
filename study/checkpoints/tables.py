"""The tables of the page and of the report, computed from the results. A cell without data is "–"."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from cells import Cell, all_cells
from measuring.paired import interval
from results import Result, added, in_milliseconds, is_safe, ratios, tell_verdicts
from states import LOST, REFUSES

Cells = dict[str, Result]
NOTHING = "–"
KINDS = {"kill": "killed at each call", "torn": "a write torn", "power": "power cut", "full": "disk full",
         "rank": "one of two ranks lost"}  # fmt: skip
# The way of bits_FRAMEWORK.py that says whether an engine resumes exactly.
WAY_OF = {"torch.save": "torch.save", "holdfast": "holdfast", "keras.save-keras": "keras.ModelCheckpoint",
          "keras.BackupAndRestore": "keras.BackupAndRestore", "tf.train.CheckpointManager": "tf.train.Checkpoint",
          "chainer.snapshot": "chainer.snapshot"}  # fmt: skip


class Table(NamedTuple):
    head: list[str]
    rows: list[list[str]]


def measured(cells: Cells, experiment: str) -> list[tuple[Cell, Result]]:
    """Its cells that have figures."""
    return [(cell, result) for cell in all_cells() if cell.experiment == experiment
            and (result := cells.get(cell.name, {"not_run": ""})) and not {"not_run", "failed"} & set(result)]  # fmt: skip


def make_table(cells: Cells, experiment: str, head: Sequence[str], row: Callable[[Result], list[str]]) -> Table:
    """One row for each cell; one that did not run says why. If nobody has run any, that is one row."""
    if not any(name.startswith(f"{experiment}-") for name in cells):
        return Table(["engine", *head], [["all", "not run: nobody has run it", *[""] * (len(head) - 1)]])
    rows = []
    for cell in all_cells():
        if cell.experiment != experiment or (cell.name not in cells and cell.variant):
            continue
        result = cells.get(cell.name, {"not_run": "nobody has run it"})
        words = [word for word in ("not_run", "failed") if word in result]
        rows.append([f"`{cell.engine}`" + (f" {cell.variant}" if cell.variant else ""),
                     *([f"{words[0].replace('_', ' ')}: {result[words[0]]}"] + [""] * (len(head) - 1) if words
                       else row(result))])  # fmt: skip
    return Table(["engine", *head], rows)


def crash_table(cells: Cells) -> Table:
    return make_table(cells, "crash", list(KINDS.values()), lambda result: [
        tell_verdicts(result[kind]) if kind in result else NOTHING for kind in KINDS])  # fmt: skip


def seconds(values: Sequence[float]) -> str:
    return str(interval(values))


def formats_table(cells: Cells) -> Table:
    def row(result: Result) -> list[str]:
        times = result["seconds"]
        one = result.get("one_tensor")
        return [f"{result['bytes'] - result['exact']:+,}", f"{result['files']}", seconds(times["call"]),
                seconds(times["synced"]), seconds(times["load"]),
                f"{1e3 * one['seconds']:.1f} ms" if one else NOTHING,
                " / ".join(f"{result['memory'][way] / result['exact']:.1f}" for way in ("save", "load")),
                "yes" if result["equal"] else "NO"]  # fmt: skip

    return make_table(cells, "formats", ["bytes beyond the tensors", "files", "save, s", "save and sync, s", "cold load, s",
                                         "one tensor", "memory of save / load, in states", "bits equal"], row)  # fmt: skip


def without_table(cells: Cells) -> Table:
    """What a save takes, and what it takes if a part of its work is left out."""
    rows = []
    for cell, result in measured(cells, "formats"):
        for part, found in result["without"].items():
            whole, less = (interval([pair[place] for pair in found["pairs"]]) for place in (0, 1))
            rows.append([f"`{cell.engine}` {cell.variant}", part, str(whole), str(less), str(ratios(found["pairs"])),
                         f"{100 * (found['bytes'] / result['bytes'] - 1):+.1f} %"])  # fmt: skip
    return Table(["engine", "left out", "save with it, s", "without, s", "times as long", "bytes without"], rows)


def cost_table(cells: Cells) -> Table:
    intervals = sorted({int(one) for _, result in measured(cells, "cost") for one in result["blocks"]})

    def row(result: Result) -> list[str]:
        blocks = result["blocks"]
        return [f"{1e3 * result['first']:.0f} ms",
                *(milliseconds(blocks[str(one)]) if str(one) in blocks else NOTHING for one in intervals)]  # fmt: skip

    return make_table(cells, "cost", ["two steps with the first save",
                                      *(f"a save adds, every {one} steps" for one in intervals)], row)  # fmt: skip


def milliseconds(block: Result) -> str:
    return in_milliseconds(added(block))


def restart_table(cells: Cells) -> Table:
    parts = ("import", "load", "step")
    return make_table(cells, "restart", ["import, s", "cold load, s", "first step, s"], lambda result: [
        seconds(result["seconds"][part]) if part in result["seconds"] else NOTHING for part in parts])  # fmt: skip


def bits_table(cells: Cells) -> Table:
    return make_table(cells, "bits", ["stopped at an epoch's end", "in the middle of an epoch"],
                      lambda result: list(result["bits"].values()))  # fmt: skip


def flips_table(cells: Cells) -> Table:
    return make_table(cells, "flips", ["a bit of a tensor", "a bit anywhere"], lambda result: [
        tell_verdicts(result[place]) if place in result else NOTHING for place in ("tensors", "anywhere")])  # fmt: skip


def scale_table(cells: Cells, cores: int) -> Table:
    """Times only of ranks that have a core each: others wait for each other, too."""
    counts = sorted({int(one) for _, result in measured(cells, "scale") for one in result["ranks"]})

    def one(found: Result, count: int) -> str:
        synced = f", {found['syncs']} syncs" if "syncs" in found else ""
        took = f"{seconds(found['seconds'])} s, " if count <= cores else ""
        return f"{took}{found['bytes'] / 1e6:.0f} MB, {found['files']} files{synced}"

    def row(result: Result) -> list[str]:
        ranks = result["ranks"]
        return [one(ranks[str(count)], count) if str(count) in ranks else NOTHING for count in counts]

    return make_table(cells, "scale", [
        f"{count} rank{'s' if count > 1 else ''}{'' if count <= cores else ', beyond the cores'}" for count in counts], row)


def matrix(cells: Cells) -> Table:
    """The mechanisms of each engine. Every word follows from what was measured."""
    engines = list(dict.fromkeys(cell.engine for cell in all_cells() if cell.experiment == "crash"))
    return Table(["engine", "training waits", "atomic", "survives a power cut", "syncs", "checks what it reads",
                  "resumes by itself", "exact at an epoch's end", "exact within an epoch"],
                 [[f"`{engine}`", *_mechanisms(cells, engine)] for engine in engines
                  if "kill" in cells.get(f"crash-{engine}", {})])  # fmt: skip


def _mechanisms(cells: Cells, engine: str) -> list[str]:
    crash = cells[f"crash-{engine}"]
    bits = cells.get(f"bits-{WAY_OF.get(engine, '')}", {}).get("bits", {})
    kills = set(crash["kill"])
    return [_waits(cells, engine), _word(is_safe(crash, "kill", "torn", "rank")), _word(is_safe(crash, "power")),
            _word(any("sync" in name for name in crash.get("names", ()))), _checks(cells.get(f"flips-{engine}", {})),
            _word(not kills & {LOST, REFUSES}),
            *(_word(bits[cut] == "equal") if cut in bits else NOTHING for cut in ("end", "middle"))]  # fmt: skip


def _word(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _waits(cells: Cells, engine: str) -> str:
    """The share of a whole save that training waits for."""
    cost, formats = cells.get(f"cost-{engine}", {}), cells.get(f"formats-{engine}-resnet50+momentum", {})
    if "blocks" not in cost or "seconds" not in formats:
        return NOTHING
    return f"{1e3 * added(cost['blocks']['10']).median:.0f} ms of {1e3 * median(formats['seconds']['synced']):.0f}"


def _checks(flips: Result) -> str:
    found = flips.get("tensors") or flips.get("anywhere")  # compressed files have no bytes of a tensor
    if not found:
        return NOTHING
    wrong, total = found.get("wrong", 0), sum(found.values())
    return "yes" if not wrong else "no" if wrong == total else f"{total - wrong} of {total}"
