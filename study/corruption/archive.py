"""Carries the campaigns of the study from one machine to another.

    python study/corruption/archive.py pack WORK OUT
    python study/corruption/archive.py unpack OUT WORK

pack writes a file for each group of campaigns, such as OUT/role.tar.xz, with what results.py needs:
the records of the trials, the golden run, and the note of the machine. A campaign that has trials
left keeps the state of its golden run, too, without which it cannot be continued. If a campaign that is complete
has more than 32 flips in a trial, then only the first of those that flip the same bits of a word are kept: all of
them would be nine tenths of the archives, and the seed makes them again. unpack puts them
beside the campaigns that are in WORK. It touches nothing if one of them is there already with other
contents.
"""

import io
import json
import sys
import tarfile
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
from cells import Cell, all_campaigns
from measuring.options import parser
from results import machine_note

KEPT = ("campaign.json", "trials.jsonl")
STATE = "golden-state"
MOST_FLIPS = 32
SMALL = 3  # of xz: records shrink to 7 % within seconds


def files_of(name: str) -> list[str]:
    """The files of a campaign, relative to the folder of all campaigns."""
    return [*(f"{name}/{file}" for file in KEPT), str(machine_note(Path(name)))]


def files_to_pack(cell: Cell, work: Path) -> list[str]:
    files, state = files_of(cell.name), f"{cell.name}/{STATE}"
    if (work / state).exists() and count_trials(work / cell.name) < cell.trials:
        files.append(state)
    return files


def count_trials(folder: Path) -> int:
    return (folder / KEPT[1]).read_bytes().count(b"\n")


def group_of(name: str) -> str:
    return name.partition("-")[0]


def pack(work: Path, out: Path) -> list[str]:
    """Returns what was packed, in words."""
    groups: dict[str, list[Cell]] = {}
    for cell in all_campaigns():
        if (work / cell.name / KEPT[1]).exists():
            groups.setdefault(group_of(cell.name), []).append(cell)
    out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as pool:
        return list(pool.map(pack_group, repeat(work), repeat(out), groups, groups.values()))


def pack_group(work: Path, out: Path, group: str, cells: list[Cell]) -> str:
    path = out / f"{group}.tar.xz"
    with tarfile.open(path, "w:xz", preset=SMALL) as archive:
        for cell in cells:
            is_complete = count_trials(work / cell.name) == cell.trials
            for file in files_to_pack(cell, work):
                content = (work / file).read_bytes()
                if is_complete and file.endswith(KEPT[1]):
                    content = without_many_flips(content)
                member = tarfile.TarInfo(file)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return f"{path}: {len(cells)} campaigns, {path.stat().st_size:,} bytes"


def without_many_flips(records: bytes) -> bytes:
    """The records of a campaign, with the flips that results.py asks for. All trials of a campaign have the same
    number of flips."""
    if len(json.loads(records.partition(b"\n")[0])["flips"]) <= MOST_FLIPS:
        return records
    trials = map(json.loads, records.splitlines())
    shorter = ({**one, "flips": first_of_each_bit(one["flips"])} for one in trials)
    return b"".join(json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in shorter)


def first_of_each_bit(flips: list[dict]) -> list[dict]:
    return list({(one["dtype"], *one["bits"]): one for one in reversed(flips)}.values())


def unpack(out: Path, work: Path) -> list[str]:
    """Returns what was unpacked, in words. ValueError if nothing could be."""
    paths = sorted(out.glob("*.tar.xz"))
    if not paths:
        raise ValueError(f"{out}: has no .tar.xz; expected what pack has written")
    for path in paths:
        check(path, work)
    return [unpack_group(path, work) for path in paths]


def check(path: Path, work: Path) -> None:
    """ValueError if an archive has something else than campaigns, or would change one."""
    known = {file for cell in all_campaigns()
             for file in [*files_of(cell.name), f"{cell.name}/{STATE}"]}  # fmt: skip
    with tarfile.open(path) as archive:
        for member in archive:
            source = archive.extractfile(member)
            if member.name not in known or source is None:
                raise ValueError(f"{path}: has {member.name}; expected files of campaigns only")
            place = work / member.name
            if place.exists() and place.read_bytes() != source.read():
                raise ValueError(f"{place}: is there and differs from that of {path}; expected no "
                                 "such campaign, or an equal one")  # fmt: skip


def unpack_group(path: Path, work: Path) -> str:
    with tarfile.open(path) as archive:
        archive.extractall(work, filter="data")
        count = sum(name.endswith(KEPT[1]) for name in archive.getnames())
    return f"{path}: {count} campaigns"


def main() -> int:
    made = parser(__doc__)
    made.add_argument("action", choices=("pack", "unpack"))
    made.add_argument("source", type=Path)
    made.add_argument("target", type=Path)
    args = made.parse_args()
    try:
        done = {"pack": pack, "unpack": unpack}[args.action](args.source, args.target)
    except (ValueError, OSError, tarfile.TarError) as error:
        print(f"{args.action}: {error}", file=sys.stderr)
        return 1
    print(*done, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
