"""What a rehearsal prints: sentences for people, or JSON."""

import json
from collections.abc import Iterator

from holdfast.rehearse.advice import advise
from holdfast.rehearse.differences import readable_name
from holdfast.rehearse.rehearsal import Killed, Outcome


def to_text(outcome: Outcome) -> str:
    """The lines for people."""
    return "\n".join(_lines(outcome))


def to_json(outcome: Outcome, command: list[str]) -> str:
    """The same as an object."""
    first = outcome.first
    return json.dumps({
        "version": 1, "command": command, "steps": outcome.steps,
        "seconds": round(outcome.seconds, 3), "exact": outcome.is_exact,
        "deterministic": outcome.by_itself is None,
        "differs_by_itself": outcome.by_itself and outcome.by_itself.to_json(),
        "left_out": outcome.left_out,
        "kills": [_kill_json(one) for one in outcome.kills],
        "first_difference": first and first.difference and first.difference.to_json(),
        "cause": first and first.cause and first.cause.to_json(),
        "advice": advise(outcome), "not_rehearsed": outcome.not_met,
        "not_saved": outcome.unsaved, "warnings": outcome.warnings,
    }, indent=2)


def _lines(outcome: Outcome) -> Iterator[str]:
    again = "equal" if outcome.by_itself is None else f"differs: {outcome.by_itself}"
    early = ", where it ended by itself" if outcome.ended_early else ""
    yield f"undisturbed, {outcome.steps} steps{early}, {outcome.seconds:.1f} s; again: {again}"
    for one in outcome.kills:
        yield _kill_line(one, outcome)
    first = outcome.first
    if first is not None and first.difference is not None:
        cause = "" if first.cause in (None, first.difference) else f" <- {first.cause}"
        yield f"first differs: {first.difference}{cause}"
    for text in outcome.warnings:
        yield f"Holdfast warned: {text}"
    if outcome.left_out:
        names = dict.fromkeys(map(readable_name, outcome.left_out))
        yield f"not compared, as two undisturbed runs differ in it: {', '.join(list(names)[:5])}"
    verdict = "EXACT: every step after a kill has the same bits." if outcome.is_exact else "NOT exact."
    yield " ".join([verdict, *advise(outcome)])
    for text in outcome.unsaved:
        yield f"not saved: {text}"
    if outcome.not_met:
        yield f"not rehearsed: {', '.join(outcome.not_met)}"


def _kill_line(one: Killed, outcome: Outcome) -> str:
    if one.alone is not None:
        begin = f"rank {one.alone} killed alone in step {one.step}, and replaced"
    else:
        after = ("did not resume" if one.resumed_after is None else
                 "began anew" if one.resumed_after < 0 else f"resumed after step {one.resumed_after}")
        begin = f"killed in step {one.step}, {one.kill.where}; {after}"
    if one.difference is None and outcome.by_itself is not None:
        return f"{begin}: its state and its next batch are those of the killed run"
    if one.difference is None:
        return f"{begin}: equal up to step {one.compared_to}"
    if one.difference.what == "resume":
        return f"{begin}, and step {one.kill.after} was saved"
    return f"{begin}: step {one.difference.step} differs{_losses(one)}"


def _losses(one: Killed) -> str:
    if one.difference is None or one.difference.what != "loss":
        return ""
    return f" (loss {one.difference.undisturbed} / {one.difference.disturbed})"


def _kill_json(one: Killed) -> dict:
    return {"step": one.step, "where": one.kill.where, "alone": one.alone,
            "saved": one.kill.after, "resumed_after": one.resumed_after,
            "compared_to": one.compared_to,
            "difference": one.difference and one.difference.to_json()}
