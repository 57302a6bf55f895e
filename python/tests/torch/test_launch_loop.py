"""The loop of a launcher, and processes that it has just forked."""

import os
import signal
import socket
import tempfile
from pathlib import Path

import pytest

from holdfast.launch.loop import Loop
from holdfast.launch.processes import Workers
from holdfast.launch.worker_identity import HELPERS


@pytest.fixture
def loop():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    yield Loop(lambda _: None)
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_new_source_is_not_taken_for_one_that_had_its_number(loop):
    """Two ranks ask at once that all start again: the second word is that of a process which is gone."""
    (first, to_first), (second, to_second) = sorted((socket.socketpair() for _ in range(2)),
                                                    key=lambda pair: pair[0].fileno())
    number, heard = second.fileno(), []
    new, to_new = socket.socketpair()

    def start_again():
        loop.close(first)
        loop.close(second)
        os.dup2(new.fileno(), number)
        loop.watch(number, lambda: heard.append(os.read(number, 9)))

    loop.watch(first, start_again)
    loop.watch(second, lambda: heard.append("of a source that was closed"))
    to_first.send(b"again")
    to_second.send(b"again")
    new.setblocking(False)  # else a launcher that reads too early would wait here
    loop.turn()
    assert not heard
    to_new.send(b"begins")
    loop.turn()
    assert heard == [b"begins"]


def start(workers, number, **more):
    identity = {"home": 0, "members": [0], "hosts": [0], "generation": 0, "incarnation": 0, "configuration": "",
                "can_change": False, "is_rebuilt": False, **more}
    workers.do({"do": "start", "rank": number, "serial": 1, "is_replacement": False, "identity": identity,
                "job": {"id": "job", "address": "127.0.0.1", "port": 1, "local": [0, 1]}})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_stop_signal_ends_a_process_that_cannot_hear_it_yet(loop, tmp_path, monkeypatch, number):
    script, reports = tmp_path / "script.py", []
    script.write_text("")
    workers = Workers([str(script)], False, loop, reports.append)
    # The first that a forked process does.
    monkeypatch.setattr(loop, "let_go_in_child", lambda: os.kill(os.getpid(), number))
    start(workers, 0)
    while not (codes := [one["code"] for one in reports if one["say"] == "ended"]):
        loop.turn()
    assert codes == [-number]


def test_a_helper_has_a_folder_that_is_new_and_of_its_user_alone_and_goes_with_it(loop, tmp_path, monkeypatch):
    """A folder whose name another user of the machine can guess could be there before, with a run in it."""
    script, told, reports = tmp_path / "script.py", tmp_path / "told", []
    script.write_text("import os\nfrom holdfast.torch.recover import worker_side\n"
                      "folder = worker_side._side.link.folder\n"
                      f"with open({str(told)!r}, 'a') as told:\n"
                      "    print(folder, oct(os.stat(folder).st_mode), os.getpid(), file=told)\n")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    workers = Workers([str(script)], False, loop, reports.append)
    workers._make_log(0)
    for number in (1, 2):
        start(workers, HELPERS + number, helped=0, helper=number, helpers=3)
    while len([one for one in reports if one["say"] == "ended"]) < 2:
        loop.turn()
    seen = [line.split() for line in told.read_text().splitlines()]
    assert len({folder for folder, _, _ in seen}) == 2 and {mode for _, mode, _ in seen} == {"0o40700"}
    assert all(Path(folder).parent == temporary and not folder.endswith(f"-{pid}") for folder, _, pid in seen)
    assert list(temporary.iterdir()) == []
