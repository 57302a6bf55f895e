"""The socket on which the launcher of host 0 listens for those of other hosts. It is opened before torch is
imported, which takes seconds, so that a wrong address is refused at once."""

import socket
import time

from holdfast.launch.options import Options

LOOK = 0.2  # seconds between two attempts to connect


class Refused(Exception):
    """This launcher cannot be part of the job."""


def open_listener(options: Options) -> socket.socket | None:
    """Host 0 begins to listen; another host waits until somebody listens there."""
    if options.at is None:
        return None
    return _listen(options) if options.host == 0 else _wait_for_listener(options)


def no_answer(options: Options, why: str) -> Refused:
    """What is wrong if the launcher of host 0 does not answer."""
    return Refused(f"--at {options.at_text}: {why}, for {options.wait:g} s; expected the launcher of "
                   "host 0 there")


def _listen(options: Options) -> socket.socket:
    assert options.at is not None
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        return socket.create_server(("", options.at[1]), family=family,
                                    dualstack_ipv6=family == socket.AF_INET6)
    except OSError as error:
        raise Refused(f"--at {options.at_text}: {error.strerror}; expected a free port of this "
                      "machine") from error


def _wait_for_listener(options: Options) -> None:
    deadline = time.monotonic() + options.wait
    while True:
        try:
            return socket.create_connection(options.at, timeout=max(1.0, options.wait)).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise no_answer(options, error.strerror or str(error)) from error
        time.sleep(LOOK)
