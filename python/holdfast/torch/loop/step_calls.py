"""Functions that are called once, when a step is done."""

from collections.abc import Callable


class StepCalls(dict[int, list[Callable[[], None]]]):
    """What a Checkpointer calls at the end of step(), by the step."""

    def add(self, step: int, call: Callable[[], None]) -> None:
        """Calls the function once, at the end of step() for that step."""
        self.setdefault(step, []).append(call)

    def run(self, step: int) -> None:
        """Makes the calls of that step."""
        for call in self.pop(step, ()):
            call()
