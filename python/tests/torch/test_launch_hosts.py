"""`holdfast launch` on several hosts. In the quick tests they are launchers that share this machine's
address; in the long ones each has a network namespace of its own."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_launch import LONG, Launch, until

from holdfast.launch.hosts import proof, token
from holdfast.launch.messages import send

NAMESPACES = pytest.mark.skipif(
    not os.environ.get("HOLDFAST_LONG") or os.getuid() != 0 or not shutil.which("ip"),
    reason="needs HOLDFAST_LONG=1, root and ip")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Cluster:
    """Launchers of one job, by host."""

    def __init__(self, run, steps, events=(), *, hosts=2, of=None, ranks=1, wait=60, pace=0.05, at=None,
                 prefix=None, through=None):
        """`through` is the port of a Proxy that stands between host 0 and the others."""
        self.at = at or f"127.0.0.1:{free_port()}"
        self._make = lambda host, wait=wait: Launch(
            run, steps, events, ranks=ranks, pace=pace, prefix=prefix(host) if prefix else None,
            options=["--hosts", of or hosts, "--host", host, "--wait", wait,
                     "--at", self.at if host == 0 or through is None else f"127.0.0.1:{through}"],
            variables={} if through is None else {"HOLDFAST_LAUNCH_TOKEN": "known to all"})
        self.run = run
        self.launchers = {}
        self._stack = contextlib.ExitStack()
        for host in range(hosts):
            self.add(host)

    def add(self, host, **options):
        self.launchers[host] = self._stack.enter_context(self._make(host, **options))
        return self.launchers[host]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._stack.__exit__(*error)

    def said(self):
        return "".join(f"--- host {host}\n{one.said()}" for host, one in self.launchers.items())

    def end_well(self, whole, ranks):
        codes = {host: one.process.wait(200) for host, one in self.launchers.items()
                 if one.process.returncode is None}
        assert set(codes.values()) == {0}, self.said()
        ends = {Path(f"{self.run}.end.{rank}").read_text() for rank in range(ranks)}
        assert ends == {whole}, self.said()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What runs of 2 and of 4 ranks and 16 steps end with if nothing happens."""
    made = {}

    def run(ranks):
        if ranks not in made:
            path = tmp_path_factory.mktemp("whole") / "run"
            with Launch(path, 16, ranks=ranks) as job:
                code, said = job.end()
            assert code == 0, said
            made[ranks] = Path(f"{path}.end.0").read_text()
        return made[ranks]

    return run


def test_a_rank_of_another_host_is_replaced_and_a_spare_takes_the_place_of_a_host(tmp_path, whole):
    with Cluster(tmp_path / "run", 16, ["1:4:kill"], pace=0.1) as job:
        job.add("spare")
        first = job.launchers[0]
        until(lambda: "step 4 goes on" in first.said(), 200, job)
        job.launchers[1].process.kill()
        assert job.launchers[1].process.wait() == -signal.SIGKILL
        job.end_well(whole(2), 2)
        said = first.said()
        assert "host 1: its launcher has ended" in said
        assert len(re.findall("replica, exact, 0 steps lost", said)) == 2, job.said()


def test_a_ctrl_c_that_srun_sends_to_all_launchers_is_one_and_all_ranks_save(tmp_path):
    with Cluster(tmp_path / "run", 1000) as job:
        job.launchers[0].until_step(2)
        for one in job.launchers.values():
            one.process.send_signal(signal.SIGINT)
        assert {one.process.wait(60) for one in job.launchers.values()} == {143}, job.said()
        last = max(job.launchers[0].losses())
        assert f"stopped after step {last}, which is saved" in job.said()


def test_a_job_that_was_suspended_on_all_hosts_goes_on(tmp_path, whole):
    with Cluster(tmp_path / "run", 16, pace=0.1) as job:
        job.launchers[0].until_step(2)
        first, second = (one.process for one in job.launchers.values())
        first.send_signal(signal.SIGSTOP)
        time.sleep(0.4)  # so that nothing of the first launcher waits to be read when the second goes on
        second.send_signal(signal.SIGSTOP)
        for pid in job.launchers[0].pids():
            os.kill(pid, signal.SIGSTOP)
        time.sleep(2.8)
        for pid in job.launchers[0].pids():
            os.kill(pid, signal.SIGCONT)
        second.send_signal(signal.SIGCONT)
        time.sleep(0.4)
        first.send_signal(signal.SIGCONT)
        job.end_well(whole(2), 2)
        assert "no sign of life" not in job.said() and "died" not in job.said(), job.said()


