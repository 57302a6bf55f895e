"""Orbax's CheckpointManager, which numbers its steps and resumes from the newest."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
import orbax.checkpoint as ocp  # noqa: E402: jax reads the variable
from engine import Engine, Session  # noqa: E402
from states import FIRST, OlderIsWhole, State, blank, is_previous  # noqa: E402


def manager(folder: Path) -> ocp.CheckpointManager:
    return ocp.CheckpointManager((folder / "run").absolute(), options=ocp.CheckpointManagerOptions(max_to_keep=2))


def hold(state: State) -> State:
    return dict(state)


def save(step: int, held: State, folder: Path) -> None:
    with manager(folder) as found:
        found.save(step, args=ocp.args.StandardSave(held))
        found.wait_until_finished()


@contextmanager
def train(held: State, folder: Path) -> Iterator[Session]:
    """It copies the arrays before save() returns, and writes them in the background."""
    with manager(folder) as found:
        yield Session(lambda step: found.save(step, args=ocp.args.StandardSave(held)), lambda: None,
                      found.wait_until_finished)  # fmt: skip


def load(folder: Path) -> State | None:
    into = blank()
    with manager(folder) as found:

        def restore(step: int) -> State:
            return found.restore(step, args=ocp.args.StandardRestore(into))

        newest = found.latest_step()
        if newest is None:
            return None
        try:
            return restore(newest)
        except Exception as error:
            if is_previous(lambda: restore(FIRST)):
                raise OlderIsWhole(str(error)) from error
            raise


ENGINES = [Engine("orbax", "orbax.checkpoint", hold, save, load, background=train)]
