"""What the command line of `holdfast launch` and the variables of Slurm say."""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_EXAMPLES = """examples:
  holdfast launch -n 4 train.py --batch 32
  srun --no-kill --ntasks-per-node=1 holdfast launch -n 8 train.py
  holdfast launch -n 8 --hosts 2 --host 0 --at 10.0.0.1:29400 train.py
"""

SPARE = "spare"
MOST_RANKS = 1024  # of one host: a wrong number shall not fill the machine with processes
GPU = "gpu"


@dataclass
class Options:
    """The options."""

    ranks: int
    program: Sequence[str]
    is_module: bool = False
    hang: float = 600.0  # seconds
    wait: float = 60.0  # seconds
    hosts: int = 1
    host: int | None = 0  # None: a spare
    at: tuple[str, int] | None = None  # where the launcher of host 0 listens
    logs: Path | None = None  # the folder with a file for what each rank prints
    most: int = 0  # how many workers there may be, with those that a change of configuration adds
    has_prefix: bool = True  # the number of its rank is before each line that one of several ranks prints

    @property
    def labels_lines(self) -> bool:
        """Whether the number of its rank is before each line."""
        return self.has_prefix and self.logs is None and self.most > 1

    @property
    def address(self) -> str:
        """The address by which all ranks reach host 0."""
        return self.at[0] if self.at else "127.0.0.1"

    @property
    def at_text(self) -> str:
        return f"{self.at[0]}:{self.at[1]}" if self.at else ""


def parse(arguments: list[str], variables: Mapping[str, str] = os.environ) -> Options:
    """The options, or an exit with a sentence about what is wrong."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.ranks is not None and not 1 <= given.ranks <= MOST_RANKS:
        parser.error(f"-n {given.ranks}; expected 1 to {MOST_RANKS}")
    if not given.module and not os.path.isfile(given.program):
        parser.error(f"{given.program}: no such file; expected a Python script")
    if given.ranks is None:
        given.ranks = _count_gpus()
        if given.ranks == 0:
            parser.error("-n gpu: torch sees no GPU; expected one, or a number of ranks")
    made = Options(given.ranks, [given.program, *given.arguments], given.module, given.hang,
                   given.wait)
    made.has_prefix = not given.no_prefix
    try:
        _place(made, given, variables)
        made.most = made.ranks * made.hosts if given.most is None else given.most
        if not made.ranks * made.hosts <= made.most <= MOST_RANKS * made.hosts:
            raise ValueError(f"--most {made.most}; expected {made.ranks * made.hosts}, the number of ranks, "
                             f"to {MOST_RANKS * made.hosts}")
        if given.logs is not None:
            made.logs = given.logs.absolute()
            made.logs.mkdir(parents=True, exist_ok=True)
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"--logs {given.logs}: {error.strerror}; expected a folder, or a name for one")
    return made


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Says what is wrong, in one sentence."""
        print(f"holdfast: launch: {message}", file=sys.stderr)
        sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="holdfast launch", epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        description="Starts the ranks of a training job on this machine, or with several launchers "
                    "on several. A rank that dies is replaced, and gets its state from the others, "
                    "which keep their processes.")
    parser.add_argument("-n", "--ranks", type=_number, default=1, metavar="N",
                        help="how many ranks to start on this machine, or gpu: one for each of its "
                             "GPUs (default: 1)")
    parser.add_argument("--most", type=int, metavar="N",
                        help="how many workers holdfast resize may give to the job, on all machines "
                             "(default: as many as there are ranks)")
    parser.add_argument("-m", "--module", action="store_true",
                        help="the program is a module, as with python -m")
    parser.add_argument("--hang", type=_seconds, default=600.0, metavar="TIME",
                        help="a collective call that waits for longer ends the ranks that are not "
                             "in it: seconds, or 10m, 2h; 0: never (default: 10m)")
    parser.add_argument("--hosts", type=int, metavar="H",
                        help="of how many machines the job is made (default: 1, or Slurm's nodes)")
    parser.add_argument("--host", metavar="I",
                        help="which of them this is: 0 to H - 1, or spare (default: Slurm's)")
    parser.add_argument("--at", metavar="ADDRESS:PORT",
                        help="where the launcher of host 0 listens (default: Slurm's first node)")
    parser.add_argument("--wait", type=_seconds, default=60.0, metavar="TIME",
                        help="how long to wait for a host (default: 60)")
    parser.add_argument("--logs", type=Path, metavar="FOLDER",
                        help="what each rank prints goes to a file rank-N.log in this folder, behind "
                             "what is there already, and not to the terminal")
    parser.add_argument("--no-prefix", action="store_true",
                        help="the lines of several ranks have no [RANK] before them, and ranks print to "
                             "the terminal themselves")
    parser.add_argument("program", help="the training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(s|m|min|h)?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text}; expected seconds, 0 or more, or a time such as 10m")
    return float(found[1]) * {"h": 3600, "m": 60, "min": 60}.get(found[2], 1)


