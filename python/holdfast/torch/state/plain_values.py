"""The plain values of a training that are saved with it: `Checkpointer.values`."""

from collections.abc import Mapping
from typing import Any

KEY = "values"  # a checkpoint that was saved before there were such values lacks it


class PlainValues(dict[str, Any]):
    """A dict with a state_dict.

    What it holds before the first resume are defaults: a value that a checkpoint does not have
    gets its default, and one without a default is removed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._defaults: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The values as they are now."""
        return dict(self)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Replaces the values."""
        self.replace({**(self._defaults or {}), **saved})

    def before_resume(self) -> None:
        """Notes the defaults, at the first call."""
        if self._defaults is None:
            self._defaults = dict(self)

    def replace(self, values: Mapping[str, Any]) -> None:
        """Takes these values and drops all others."""
        kept = dict(values)
        self.clear()
        self.update(kept)
