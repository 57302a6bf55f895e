"""Notices a program that undoes a resume: it loads weights between ck.resume() and the first update.

A training may itself write to its parameters in front of each update (weights that are clipped at the top of
the loop, a step of SAM). So what was found before the first update is said only if nothing was written
between the first ck.step() and the second update.
"""

from holdfast.torch.loop.kept_elements import KeptElements
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.values.dotted_names import name_a_few

_TEXT = ("parameters were written to between resume() and the first update ({names}): the training does not go "
         "on with what was saved; expected all that loads or changes weights before ck.resume()")


class UndoneResume:
    """The parameters after a resume, up to the second update."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self.kept: KeptElements | None = None  # while something is to be compared before the next update
        self.written: list[str] = []  # before the first update

    def restart(self) -> None:
        """Called when a resume has changed everything."""
        self.written = []
        self._keep()

    def before_update(self) -> str:
        """Called before an update if `kept` is not None. Returns a warning or ""."""
        kept, self.kept = self.kept, None
        assert kept is not None
        changed, written = kept.changed(), self.written
        if not written:
            self.written = changed
            return ""
        self.written = []
        return "" if changed else _TEXT.format(names=name_a_few(written))

    def next_call(self) -> None:
        """Called in ck.step() if `written` is not empty."""
        self._keep()

    def _keep(self) -> None:
        parameters = self._state.parameters()
        self.kept = KeptElements(parameters, at_once=len(parameters) or 1)
        self.kept.keep()
