"""The launcher: puts its parts together, and runs its loop until the job has ended."""

import socket
from typing import Any

from holdfast.launch.coordinator import Coordinator
from holdfast.launch.follower import Follower
from holdfast.launch.hosts import Hosts
from holdfast.launch.loop import Loop
from holdfast.launch.options import Options
from holdfast.launch.orphans import Register
from holdfast.launch.printer import Printer
from holdfast.launch.processes import Workers
from holdfast.launch.store import StoreProcess


def launch(options: Options, listener: socket.socket | None) -> int:
    """Runs the job, or the part of it that is on this host. Returns the exit code of the job.

    `listener` is where other launchers connect to this one.
    """
    register = Register(options)
    printer = Printer() if options.labels_lines else None
    try:
        if options.host == 0:
            code = coordinate(options, listener, register, printer)
        else:
            code = Follower(options, register, printer).run()
        register.close()
        return code
    finally:
        if printer is not None:
            printer.close()


def coordinate(options: Options, listener: socket.socket | None, register: Register,
               printer: Printer | None) -> int:
    """The launcher of host 0, which decides for all."""
    store = StoreProcess(listener, options.hosts > 1)
    coordinator = Coordinator(options, store.port)
    loop = Loop(coordinator.signal)
    try:
        hosts = Hosts(options.hosts, options.at_text, listener, loop, coordinator)
        workers = Workers(options.program, options.is_module, loop, _reporter(hosts, coordinator))
        workers.beat, workers.register = hosts.beat, register.note
        workers.logs, workers.printer = options.logs, printer
        hosts.add_own(workers, options.ranks)
        hosts.patience = options.wait
        loop.watch(store.ended, lambda: (loop.close(store.ended), loop.close(store.orphans),
                                        coordinator.store_lost()))
        loop.watch(store.orphans, lambda: [coordinator.orphaned(**one) for one in store.read_orphans()])
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


def _reporter(hosts: Hosts, coordinator: Coordinator) -> Any:
    """Passes on what the workers of this host report."""
    def report(said: dict[str, Any]) -> None:
        own = hosts.living[0]
        own.hear(said)
        coordinator.report(own, said)

    return report
