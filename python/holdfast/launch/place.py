"""What a worker knows of its place in the job."""

import socket
from dataclasses import dataclass


@dataclass
class Place:
    """Given to a worker when it is forked."""

    rank: int
    world: int
    generation: int  # the one that it is born into
    incarnation: int  # how often all ranks were started again
    is_replacement: bool  # it takes the place of a lost rank: the others are in mid-training
    connection: socket.socket  # to the launcher
    log: int  # descriptor of the memory for the start-up log
    page: memoryview  # memory that the launcher reads: PAGE_STEP and so on


STOPPED = 143  # the exit code of a worker that was asked to stop and has saved

PAGE_BYTES = 64
PAGE_STEP = 0  # the index, in 8-byte numbers, of the step that the worker is in
