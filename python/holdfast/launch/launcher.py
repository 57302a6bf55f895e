"""The launcher: puts its parts together, and runs its loop until the job has ended."""

from typing import Any

from holdfast.launch.coordinator import Coordinator
from holdfast.launch.follower import REFUSED, Follower, Refused
from holdfast.launch.hosts import Hosts
from holdfast.launch.loop import Loop
from holdfast.launch.options import Options
from holdfast.launch.processes import Workers
from holdfast.launch.recoveries import say
from holdfast.launch.store import StoreProcess


def launch(options: Options) -> int:
    """Runs the job, or the part of it that is on this host. Returns the exit code of the job."""
    try:
        return coordinate(options) if options.host == 0 else Follower(options).run()
    except Refused as error:
        say(str(error))
        return REFUSED


def coordinate(options: Options) -> int:
    """The launcher of host 0, which decides for all."""
    store = StoreProcess()
    coordinator = Coordinator(options, store.port)
    loop = Loop(coordinator.signal)
    try:
        hosts = _hosts(options, loop, coordinator)
        workers = Workers(options.program, options.is_module, loop, _reporter(hosts, coordinator))
        hosts.add_own(workers, options.ranks)
        coordinator.begin(hosts)
        while (code := coordinator.outcome()) is None:
            loop.turn()
            workers.tick()
            hosts.tick()
            coordinator.tick()
            coordinator.settle()
        coordinator.close()
        code = code if code >= 0 else 128 - code  # as a shell says it of a signal
        hosts.end(code)
        return code
    finally:
        store.close()


def _hosts(options: Options, loop: Loop, coordinator: Coordinator) -> Hosts:
    try:
        return Hosts(options.hosts, options.at, loop, coordinator)
    except OSError as error:
        raise Refused(f"--at {options.at_text}: {error.strerror}; expected a free port of this "
                      "machine") from error


def _reporter(hosts: Hosts, coordinator: Coordinator) -> Any:
    """Passes on what the workers of this host report."""
    def report(said: dict[str, Any]) -> None:
        own = hosts.living[0]
        own.hear(said)
        coordinator.report(own, said)

    return report
