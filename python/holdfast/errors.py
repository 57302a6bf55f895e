"""The exceptions of Holdfast for which Python has none of its own.

A wrong call raises ValueError or TypeError. A refusal of the operating system raises OSError (with
ENOSPC when the disk is full, PermissionError when permissions forbid it). A passed deadline raises
TimeoutError. What this build or format cannot do raises NotImplementedError.
"""


class Error(Exception):
    """The base class of the exceptions below."""


class NotFoundError(Error):
    """There is no such checkpoint, tensor or file. Look elsewhere."""


class CorruptError(Error):
    """Bytes do not match their digest. Repair the file, or use an older checkpoint."""


class ConflictError(Error):
    """Another process owns the run, or the target exists already. Choose another one."""


class Interrupted(BaseException):
    """Another rank died during a collective call outside of Checkpointer.run().

    It is no Exception, so that a training does not catch it by accident. Unless it is caught, all
    ranks start again from the newest checkpoint.
    """


class UnavailableError(Error):
    """Another rank, a server or a device did not answer. Try again."""
