"""The program behind `holdfast rehearse`."""

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from holdfast.rehearse import process_tree
from holdfast.rehearse.life import Failed
from holdfast.rehearse.rehearsal import Outcome, Rehearsal
from holdfast.rehearse.report import to_json, to_text

_EXAMPLES = """examples:
  holdfast rehearse -- python train.py --epochs 3
  holdfast rehearse --steps 50 --at 8,31 -- torchrun --nproc-per-node=2 train.py
  holdfast rehearse --json -- holdfast launch -n 2 train.py

exit codes: 0 it resumes exactly, 1 it does not (or it failed), 2 wrong call, 4 it makes no Checkpointer
or too few steps
"""
EXACT, DIFFERS, WRONG_CALL = 0, 1, 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Says what is wrong, in one sentence."""
        print(f"holdfast: rehearse: {message}", file=sys.stderr)
        sys.exit(WRONG_CALL)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="holdfast rehearse", epilog=_EXAMPLES, allow_abbrev=False,
        usage="holdfast rehearse [options] -- COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Runs a training twice undisturbed, then kills it and starts it again, and says "
                    "whether it resumes bit for bit, and what differs first. Its Checkpointers save "
                    "into a folder of the rehearsal: their own runs and tiers are not touched. All "
                    "other files that the command writes are written.")
    parser.add_argument("--steps", type=int, default=20, metavar="N",
                        help="how many steps to make (default: 20)")
    parser.add_argument("--at", type=_numbers, default=[], metavar="STEPS",
                        help="the steps to be killed in, such as 8,13 (default: two of them, and "
                             "the end of an epoch if there is one)")
    parser.add_argument("--folder", type=Path, metavar="FOLDER",
                        help="a new folder for checkpoints, records and what the command prints; it "
                             "is kept (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _numbers(text: str) -> list[int]:
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}; expected steps such as 8,13") from None


def main() -> int:
    """Rehearses the command. Returns the exit code."""
    parser = _parser()
    given = parser.parse_args()
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        parser.error("no command; expected -- and then the command that trains")
    if given.steps < 3:
        parser.error(f"--steps {given.steps}; expected 3 or more")
    if shutil.which(command[0]) is None:
        parser.error(f"{command[0]}: no such program; expected a command such as python train.py")
    if given.folder is not None:
        try:
            given.folder.mkdir(parents=True)
        except FileExistsError:
            parser.error(f"--folder {given.folder}: is there already; expected a new folder")
        except OSError as error:
            parser.error(f"--folder {given.folder}: {error.strerror}; expected a new folder")
    return _rehearse(command, given)


def _rehearse(command: list[str], given: argparse.Namespace) -> int:
    process_tree.adopt_orphans()
    _end_on_signals()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="holdfast-rehearsal-"))
    keep = given.folder is not None
    shows = sys.stderr.isatty() and not given.quiet
    try:
        outcome = Rehearsal(command, folder.absolute(), given.steps, given.at,
                            _show if shows else lambda text: None).run()
    except Failed as error:
        keep = keep or "all that it printed" in str(error)
        _clear(shows)
        print(f"holdfast: rehearse: {error}", file=sys.stderr)
        return error.code
    except SystemExit:
        _clear(shows)
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    _clear(shows)
    return _print(outcome, command, given.json)


def _end_on_signals() -> None:
    """Lets Ctrl-C and SIGTERM end the command with all its processes, and remove the folder, first."""
    numbers = [one for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
               if signal.getsignal(one) is not signal.SIG_IGN]

    def end(number: int, _: object) -> NoReturn:
        for one in numbers:
            signal.signal(one, signal.SIG_IGN)  # a second one would leave processes running
        sys.exit(128 + number)

    for one in numbers:
        signal.signal(one, end)


def _print(outcome: Outcome, command: list[str], as_json: bool) -> int:
    print(to_json(outcome, command) if as_json else to_text(outcome))
    return EXACT if outcome.is_exact else DIFFERS


def _show(text: str) -> None:
    print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _clear(shows: bool) -> None:
    if shows:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
