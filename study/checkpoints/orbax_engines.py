"""Orbax's CheckpointManager, which numbers its steps and resumes from the newest."""

import os
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
import numpy as np  # noqa: E402: jax reads the variable
import orbax.checkpoint as ocp  # noqa: E402: as above
from engine import Engine  # noqa: E402
from states import FIRST, SHAPES, OlderIsWhole, State, is_previous  # noqa: E402


def manager(folder: Path) -> ocp.CheckpointManager:
    return ocp.CheckpointManager((folder / "run").absolute(), options=ocp.CheckpointManagerOptions(max_to_keep=2))


def save(step: int, state: State, folder: Path) -> None:
    with manager(folder) as found:
        found.save(step, args=ocp.args.StandardSave(state))
        found.wait_until_finished()


def load(folder: Path) -> State | None:
    into = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
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


ENGINES = [Engine("orbax", "orbax.checkpoint", save, load)]
