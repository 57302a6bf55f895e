"""Steps that the replacement of a lost rank makes again alone, behind the newest durable one.

Where no other rank has the tensors of a lost rank, its replacement

  1. reads its own part of the newest durable step, while the others wait,
  2. makes the runs behind that step again. Its loop and its steps are the program's own: the loader and the
     random generators are where they were, calls of process groups are answered from what others kept
     (messages.py), and no gate is passed,
  3. compares the record that it makes of its last update with that of the lost rank, which a buddy has:
     random generators, the position of the loader, objects, buffers, and a seal of some gradients, which
     depend on all parameters. If no run was to be made again, options, objects, buffers and threads are
     compared, as they are then. If anything differs, all ranks start again from the checkpoint,
  4. joins the others, who repeat no update.
"""

from collections import deque
from typing import Any

import torch

from holdfast import _native
from holdfast.torch.loop.resume import missing_or_reshaped
from holdfast.torch.recover.flat_copy import FlatCopy
from holdfast.torch.recover.helping import Shares
from holdfast.torch.recover.record_bytes import are_alike, unpack_record
from holdfast.torch.recover.records import Records
from holdfast.torch.recover.repeated_calls import Call
from holdfast.torch.state.capture import current_stream
from holdfast.torch.state.ddp_buckets import BucketOrders
from holdfast.torch.state.training_state import TrainingState

SAVE = "Checkpointer.save"  # the name of a save that the program asked for, among its runs
_COMPARED = ("options", "generators", "data draws", "tensors", "seals", "seal", "threads")
# Where no run was made again. The loop has taken its next batch, and loop_draws.py compares generators.
_AT_REST = ("options", "tensors", "seals", "threads")


class Replay:
    """One replay."""

    def __init__(self, decided: dict[str, Any], runs: list[tuple[int, str]], kept: dict[str, Any],
                 before: list[Call], log_bytes: int, reason: str) -> None:
        """`kept` is the record of the lost rank, as peers.py has it; `before` are calls before the loop."""
        self.decided, self.log_bytes, self.reason = decided, log_bytes, reason
        self.shares: Shares | None = None  # if several processes make the runs
        self.made = 0  # runs that were made again
        self._runs, self._kept, self._before = deque(runs), kept, list(before)
        self._saves: deque[tuple[int, str]] = deque()  # of the saved step: a loop that begins behind it may leave them out
        while self._runs and self._runs[0][1] == SAVE:
            self._saves.append(self._runs.popleft())
        self._records: list[tuple[bytes, bool]] = []  # of the last run, and whether they are of its end

    @property
    def is_done(self) -> bool:
        """True if all runs were made."""
        return not self._runs

    def skips(self, kind: str, name: str, *, is_in_loop: bool) -> Call | None:
        """The call with its result, if it is one from before the loop."""
        if self._before and self._before[0].is_call(kind, name) and not is_in_loop:
            return self._before.pop(0)
        self._before = []
        return None

    def next(self, name: str) -> int | None:
        """The update that ck.run(name) makes; None if the others are in that run.

        ValueError if the others have made another one.
        """
        if name == SAVE and self._saves:  # its loop comes to the save of the step that it begins behind
            return self._saves.popleft()[0]
        self._saves.clear()
        if not self._runs:
            return None
        update, expected = self._runs[0]
        if name != expected:
            raise ValueError(f"a replacement called ck.run({name}) where the lost rank had called "
                             f"ck.run({expected}); expected the same calls behind a saved step")
        self._runs.popleft()
        self._records = []
        if self.shares is not None:
            self.shares.begin(update)
        return update

    def note_record(self, records: Records, *, is_at_end: bool) -> None:
        """Notes a record of the newest run."""
        self.made += not is_at_end
        self._records.append((records.newest, is_at_end))

    def find_difference(self, records: Records) -> str:
        """How the end of the replay differs from what the lost rank had told; "" if it does not.

        `records` tell what this rank has now.
        """
        if not self.made:
            return ", ".join(_differences_at_rest(records, self._kept["record"]))
        found = [_differences(*unpack_record(one), *unpack_record(self._kept["record"]))
                 for one, is_at_end in self._records if is_at_end == self._kept["is at end"]]
        best = min(found, key=len, default=["the record of its last update"])
        return ", ".join(best)


def _differences_at_rest(records: Records, kept: bytes) -> list[str]:
    now, (theirs, their_data) = records.capture(), unpack_record(kept)
    flat = FlatCopy(now.tensors)
    flat.take()
    for values in (now.values, theirs):
        values["things"].pop("data", None)
    return _differences({**now.values, "threads": torch.get_num_threads()}, flat.data(), theirs, their_data, _AT_REST)


def _differences(values: dict[str, Any], data: bytes, theirs: dict[str, Any], their_data: bytes,
                 compared: tuple[str, ...] = _COMPARED) -> list[str]:
    names = [key for key in compared if not are_alike(values.get(key), theirs.get(key))]
    keys = {**values["things"], **theirs["things"]}
    names += [key for key in keys if not are_alike(values["things"].get(key), theirs["things"].get(key))]
    return names if names or data == their_data else ["the bytes of its buffers"]


def read_alone(run: str, step: int, state: TrainingState) -> _native.SavedStep:
    """Fills this rank's tensors from a durable step, without the other ranks. The caller loads the rest.

    LookupError if the checkpoint does not have all, or ValueError if it is of another model.
    """
    steps: list[_native.SavedStep] = []

    def allocate(found: _native.SavedStep) -> _native.Pieces:
        state.load_diverged(found)
        if wrong := missing_or_reshaped(state.expected(found), found.tensors):
            raise LookupError(f"{found.folder}: {wrong[0]}")
        steps.append(found)
        return _native.Pieces(state.allocate(found))

    _native.restore_alone(run, allocate, step, current_stream())
    return steps[-1]


def load_durable(run: str, step: int, state: TrainingState, buckets: BucketOrders) -> dict[str, Any]:
    """Loads this rank's part of a durable step, alone. Returns the objects that the rank saved for itself.

    Raises what read_alone() raises.
    """
    found, inexact = read_alone(run, step, state), list[str]()
    state.load(found)
    # The checkpoint has the orders of rank 0. A module that it does not know is on this rank alone, where no
    # order counts.
    buckets.restore(found.objects["buckets"])
    state.load_gradients()
    state.restore_generators(found, inexact)
    if inexact:
        raise LookupError(f"{found.folder}: {inexact[0]}")
    own: dict[str, Any] = found.rank_objects[state.rank]
    return own
