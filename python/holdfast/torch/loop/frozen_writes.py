"""Finds parameters that need no gradient and that training itself writes to: a momentum encoder.

A save copies parameters beside the next forward, because only an update writes to them. An encoder
that follows another one is written to in the forward, so that its copy would be torn. What was written
to before the first update is copied by save() itself; before the second one it is looked at again,
because weights may just have been loaded.
"""

import torch

from holdfast.torch.state.change_detection import with_version
from holdfast.torch.state.training_state import TrainingState

_LOOKS = 2


class FrozenWrites:
    """The writes to parameters that need no gradient, up to the second update."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self.restart()

    def restart(self) -> None:
        """Called when a resume has written to everything."""
        self._looks = 0
        self._seen = self._versions()
        self._found: set[str] = set()

    def before_update(self) -> None:
        """Called before an update."""
        if self._looks == _LOOKS:
            return
        self._looks += 1
        before, now = self._seen, self._versions()
        written = {one for one, version in now.items() if before.get(one, version) != version}
        found = {name for piece, name in self._state.resting() if id(piece.outer) in written
                 } if written else set()
        self._state.copy_at_once(found - self._found, not_more=self._found - found)
        self._seen, self._found = now if self._looks < _LOOKS else {}, found

    def _versions(self) -> dict[int, int]:
        return {id(one): with_version(one)._version for model in self._state.models
                if isinstance(model, torch.nn.Module)
                for one in model.parameters() if not one.requires_grad}
