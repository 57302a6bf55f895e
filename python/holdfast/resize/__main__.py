"""The program behind `holdfast resize`."""

import argparse
import json
import re
import sys
import time
from typing import Any, NoReturn

from holdfast.checkpoint import run_path
from holdfast.errors import NotFoundError
from holdfast.resize.control import Control
from holdfast.resize.parallel import Parallel

DONE, FAILED, WRONG_CALL, NOTHING_FOUND, STOPPED = 0, 1, 2, 4, 130

_LOOK = 0.1  # seconds
_ENDS = ("made", "planned", "refused")  # the states of an answer behind which no other comes
_TO_TAKE_BACK = 5.0  # seconds for a job to say that it has not begun
_TO_ANSWER = 20.0  # seconds for a job to say that it has a request

_EXAMPLES = """examples:
  holdfast resize runs/gpt                             the configuration, spares, and the changes so far
  holdfast resize runs/gpt --to tp=1,pp=2,dp=2
  holdfast resize runs/gpt --to dp=3 --avoid 0         on other workers than the first
  holdfast resize runs/gpt --avoid host1               on other hosts than the second
  holdfast resize runs/gpt --to pp=2 --plan-only       what would move; the job goes on as it is
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Says what is wrong, in one sentence."""
        print(f"holdfast: resize: {message}", file=sys.stderr)
        sys.exit(WRONG_CALL)


def main() -> int:
    """Asks the job, waits for its answer, and returns the exit code."""
    parser = _parser()
    given = parser.parse_args()
    if given.timeout <= 0:
        parser.error(f"--timeout {given.timeout:g}; expected more than 0")
    try:
        Parallel.parse(given.to or "dp=1")
    except ValueError as error:
        parser.error(f"--to: {error}")
    control = Control(run_path(given.run))
    try:
        if given.to is None and not given.avoid and not given.plan_only:
            return _show(control, given)
        answer = _ask(control, given)
    except NotFoundError as error:
        return _fail(str(error), given.json, NOTHING_FOUND)
    except KeyboardInterrupt:
        return STOPPED
    if answer["state"] not in ("made", "planned"):
        return _fail(answer.get("why") or "the job has not answered", given.json, FAILED, answer)
    print(json.dumps(answer) if given.json else text_of(answer))
    return DONE


def text_of(answer: dict[str, Any]) -> str:
    """What a change was, for people."""
    on = f"{answer['old']} -> {answer['to']} on workers {' '.join(map(str, answer['workers']))}"
    moved = f"{answer['moved'] / 1e6:.1f} MB"
    if answer["state"] == "planned":
        return (f"{on}: would move {moved} of {answer['needed'] / 1e6:.1f} MB; the job goes on as it was, and "
                f"stood still {answer['stood_still']:.2f} s")
    bound = ", the bound" if answer["moved"] == answer["bound"] else f", bound {answer['bound'] / 1e6:.1f} MB"
    phases = " ".join(f"{name} {took:.2f}" for name, took in answer["seconds"].items())
    return (f"{on}, after step {answer['step']}\nstood still {answer['stood_still']:.2f} s ({phases}), "
            f"{moved} moved{bound}; {answer['seals']} seals equal")


def _ask(control: Control, given: argparse.Namespace) -> dict[str, Any]:
    avoided = {"avoid": [one for is_host, one in given.avoid if not is_host],
               "avoid_hosts": [one for is_host, one in given.avoid if is_host]}
    id = control.request(to=given.to or "", plan_only=given.plan_only, **avoided)
    began, said = time.monotonic(), ""
    try:
        while True:
            answer = control.read_answer(id)
            if answer is not None and answer["state"] in _ENDS:
                return answer
            waited = time.monotonic() - began
            if answer is None and waited > _TO_ANSWER:
                control.take_back(id)
                raise NotFoundError(f"{given.run}: its job does not answer; expected a training with "
                                    "holdfast.Elastic under holdfast launch, which makes steps")
            if waited > given.timeout:
                return {"state": "refused", "why": f"the job has not changed after {given.timeout:g} s, and the "
                                                   f"request {_take_back(control, id)}"}
            said = _tell_state(answer, said, quiet=given.json)
            time.sleep(_LOOK)
    except KeyboardInterrupt:
        print(f"holdfast: the request {_take_back(control, id)}", file=sys.stderr)
        raise


def _take_back(control: Control, id: str) -> str:
    """Takes back a request, and says whether that was in time."""
    taken, until = control.take_back(id), time.monotonic() + _TO_TAKE_BACK
    while not taken and time.monotonic() < until:
        answer = control.read_answer(id) or {}
        if answer.get("state") in ("made", "planned"):
            return "was carried out"
        taken = answer.get("state") == "refused"
        time.sleep(_LOOK)
    return "was taken back" if taken else "could not be taken back: the job may still change"


def _tell_state(answer: dict[str, Any] | None, said: str, *, quiet: bool) -> str:
    """Says on the terminal what the job is about to do, once."""
    texts = {"asked": "waiting for workers", "waits": "waiting for the end of a step"}
    text = texts.get(answer["state"], "") if answer else "waiting for the job"
    if text != said and not quiet and sys.stderr.isatty():
        print(f"holdfast: {text}", file=sys.stderr)
    return text


def _show(control: Control, given: argparse.Namespace) -> int:
    now = {**control.configuration(), "history": control.history()}
    print(json.dumps(now) if given.json else text_of_now(now))
    return DONE


def text_of_now(now: dict[str, Any]) -> str:
    """What the job has, and how it has come to that, for people."""
    changes = [f"  {one['old']} -> {one['to']} on workers {one['workers']}, after step {one['step']}: stood still "
               f"{one['stood_still']:.2f} s, {one['moved'] / 1e6:.1f} MB moved" for one in now["history"]]
    return "\n".join([f"{now['to']} on workers {' '.join(map(str, now['workers']))}, since step {now['step']}; "
                      f"{now['spares']} spare{'' if now['spares'] == 1 else 's'}", *changes])


def _fail(why: str, as_json: bool, code: int, answer: dict[str, Any] | None = None) -> int:
    print(f"holdfast: {why}", file=sys.stderr)
    if as_json:
        print(json.dumps({**(answer or {}), "error": why, "code": code}))
    return code


def _avoided(text: str) -> tuple[bool, int]:
    """Whether it is a host, and its number or that of the worker."""
    number = text.removeprefix("host")
    if not re.fullmatch(r"\d{1,6}", number):
        raise argparse.ArgumentTypeError(f"{text}; expected the number of a worker, or a host such as host1")
    return number != text, int(number)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="holdfast resize", epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        description="Changes TP x PP x DP of a training that runs under holdfast launch with "
                    "holdfast.Elastic. All processes live on, and every tensor keeps its bits. If the "
                    "change fails, the training goes on as it was.")
    parser.add_argument("run", help="the run directory of the training")
    parser.add_argument("--to", metavar="CONFIGURATION",
                        help="tp=2,pp=2,dp=1: an axis that is not named is 1 (default: as it is now)")
    parser.add_argument("--avoid", metavar="WORKER|hostN", type=_avoided, action="append", default=[],
                        help="a worker, or a host (host1) with all its workers, that shall have no part in "
                             "the job any more; may be repeated")
    parser.add_argument("--plan-only", action="store_true",
                        help="say what would move, and change nothing; training stands still for a moment, "
                             "because the model is built to know it")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=600.0,
                        help="how long to wait for the change (default: 600)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


if __name__ == "__main__":
    sys.exit(main())
