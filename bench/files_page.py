"""The bars of bench/files_bench.py, and the section of bench/results/README.md that is made from its figures."""

from pathlib import Path
from typing import Any

from measuring.figures_file import machines_text
from measuring.machines import name_of
from measuring.pages import Section, table
from measuring.paired import Interval, interval
from measuring.results import Bars

MEASURED = Section.made_by(Path(__file__).resolve().parent / "results/README.md", "bench/files_bench.py --doc")
BATCH = 256
INDEXING, SHUFFLE = "indexing, of a sequential read", "full shuffle, of bare preads"
LOADER, MOUNT, LISTED = 2.0, 0.6, 1.0
WINDOWS = ("10^8 windows: open, ms", "10^8 windows: find a batch at any position, ms")
MOUNTS = (("a mount in the order of the files, of the files themselves", "mount"),
          ("a shuffled mount", "shuffled"), ("a mount that is read again", "again"))


def write_page(seen: dict[str, Any]) -> None:
    """Replaces what stands between the marks of the page."""
    MEASURED.write(section(seen))


def judge(seen: dict[str, Any], bars: Bars) -> None:
    """Prints the figures, and whether they meet their bars."""
    for name, one in seen.get("native", {}).items():
        if "bar" in one and name.endswith(" ms"):
            bars.at_most(name, one["median"], one["bar"])
        elif "bar" in one:
            bars.at_least(name, one["median"], one["bar"])
        else:
            bars.show(name, one["median"])
    for cache, rates in seen.get("loader", {}).items():
        for way, values in rates.items():
            bars.show(f"{cache}: loader, {way}", interval(values).median, "samples/s")
        bars.at_least(f"{cache}: loader, of torch's", loader_ratio(rates), LOADER)
    if "mount" in seen:
        bars.show("cached: raw sequential read", interval(seen["mount"]["raw"]).median / 1e9, "GB/s")
        bars.at_least("cached: mount, of a raw read", mount_ratio(seen["mount"], "mount"), MOUNT)
        for way in ("shuffled", "again"):
            bars.show(f"cached: mount, {way}, of a raw read", mount_ratio(seen["mount"], way).median)
        bars.at_most("10^8 windows: list the files of a worker", interval(seen["mount"]["listed"]), LISTED, "s")


def ratios(rates: dict[str, list[float]], way: str, base: str) -> Interval:
    return interval([one / other for one, other in zip(rates[way], rates[base], strict=True)])


def loader_ratio(rates: dict[str, list[float]]) -> Interval:
    return ratios(rates, "holdfast", "torch")


def mount_ratio(rates: dict[str, list[float]], way: str) -> Interval:
    return ratios(rates, way, "raw")


def section(seen: dict[str, Any]) -> str:
    """The text between the marks."""
    caches = ("cold", "cached")
    native = [[told, *(f"{seen['native'][f'{cache}: {name}']['median']:.2f}" for cache in caches)]
              for told, name in (("indexing, of a sequential read", INDEXING),
                                 ("full shuffle, of bare reads on as many threads", SHUFFLE))]  # fmt: skip
    of_loader = [str(loader_ratio(seen["loader"][cache])) for cache in caches]
    body = [*native, ["the loader without workers, of a `DataLoader` with 2 that seeks and reads lines", *of_loader],
            *([told, "", str(mount_ratio(seen["mount"], way))] for told, way in MOUNTS)]
    machines = sorted({name_of(machine) for machine in seen["machines"].values()})
    head = (f"\n{seen['bytes'] / 1e9:.1f} GB of lines of 1 KiB on {'; '.join(machines)}; {seen['rounds']} rounds "
            f"(`bench/files_bench.py`). {machines_text(seen['machines'])}")
    return (
        head.rstrip(" ") + "\n\n"
        + table(["times as fast as", "cold", "cached"], body) + "\n\n" + windows(seen)
    )  # fmt: skip


def windows(seen: dict[str, Any]) -> str:
    """What is said of files of 10^8 windows."""
    opened, found = (seen["native"][name]["median"] for name in WINDOWS)
    listed = interval([1e3 * one for one in seen["mount"]["listed"]])
    return (f"10^8 windows are opened in {opened:.3f} ms, and a batch at any position for any number of ranks is found "
            f"in {found:.3f} ms. A mount lists the files of a worker of them in {listed} ms.\n\n")
