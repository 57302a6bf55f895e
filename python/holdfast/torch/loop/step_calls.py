"""Functions that are called once, when a step is done."""

from collections.abc import Callable


class StepCalls:
    """What a Checkpointer calls at the end of step()."""

    def __init__(self) -> None:
        self.waiting: dict[int, list[Callable[[], None]]] = {}

    def add(self, step: int, call: Callable[[], None]) -> None:
        """Calls the function once, at the end of step() for that step."""
        self.waiting.setdefault(step, []).append(call)

    def run(self, step: int) -> None:
        """Makes the calls of that step."""
        for call in self.waiting.pop(step, ()):
            call()