class Proxy:
    """Passes on what launchers say to each other, as a network does."""

    SCRIPT = """
import os, socket, sys, threading

def pass_on(a, b):
    try:
        while data := a.recv(65536):
            b.sendall(data)
    except OSError:
        pass
    for one in (a, b):
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

door = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    guest, _ = door.accept()
    try:
        host = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    except OSError:
        guest.close()
        continue
    for pair in ((guest, host), (host, guest)):
        threading.Thread(target=pass_on, args=pair, daemon=True).start()
"""

    def __init__(self):
        self.port, self._to = free_port(), free_port()
        self.at = f"127.0.0.1:{self._to}"
        self.start()

    def start(self):
        self.process = subprocess.Popen([sys.executable, "-c", self.SCRIPT, str(self.port), str(self._to)])

    def end(self):
        """Ends all connections, and takes no others."""
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def test_launchers_whose_connection_is_cut_make_it_again_and_no_rank_dies_of_it(tmp_path, whole):
    with Proxy() as proxy, Cluster(tmp_path / "run", 16, ["1:7:kill"], pace=0.4, at=proxy.at,
                                   through=proxy.port) as job:
        job.launchers[0].until_step(2)
        proxy.process.send_signal(signal.SIGSTOP)  # nothing comes through, and nothing ends
        for said in (job.launchers[0].said, job.launchers[1].said):
            until(lambda: "no sign of life for 3 s, or " in said(), 30, job)
        proxy.process.send_signal(signal.SIGCONT)
        until(lambda: "host 1: its launcher is connected again" in job.said(), 30, job)
        until(lambda: "host 0 is connected again" in job.launchers[1].said(), 30, job)
        proxy.end()
        until(lambda: "host 1: its launcher has ended, or its connection is cut" in job.said(), 30, job)
        # The rank that dies is replaced as soon as its launcher can tell of it.
        until(lambda: Path(f"{job.run}.did-kill-1-7").exists(), 30, job)
        proxy.start()
        job.end_well(whole(2), 2)
        assert job.said().count("the launcher of host 0 is connected again") == 2, job.said()
        assert re.findall(r"rank (\d) .* died", job.said()) == ["1"], job.said()
        assert job.said().count("replica, exact, 0 steps lost") == 1, job.said()


@LONG
def test_ranks_of_a_host_that_is_away_wait_to_hear_of_a_death_on_host_0(tmp_path, whole):
    with Proxy() as proxy, Cluster(tmp_path / "run", 16, ["0:7:kill"], pace=0.2, at=proxy.at,
                                   through=proxy.port) as job:
        job.launchers[0].until_step(4)
        proxy.end()
        until(lambda: Path(f"{job.run}.did-kill-0-7").exists(), 30, job)
        time.sleep(15)  # longer than a rank waits for a launcher that does not say why it is cut off
        proxy.start()
        job.end_well(whole(2), 2)
        assert re.findall(r"rank (\d) .* died", job.said()) == ["0"], job.said()
        assert job.said().count("replica, exact, 0 steps lost") == 1, job.said()


@LONG
def test_a_host_that_was_replaced_while_it_was_away_is_sent_away(tmp_path, whole):
    with Proxy() as proxy, Cluster(tmp_path / "run", 16, pace=0.2, at=proxy.at, through=proxy.port) as job:
        job.launchers[0].until_step(2)
        proxy.end()
        until(lambda: "or its connection is cut" in job.launchers[0].said(), 30, job)
        other = job._stack.enter_context(Launch(
            job.run, 16, ranks=1, pace=0.2, variables={"HOLDFAST_LAUNCH_TOKEN": "known to all"},
            options=["--hosts", 2, "--host", 1, "--at", proxy.at]))
        until(lambda: "goes on" in job.launchers[0].said(), 60, job)
        proxy.start()
        code, said = job.launchers.pop(1).end(60)
        assert code == 1 and "refused: another host has the place of host 1" in said, said  # it has saved nothing
        job.end_well(whole(2), 2)
        assert other.end(60)[0] == 0, other.said()
        assert job.said().count("replica, exact, 0 steps lost") == 1, job.said()


