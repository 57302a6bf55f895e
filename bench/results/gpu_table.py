"""Makes what documents say of the files in this folder: the table of the GPU and that of the machines in README.md,
and the row of added times in docs/comparison.md.

    python bench/results/gpu_table.py     with Holdfast in the path: intervals are those of holdfast.statistics

Intervals are computed from the rounds that a file has. An older file that kept only the bootstrap's interval, which
covered less than 95 %, gives a figure without one. What a C++ program has measured has quartiles.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(FOLDER.parent))
from measuring.machines import name_of  # noqa: E402: it is beside this folder
from measuring.pages import Section, table  # noqa: E402
from measuring.paired import Interval, difference, quantile  # noqa: E402

COMMAND = "bench/results/gpu_table.py"
README, COMPARISON = FOLDER / "README.md", ROOT / "docs/comparison.md"
GPU, MACHINES = Section.made_by(README, COMMAND), Section.made_by(README, f"{COMMAND}, machines")
COPY, RING = "Holdfast, copy inside the GPU", "Holdfast, pinned ring"
RIVALS = "gpu_bench_rivals_h200.json"
ROW = "| added time, H200"

Row = tuple[str, str, str, str]  # what, figure, bar, file


def read(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


def told(found: Interval | Sequence[float], unit: str = "", digits: str = ".2f") -> str:
    """A figure with its interval. One with three numbers has the bootstrap's, which is left out."""
    if len(found) == 3:
        return f"{found[0]:{digits}}{unit}, rounds not kept"
    middle, low, high, covers = found
    if covers == 0:
        return f"{middle:{digits}}{unit}, once"
    share = "" if covers >= 0.95 else f", {100 * covers:.0f} %"
    return f"{middle:{digits}}{unit} ({low:{digits}} to {high:{digits}}{share})"


def quartiles(one: dict[str, float], unit: str = "", digits: str = ".3f") -> str:
    return f"{one['median']:{digits}}{unit} (quartiles {one['lower']:{digits}} to {one['upper']:{digits}})"


def added(loop: dict[str, Any], way: str) -> str:
    """What a way adds to a block of steps."""
    rounds = loop["rounds_ms"]
    return told(difference(rounds[way], rounds["bare"]), " ms", ".1f")


def saves() -> Iterator[Row]:
    name = "gpu_bench_copy_h200.json"
    one = read(name)
    loop, size = one[COPY], f"{one['bytes'] / 1e9:.2f} GB"
    yield f"a save of {size}, copied inside the GPU, adds to 30 steps of 100 ms", added(loop, "save"), "4 ms", name
    yield "the first save adds", told(loop["first_added_ms"], " ms", ".1f"), "5 ms", name
    yield "calls of `step()` with nothing to save add", added(loop, "idle"), "", name
    yield "a simple loop of copies and writes adds", added(loop, "plain"), "", name
    yield "such a save is durable in this part of the time of a raw write", told(loop["durable_of_raw"]), "1.1", name
    yield "the simple loop is durable in", told(loop["plain_durable_of_raw"]), "", name
    name = "gpu_bench_ring_h200.json"
    ring = read(name)
    yield "a save through the pinned ring adds", added(ring[RING], "save"), "15 ms", name
    yield "it is durable in this part of the time of a raw write", told(ring[RING]["durable_of_raw"]), "1.1", name
    yield "a cold load takes this part of the time of a raw read", told(ring["load"]["over_raw"]), "1.11", name


def stalls() -> Iterator[Row]:
    for size, most in (("0.21", "1 ms"), ("4.30", "5 ms")):
        name = "gpu_bench_bare_h200.json"
        seen = read(name)[f"bare {size} GB, copy inside the GPU"]["stalls_ms"]
        yield (f"p99 of the stall without a training loop: 300 tensors, {size} GB", told(quantile(seen, 0.99), " ms"),
               most, name)  # fmt: skip
    for size, name in (("0.21", "gpu_bench_bare_h200.json"), ("4.30", "gpu_bench_ring_h200.json")):
        yield (f"the stall through the ring, beside a plain copy into pinned memory: {size} GB",
               told(read(name)[f"bare {size} GB, pinned ring"]["of_copy"]), "1.1", name)  # fmt: skip


def movements() -> Iterator[Row]:
    name = "seal_gpu_h200.json"
    yield "seals of 4.3 GB, beside a copy of these bytes inside the GPU", quartiles(read(name)["seals / copy"]), "1.5", name
    name = "exchange_gpu_h200.json"
    seen = read(name)
    yield ("the speed of a change of layout of 4.0 GB inside the GPU, beside a copy",
           quartiles(seen["speed of the exchange / of the copy"]), "0.5", name)  # fmt: skip
    bare = seen["bare copy from the GPU into pinned memory"]["median"]
    yield (f"a change of layout between two processes; bare copies into and from pinned memory reach {bare:.0f} GB/s",
           quartiles(seen["exchange of 1.0 GB between two processes"], " GB/s", ".1f"), "", name)  # fmt: skip


