"""The identity of a worker says its number, rank, host and generation in the job, and what it is connected to."""

import socket
from dataclasses import dataclass


@dataclass
class WorkerIdentity:
    """Given to a worker when it is forked."""

    slot: int  # the number of the worker; its rank may change while it lives, this may not
    home: int  # the number of its host
    members: list[int]  # the workers that are ranks of the job, by rank
    generation: int  # the one that it is born into
    incarnation: int  # how often all ranks were started again
    is_replacement: bool  # it takes the place of a lost rank: the others are in mid-training
    hosts: list[int]  # the number of the host of each rank, by rank
    configuration: str  # the parallel configuration of the job, if it is not the program's own
    can_change: bool  # the job may get more workers
    is_rebuilt: bool  # the job has that configuration by a change: its model was not built at the start
    connection: socket.socket  # to the launcher
    log: int  # descriptor of the memory for the start-up log
    page: memoryview  # memory that the launcher reads: PAGE_STEP and so on
    helped: int = -1  # the worker whose steps this one helps to make again; -1 if it does not
    helper: int = 0  # its number among the processes that share them; 0 is that of the replacement
    helpers: int = 0  # how many these are; 0 if there are none
    folder: str = ""  # in which a helper opens its job
    alone: str = ""  # why a replacement has no helpers, if there were to be some

    @property
    def world(self) -> int:
        return len(self.members)

    @property
    def rank(self) -> int:
        """The rank of the worker, or of the one that it helps; -1 as long as it is none."""
        slot = self.slot if self.helped < 0 else self.helped
        return self.members.index(slot) if slot in self.members else -1


HELPERS = 1_000_000  # the numbers of workers that help a replacement begin here

FAILED = 1  # the exit code of a worker after an exception, and of one that could not save
STOPPED = 143  # the exit code of a worker that was asked to stop and has saved

PAGE_BYTES = 64
# Indices, in 8-byte numbers. Times are nanoseconds of the monotonic clock.
PAGE_STEP = 0  # the step that the worker is in; -1 before the first
PAGE_BEAT = 1  # when a native thread of the worker was last at work; 0 before the first time
PAGE_LOOKED = 2  # when the worker last looked which collective calls it waits in
PAGE_WAITS_SINCE = 3  # since when it has waited in one; 0 if it waits in none