def test_ranks_may_end_and_a_spare_may_wait_while_connections_are_cut(tmp_path, whole):
    with Proxy() as proxy, Cluster(tmp_path / "run", 16, at=proxy.at, through=proxy.port) as job:
        job.add("spare")
        job.launchers[0].until_step(0)
        proxy.end()
        until(lambda: Path(f"{job.run}.end.1").exists(), 60, job)
        proxy.start()
        job.launchers.pop("spare")  # the job may end before it is connected again
        job.end_well(whole(2), 2)
        assert "died" not in job.said(), job.said()


@LONG
def test_a_stop_signal_ends_the_wait_for_a_host_that_is_away(tmp_path):
    with Proxy() as proxy, Cluster(tmp_path / "run", 1000, at=proxy.at, through=proxy.port) as job:
        job.launchers[0].until_step(3)
        proxy.end()
        until(lambda: "or its connection is cut" in job.launchers[0].said(), 30, job)
        job.launchers[0].process.send_signal(signal.SIGTERM)
        assert {one.process.wait(40) for one in job.launchers.values()} == {143}, job.said()
        assert f"stopped after step {max(job.launchers[0].losses())}, which is saved" in job.said()


@LONG
def test_a_new_launcher_takes_the_place_of_one_that_was_killed(tmp_path, whole):
    with Cluster(tmp_path / "run", 16, pace=0.2) as job:
        job.launchers[0].until_step(3)
        job.launchers[1].process.kill()
        until(lambda: "for another host in place of host 1" in job.launchers[0].said(), 30, job)
        job.add(1)
        job.end_well(whole(2), 2)
        assert job.said().count("replica, exact, 0 steps lost") == 1, job.said()


@LONG
def test_survivors_save_if_no_other_host_comes(tmp_path, whole):
    with Cluster(tmp_path / "run", 1000, pace=0.1, wait=1) as job:
        first = job.launchers[0]
        first.until_step(3)
        job.launchers[1].process.kill()
        code, said = first.end()
        assert code == 143, said
        assert "host 1: not there after 1 s" in said and "which is saved" in said
        last = max(first.losses())
        assert f"stopped after step {last}, which is saved" in said
    with Launch(tmp_path / "run", last + 2) as again:
        assert again.end()[0] == 0, again.said()
        assert [step for step, *_ in again.lines()] == list(range(last + 2))


@LONG
def test_the_other_ranks_save_if_the_first_launcher_is_killed(tmp_path):
    with Cluster(tmp_path / "run", 1000) as job:
        job.launchers[0].until_step(3)
        job.launchers[0].process.kill()
        code, said = job.launchers[1].end()
        assert code == 143 and "the launcher of host 0: it has ended" in said
        until(lambda: "which is saved" in job.launchers[0].said(), 30, job)


def test_the_other_launchers_end_with_1_if_host_0_is_lost_with_its_ranks(tmp_path):
    with Cluster(tmp_path / "run", 1000, wait=1) as job:
        job.launchers[0].until_step(3)
        ranks = job.launchers[0].pids()
        job.launchers[0].process.kill()
        for pid in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        code, said = job.launchers[1].end(60)
        assert code == 1 and "ranks here save if they can, and end" in said, said
        assert "which is saved" not in job.said()


def test_a_dead_address_is_refused_in_seconds(tmp_path):
    began = time.monotonic()
    with Launch(tmp_path / "run", 1, options=["--hosts", 2, "--host", 1, "--wait", 1, "--at",
                                              f"127.0.0.1:{free_port()}"]) as job:
        code, said = job.end()
    assert code == 1 and "for 1 s; expected the launcher of host 0 there" in said
    assert time.monotonic() - began < 20