def _number(text: str) -> int | None:
    """How many ranks; None: one for each GPU."""
    if text == GPU:
        return None
    if not re.fullmatch(r"-?\d{1,6}", text):
        raise argparse.ArgumentTypeError(f"{text}; expected a number of ranks, or gpu")
    return int(text)


def _count_gpus() -> int:
    """How many GPUs torch sees on this machine; 0 if it cannot tell."""
    asked = subprocess.run([sys.executable, "-m", "holdfast.torch.devices"], check=False,
                           stdout=subprocess.PIPE, text=True)
    found = asked.stdout.split()
    return int(found[-1]) if asked.returncode == 0 and found and found[-1].isdigit() else 0


def _place(made: Options, given: argparse.Namespace, variables: Mapping[str, str]) -> None:
    """Finds the place of this host. ValueError if something is missing or wrong."""
    nodes = _whole(variables.get("SLURM_STEP_NUM_NODES", "1"), "SLURM_STEP_NUM_NODES")
    made.hosts = given.hosts if given.hosts is not None else nodes
    if made.hosts < 1:
        raise ValueError(f"--hosts {made.hosts}; expected 1 or more")
    if made.hosts == 1:
        if given.host not in (None, "0") or given.at is not None:
            raise ValueError("--host and --at; expected them together with --hosts")
        _check_alone(nodes, given, variables)
        return
    under_slurm = nodes > 1
    if under_slurm and variables.get("SLURM_LOCALID", "0") != "0":
        raise ValueError("srun has started several launchers on this node; expected "
                         "--ntasks-per-node=1, and the number of ranks as -n")
    host = given.host or (variables.get("SLURM_NODEID") if under_slurm else None)
    if host is None:
        raise ValueError("--hosts without --host; expected the number of this machine")
    made.host = None if host == SPARE else _whole(host, "--host")
    if made.host is not None and made.host >= made.hosts:
        if given.host is not None:
            raise ValueError(f"--host {host}; expected 0 to {made.hosts - 1}, or spare")
        made.host = None  # Slurm has given the job more nodes than it needs
    at = given.at or (_slurm_at(variables) if under_slurm else None)
    if at is None:
        raise ValueError("--hosts without --at; expected the ADDRESS:PORT of host 0")
    made.at = _address(at)


def _check_alone(nodes: int, given: argparse.Namespace, variables: Mapping[str, str]) -> None:
    """ValueError if srun has started a job of one host several times, unless --host 0 allows it."""
    node = variables.get("SLURM_NODEID", "0")
    if nodes > 1 and node != "0" and given.host is None:
        raise ValueError(f"--hosts 1, and this is node {node} of a job step of {nodes} nodes; expected "
                         f"--hosts {nodes}, or srun --nodes=1, or --host 0 if each node trains by "
                         "itself, in a run of its own")


def _whole(text: str, what: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text):
        raise ValueError(f"{what} {text}; expected a whole number")
    return int(text)


def _address(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[(?P<six>[^\]]+)\]|(?P<name>[^:]+)):(?P<port>\d{1,5})", text)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise ValueError(f"--at {text}; expected ADDRESS:PORT, such as 10.0.0.1:29400")
    return found["six"] or found["name"], int(found["port"])


def _slurm_at(variables: Mapping[str, str]) -> str | None:
    """The first node of the job step, and a port that other jobs of that node hardly have."""
    nodes = variables.get("SLURM_STEP_NODELIST", "")
    found = re.match(r"([^,\[]+)(?:\[([0-9]+)[^\]]*\]([^,]*))?", nodes)
    if found is None:
        return None
    port = 20000 + int(variables.get("SLURM_JOB_ID", "0")) % 10000
    return f"{found[1]}{found[2] or ''}{found[3] or ''}:{port}"
