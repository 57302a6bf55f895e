"""The calls that a training loop has made since it took its last batch.

The process that replaces a lost rank begins its loop at the top, with a batch. The others may be
further: in the second ck.run() of a step, or in a validation after ck.step(). The replacement
then makes the same calls as they did, and each of them returns at once, with what it returned in
the lost rank, or on another one. So every rank keeps these calls.

A run is at the top of the loop if it is the first since ck.step() before which the loader gave a
batch, or that makes updates: so a validation after ck.step() is not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from holdfast.torch.values.trees import pack, unpack

_MOST_CALLS = 64  # with more, none is kept
_MOST_BYTES = 1 << 20  # of a result that is kept


@dataclass
class Call:
    """A call of ck.run() or ck.step()."""

    kind: Literal["run", "step"]
    name: str  # of the function, or the number of the step
    result: Any = None
    unkept: str = ""  # why there is no result

    def __str__(self) -> str:
        return f"ck.{self.kind}({self.name})"

    def is_call(self, kind: str, name: str) -> bool:
        """True for a call of that kind and name."""
        return (self.kind, self.name) == (kind, name)


class RepeatedCalls:
    """The calls of one rank, and where they lead to."""

    def __init__(self) -> None:
        self.last_step = -1  # the last one that is done
        self.function = ""  # that the current run() was given; "" at the end of the training
        self.calls: list[Call] = []  # since the top of the loop
        self.first_step = -1  # the last step that was done at the top of the loop
        self.before: list[Call] = []  # before the loop
        self.has_more_runs = False  # the last step had runs behind its first
        self.written: list[str] = []  # tensors that runs write to before an update (EarlyWrites)
        self.gradients = {"are kept": False, "is unsure": False}  # by steps (KeptGradients)
        self.unknown: list[str] = []  # loaders that were not given (UnknownLoaders)
        self._told: list[str] = []  # what unsaved() has returned last
        self._is_known = True  # false if the calls were too many to keep
        self._has_top = False  # a run since the last step() was at the top
        self._has_looped = False  # some run was at the top
        self._updating: set[str] = set()  # functions that make updates

    def is_top(self, has_moved: bool, updates: bool = False) -> bool:
        """Whether the current run is at the top; `has_moved` if the loader gave a batch."""
        if self.function == "":
            return True
        return not self._has_top and (has_moved or updates or self.function in self._updating)

    def commit(self, *, is_top: bool, updates: bool) -> None:
        """Notes that the current run is committed, and whether it is at the top of the loop."""
        if updates:
            self._updating.add(self.function)
        if not is_top:
            return
        if not self._has_looped:
            self._has_looped, self.before = True, self.calls
        self.calls, self.first_step, self._is_known = [], self.last_step, True
        self._has_top = True

    def returned(self, result: Any) -> None:
        """Notes what the current run has returned."""
        kept, why = _keep(result)
        self._add(Call("run", self.function, kept, why))

    def stepped(self, step: int) -> None:
        """Notes a call of step()."""
        if self._has_top:
            runs = [call for call in self.calls if call.kind == "run"]
            self.has_more_runs = len(runs) > 1
        self._add(Call("step", str(step)))
        self.last_step, self._has_top = step, False

    def _add(self, call: Call) -> None:
        self.calls.append(call)
        if len(self.calls) > _MOST_CALLS:
            self.calls, self._is_known = [], False

    def news_of_unsaved(self) -> list[str]:
        """What no checkpoint has, so that ranks that start again are not exact; [] if that is old."""
        lines = [f"{name}: was not given as data=" for name in self.unknown]
        if self.gradients["are kept"]:
            lines.append("gradients of earlier steps, which no checkpoint has")
        news, self._told = lines if lines != self._told else [], lines
        return news

    def resumed(self, last_step: int) -> None:
        """Notes where the training begins."""
        self.last_step = self.first_step = last_step

    def begin_behind(self, step: int) -> None:
        """Notes that the loop begins behind that step, which is done."""
        self.last_step = self.first_step = step
        self.calls, self.function, self._has_top = [], "", False

    def mark(self) -> dict[str, Any]:
        """What go_back() needs to come back to here."""
        return {**vars(self), "calls": list(self.calls), "_updating": set(self._updating)}

    def go_back(self, mark: dict[str, Any]) -> None:
        """The calls since then are made again."""
        vars(self).update(mark)

    def state(self, has_moved: bool) -> dict[str, Any]:
        """What a replacement must know, as plain values."""
        is_top = self.is_top(has_moved)
        return {"last step": self.last_step, "function": self.function,
                "first step": self.last_step if is_top else self.first_step,
                "calls": [] if is_top else pack_calls(self.calls),
                "before": pack_calls(self.before), "is known": is_top or self._is_known,
                "has top": self._has_top and not is_top, "updating": sorted(self._updating),
                "has more runs": self.has_more_runs, "written": list(self.written),
                "unknown": list(self.unknown), "gradients": dict(self.gradients)}

    def load(self, state: dict[str, Any], calls: list[Call]) -> None:
        """Takes over what another rank told; the calls may have other results."""
        self.last_step, self.function = state["last step"], state["function"]
        self.first_step, self.calls = state["first step"], list(calls)
        self.before, self._has_looped = unpack_calls(state["before"]), True
        self._has_top, self._updating = state["has top"], set(state["updating"])
        self.has_more_runs = state["has more runs"]
        self.written[:], self.unknown[:] = state["written"], state["unknown"]
        self.gradients["are kept"] = state["gradients"]["are kept"]


class SkippedCalls:
    """The calls that a replacement makes until it is where the others are."""

    def __init__(self, repeated: RepeatedCalls, refuse: Callable[[Exception], None],
                 arrive: Callable[[], None], is_in_loop: Callable[[], bool]) -> None:
        """`arrive` is called after the last of these calls, `refuse` if there are other calls.

        `is_in_loop` says whether this process has taken a batch.
        """
        self._expected = Call("run", repeated.function)
        self._left, self._before = list(repeated.calls), list(repeated.before)
        self._refuse, self._arrive, self._is_in_loop = refuse, arrive, is_in_loop

    @property
    def is_done(self) -> bool:
        """True if the next call is the one that the others are in."""
        return not self._left

    def skips(self, kind: Literal["run", "step"], name: str) -> Call | None:
        """The call to skip, with its result; None if it is the one that the others are in."""
        if self._before:
            if self._before[0].is_call(kind, name) and not self._is_in_loop():
                return self._before.pop(0)
            self._before = []
        if self._left and self._left[0].is_call(kind, name):
            call = self._left.pop(0)
            if not self._left:
                self._arrive()
            return call
        if not self._left and self._expected.is_call(kind, name):
            return None
        others = self._left[0] if self._left else self._expected
        where = f"the others called {others}" if others.name else "the others were at the end"
        self._refuse(ValueError(f"a replacement called ck.{kind}({name}), and {where}"))
        return None


def pack_calls(calls: list[Call], *, on_cpu_only: bool = False) -> list[Any]:
    """Calls as plain values. To read a tensor of a GPU takes time: it can be left out."""
    return [_pack_call(call, on_cpu_only) for call in calls]


def _pack_call(call: Call, on_cpu_only: bool) -> Any:
    if call.unkept or (on_cpu_only and any(one.is_cuda for one in _tensors(call.result))):
        return [call.kind, call.name, None, call.unkept or "on a GPU"]
    try:
        return [call.kind, call.name, pack(call.result, "result", inline=_MOST_BYTES).tree, ""]
    except (TypeError, ValueError) as error:
        return [call.kind, call.name, None, str(error)]


def unpack_calls(packed: list[Any]) -> list[Call]:
    """The calls that were packed."""
    return [Call(kind, name, unpack(tree, {}), unkept) for kind, name, tree, unkept in packed]


def _keep(result: Any) -> tuple[Any, str]:
    """The result without the graph that it hangs on, or why it is not kept."""
    if isinstance(result, torch.Tensor):
        if result.nbytes <= _MOST_BYTES:
            return result.detach(), ""
        return None, f"a tensor of {result.nbytes} bytes"
    if isinstance(result, (list, tuple)) and type(result) in (list, tuple):
        kept = [_keep(one) for one in result]
        return type(result)(one for one, _ in kept), next((why for _, why in kept if why), "")
    if type(result) is dict:
        inside = {key: _keep(one) for key, one in result.items()}
        return ({key: one for key, (one, _) in inside.items()},
                next((why for _, why in inside.values() if why), ""))
    if result is None or isinstance(result, (bool, int, float, str)):
        return result, ""
    return None, f"a {type(result).__name__}"


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    inside = result.values() if isinstance(result, dict) else result
    return [] if not isinstance(result, (list, tuple, dict)) else [
        tensor for one in inside for tensor in _tensors(one)]