def test_commands_that_come_together_with_the_welcome_are_carried_out(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as door:
        at = f"127.0.0.1:{door.getsockname()[1]}"
        with Launch(tmp_path / "run", 1, options=["--hosts", 2, "--host", 1, "--at", at]) as job:
            door.accept()[0].close()  # it looks whether somebody listens before it imports torch
            guest, _ = door.accept()
            with guest:
                send(guest, number="0" * 32)
                hello = json.loads(guest.makefile().readline())
                welcome = {"do": "welcome", "proof": proof(token(at), hello["number"], "coordinator")}
                end = {"do": "end", "code": 7}
                guest.sendall("".join(f"{json.dumps(one)}\n" for one in (welcome, end)).encode())
                code, said = job.end(20)
    assert code == 7, said


@LONG
def test_another_token_is_refused(tmp_path):
    with Cluster(tmp_path / "run", 1, hosts=1, of=2) as job:
        with Launch(tmp_path / "other", 1, variables={"HOLDFAST_LAUNCH_TOKEN": "another"}, options=[
                "--hosts", 2, "--host", 1, "--at", job.at]) as other:
            code, said = other.end()
        assert code == 1 and "refused: another token; expected the same HOLDFAST_LAUNCH_TOKEN" in said
        job.launchers[0].process.send_signal(signal.SIGTERM)
        assert job.launchers[0].process.wait(60) == 143


# Each host has a network namespace of its own.


class Network:
    """Two network namespaces, with a bridge between them."""

    def __init__(self, name):
        self.name = name
        self._ip("link", "add", f"{name}b", "type", "bridge")
        self._ip("link", "set", f"{name}b", "up")
        for host in range(3):
            self._ip("netns", "add", f"{name}-{host}")
            self._ip("link", "add", f"{name}v{host}", "type", "veth", "peer", "name", "eth0", "netns",
                     f"{name}-{host}")
            self._ip("link", "set", f"{name}v{host}", "master", f"{name}b", "up")
            for command in (["addr", "add", f"10.87.0.{host + 1}/24", "dev", "eth0"],
                            ["link", "set", "eth0", "up"], ["link", "set", "lo", "up"]):
                self._ip("-n", f"{name}-{host}", *command)

    def prefix(self, host):
        return ["ip", "netns", "exec", f"{self.name}-{2 if host == 'spare' else host}"]

    def cut(self, host):
        self._ip("link", "set", f"{self.name}v{host}", "down")

    def mend(self, host):
        self._ip("link", "set", f"{self.name}v{host}", "up")

    def close(self):
        for host in range(3):
            self._ip("netns", "del", f"{self.name}-{host}", check=False)
            self._ip("link", "del", f"{self.name}v{host}", check=False)
        self._ip("link", "del", f"{self.name}b", check=False)

    @staticmethod
    def _ip(*arguments, check=True):
        subprocess.run(["ip", *arguments], check=check, capture_output=not check)


@pytest.fixture
def network():
    made = Network(f"hf{os.getpid() % 100000}")
    yield made
    made.close()


@NAMESPACES
def test_ranks_of_two_hosts_with_networks_of_their_own_are_replaced(tmp_path, whole, network):
    with Cluster(tmp_path / "run", 16, ["0:4:kill", "3:7:kill", "2:9:stop", "1:11:kill"], ranks=2,
                 at="10.87.0.1:29400", prefix=network.prefix) as job:
        job.end_well(whole(4), 4)
        assert len(re.findall("replica, exact, 0 steps lost", job.said())) == 4, job.said()


@NAMESPACES
@pytest.mark.parametrize("seconds", [2, 6])
def test_a_job_goes_on_after_a_link_was_cut_for_seconds(tmp_path, whole, network, seconds):
    with Cluster(tmp_path / "run", 16, ranks=2, at="10.87.0.1:29400", prefix=network.prefix,
                 pace=0.2) as job:
        job.launchers[0].until_step(4)
        network.cut(1)
        time.sleep(seconds)
        network.mend(1)
        job.end_well(whole(4), 4)
        assert "died" not in job.said() and "starts again" not in job.said(), job.said()
        assert ("host 1: its launcher is connected again" in job.said()) or seconds < 3, job.said()


@NAMESPACES
def test_after_a_partition_the_side_of_host_0_goes_on_with_a_spare(tmp_path, whole, network):
    with Cluster(tmp_path / "run", 16, ranks=2, at="10.87.0.1:29400", prefix=network.prefix,
                 pace=0.2, wait=8) as job:
        job.add("spare", wait=60)
        job.launchers[0].until_step(4)
        network.cut(1)
        code, said = job.launchers[1].end()
        assert code == 1 and "the launcher of host 0: no sign of life for 3 s" in said  # nothing could be saved there
        job.end_well(whole(4), 4)
        assert "host 1: no sign of life for 3 s" in job.said()


@NAMESPACES
def test_after_a_partition_without_a_spare_the_side_of_host_0_saves(tmp_path, network):
    with Cluster(tmp_path / "run", 1000, ranks=2, at="10.87.0.1:29400", prefix=network.prefix,
                 pace=0.1, wait=2) as job:
        first = job.launchers[0]
        first.until_step(4)
        network.cut(1)
        code, said = first.end()
        assert code == 143, job.said()
        assert f"stopped after step {max(first.losses())}, which is saved" in said
        assert job.launchers[1].end()[0] == 1, job.said()  # that side could not save
