"""Starts the lighthouse of torchft and its replica groups, which are one process each here, and starts
a process again as soon as it has died.

    recovery_torchft.py RANKS SCRIPT [OPTION]...

torchft leaves the restart to others: its documentation names torchrun, one for each replica group,
torchx, and Slurm. This does the same in less time: it asks nobody, and waits for no interval.

SETTINGS are torchft's own. What is not named has torchft's default.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

TORCHFT = Path(__file__).resolve().parents[1] / ".cache/torchft"
SETTINGS = {
    # A replica is dead after ten heartbeats that did not come; the default is 5 s. The survivors
    # stand still for this time.
    "heartbeat_timeout_ms": 1000,
    "join_timeout_ms": 10000,  # as the README of torchft has it
    "quorum_tick_ms": 100,  # likewise
}
GRACE = 5  # seconds for the other ranks, after the first has made its last step


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


class Job:
    """The processes of a job."""

    def __init__(self, ranks: int, script: list[str]) -> None:
        self._script, self._parent, port = script, os.getppid(), free_port()
        self._environment = os.environ | {"TORCHFT_LIGHTHOUSE": f"http://localhost:{port}",
                                          "NUM_REPLICA_GROUPS": str(ranks)}  # fmt: skip
        # More than half of the ranks, so that no two quorums exist beside each other.
        options = {"bind": f"[::]:{port}", "min_replicas": ranks // 2 + 1, **SETTINGS}
        self._lighthouse = subprocess.Popen(
            [sys.executable, TORCHFT / "bin/torchft_lighthouse",
             *(word for name, value in options.items() for word in (f"--{name}", str(value)))]
        )  # fmt: skip
        self._running = {}
        for rank in range(ranks):
            self._start(rank)

    def _start(self, rank: int) -> None:
        process = subprocess.Popen([sys.executable, *self._script],
                                   env=self._environment | {"REPLICA_GROUP_ID": str(rank)})
        self._running[process.pid] = (rank, process)

    def follow(self) -> None:
        """Returns when all ranks have made their last step."""
        while self._running:
            pid, status = os.wait()
            if pid == self._lighthouse.pid:
                sys.exit(f"recovery_torchft: the lighthouse ended with status {status}")
            rank, _ = self._running.pop(pid)
            if status == 0:
                # A process that was started again in the last steps comes too late, and would wait.
                signal.alarm(GRACE)
            elif os.getppid() == self._parent:  # else the benchmark was killed
                self._start(rank)

    def end(self) -> None:
        for process in (self._lighthouse, *(process for _, process in self._running.values())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def main() -> None:
    job = Job(int(sys.argv[1]), sys.argv[2:])
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(0))
    try:
        job.follow()
    finally:
        job.end()


if __name__ == "__main__":
    main()
