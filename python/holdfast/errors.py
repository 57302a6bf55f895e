"""What Holdfast raises where Python has no exception of its own for it.

A wrong call is ValueError, a refusal of the operating system OSError (ENOSPC when the disk
is full, PermissionError where permissions do not allow it), a passed deadline TimeoutError,
and what this build or format cannot do NotImplementedError. The rest is here.
"""


class Error(Exception):
    """Any of the failures below."""


class NotFoundError(Error):
    """There is no such checkpoint, tensor or file: look elsewhere."""


class CorruptError(Error):
    """Bytes disagree with their digest: repair or fall back."""


class ConflictError(Error):
    """Somebody else owns it, or it is there already: choose."""


class UnavailableError(Error):
    """A peer or device did not answer: retry."""