def resizes() -> Iterator[Row]:
    name = "resize_gpu_h200.json"
    changes = [one for each in read(name).values() if isinstance(each, list) for one in each]
    yield (f"{len(changes)} live changes between one and two ranks of {changes[0]['state'] / 1e9:.1f} GB that share the GPU "
           "stand still for", " and ".join(f"{one['stood_still']:.2f} s" for one in changes), "", name)  # fmt: skip
    yield ("the bytes that they move, beside the lower bound",
           f"{max(one['moved'] / one['bound'] for one in changes):.3f} at most", "1", name)  # fmt: skip


def faults() -> Iterator[Row]:
    name = "live_flip_h200.json"
    flip = read(name)
    yield ("flips of live bits that `holdfast.Watch` named and mended",
           f"{flip['mended']['named_and_mended']} of {flip['mended']['flips']}", "", name)  # fmt: skip
    yield (f"the share of the time that the watch takes, in steps of {1e3 * flip['cost']['watched_step_s']:.1f} ms; a cycle "
           f"over {flip['cost']['bytes'] / 1e6:.0f} MB takes {flip['cost']['cycle_steps']:,} steps",
           f"{100 * flip['cost']['own_share']:.2f} %", "0.5 %", name)  # fmt: skip
    name = "campaign_gpu_h200.json"
    outcomes = {word: one["count"] for word, one in read(name)["campaign"]["outcomes"].items()}
    yield (f"a ResNet-50 after one flip each, {read(name)['trials']} trials",
           ", ".join(f"{word} {count}" for word, count in outcomes.items() if count), "", name)  # fmt: skip
    name = "campaign_gpu_bit30_h200.json"
    bit = read(name)
    yield (f"the same with bit {bit['bits']} alone, {bit['trials']} trials: accuracy 5 points lower",
           str(bit["harm"]["accuracy:5"]["count"]), "", name)  # fmt: skip


def recoveries() -> Iterator[Row]:
    name = "gpu_recovery_h200.json"
    yield "the recovery of one of two ranks that share the GPU", f"{read(name)['recovery_s']:.1f} s", "", name
    name = "gpu_logs_h200.json"
    logs = read(name)
    killed = logs["stages"]["killed"]
    yield ("two pipeline stages that share it, each killed once: equal bits, rung `messages`",
           f"{sum(one['same_bits'] and one['recovered']['rung'] == 'messages' for one in killed)} of {len(killed)}",
           f"{len(killed)} of {len(killed)}", name)  # fmt: skip
    steps = max(one["recovered"]["steps_replayed"] for one in killed)
    yield (f"such a stage goes on, with {steps} steps made again, after",
           " and ".join(f"{one['seconds']:.1f} s" for one in killed), "", name)  # fmt: skip
    cost = logs["added"]
    yield (f"the log of messages ({cost['bytes'] / 1e6:.1f} MB a step and rank) adds to steps of {cost['step_ms'][0]:.0f} ms",
           f"{told(cost['added_ms'], ' ms', '.1f')}, {told(cost['added_percent'], ' %', '.1f')}", "2 % of 100 ms", name)  # fmt: skip


PARTS: list[Callable[[], Iterator[Row]]] = [saves, stalls, movements, resizes, faults, recoveries]


def gpu_text() -> str:
    rows = [[what, figure, bar, f"`{file}`"] for part in PARTS for what, figure, bar, file in part()]
    return "\n" + table(["what", "figure", "bar", "file"], rows) + "\n\n"


def machine_words(figures: dict[str, Any]) -> str:
    """The machines that a file names."""
    parts = figures.get("machines") or {"": figures.get("run") or figures.get("machine")}
    names = {}
    for part, machine in parts.items():
        if isinstance(machine, dict) and "cores" in machine:
            date = f", {machine['date']}" if "date" in machine else ""
            gpu = f", {machine['gpu']}" if machine.get("gpu") else ""
            names.setdefault(f"{name_of(machine)}{gpu}{date}", []).append(part)
    if not names:
        return figures["device"] if "device" in figures else "not kept"
    return "; ".join(name + (f" ({', '.join(own)})" if len(names) > 1 else "") for name, own in names.items())


def machines_text() -> str:
    rows = [[f"`{path.name}`", machine_words(json.loads(path.read_text()))] for path in sorted(FOLDER.glob("*.json"))]
    return "\n" + table(["file", "machine, GPU and driver, date"], rows) + "\n\n"


def comparison_row() -> str:
    seen = read(RIVALS)
    dcp, other = (f"{told(seen[name]['save_added_ms'], ' ms', ',.1f' if name == COPY else ',.0f')}"
                  for name in ("DCP async_save", "torch_checkpointing"))  # fmt: skip
    return (f"{ROW}, {seen['bytes'] / 1e9:.2f} GB ([file](../bench/results/{RIVALS})) | "
            f"{told(seen[COPY]['save_added_ms'], ' ms', '.1f')} | {dcp} by plain `async_save` | not measured | "
            f"not measured (JAX) | {other} |")  # fmt: skip


def pages() -> dict[Path, str]:
    """Each page as it must be."""
    lines = COMPARISON.read_text().split("\n")
    (at,) = (at for at, line in enumerate(lines) if line.startswith(ROW))
    lines[at] = comparison_row()
    page = README.read_text()
    for section, text in ((GPU, gpu_text()), (MACHINES, machines_text())):
        before, _, rest = page.partition(section.begin)
        page = before + section.begin + text + section.end + rest.partition(section.end)[2]
    return {README: page, COMPARISON: "\n".join(lines)}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
