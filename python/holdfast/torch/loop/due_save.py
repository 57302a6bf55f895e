"""A save that is due, and how long it has waited for the end of an update."""


class DueSave:
    """Nothing is due at first."""

    def __init__(self) -> None:
        self.reason: tuple[bool, str] | tuple[()] = ()  # whether it is the last one, and why
        self.calls_waited = 0

    def ask(self, due: tuple[str, str] | None, is_last_step: bool) -> None:
        """Takes what the job has decided about a step; the last one is always saved."""
        if due is not None and due[0] != "change":
            self.reason = due[0] == "stop", due[1]
        elif is_last_step and not self.reason:
            self.reason = False, "the last step"

    def waits(self, mid_update: bool, patience: int) -> bool:
        """Whether the save is put off, in the middle of an update, for at most `patience` calls."""
        self.calls_waited += 1
        return mid_update and self.calls_waited <= patience
