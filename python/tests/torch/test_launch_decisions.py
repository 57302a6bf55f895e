"""What the launcher decides: its Coordinator alone, without processes."""

import signal

from holdfast.launch.coordinator import Coordinator
from holdfast.launch.hosts import Host, Hosts
from holdfast.launch.options import Options


class Job:
    """A job of one rank on each of some hosts. `done` has the commands, with their hosts."""

    def __init__(self, hosts=2, **options):
        self.coordinator = Coordinator(Options(1, ["train.py"], hosts=hosts, **options), 1)
        self.done = []
        self.hosts = Hosts(hosts, "", None, None, self.coordinator)
        for number in range(hosts):
            self.hosts.living[number] = Host(number, 1, lambda command, on=number: self.done.append(
                {"host": on, **command}))
        self.coordinator.begin(self.hosts)

    def started(self):
        """The serial number of the newest process of each rank."""
        return {one["rank"]: one["serial"] for one in self.done if one["do"] == "start"}

    def commands(self, kind):
        return [one for one in self.done if one["do"] == kind]

    def says(self, rank, kind, **told):
        self._report(rank, "message", message={"say": kind, **told})

    def dies(self, *ranks, code=-signal.SIGKILL, step=5):
        for rank in ranks:
            self._report(rank, "ended", code=code, why="", step=step, ago=0.0)
        self.coordinator.settle()

    def all_commit(self):
        for rank in range(self.hosts.number):
            self.says(rank, "committed", generation=self.coordinator._ranks.generation)

    def _report(self, rank, kind, **told):
        self.coordinator.report(self.hosts.living[rank], {
            "say": kind, "rank": rank, "serial": self.started()[rank], **told})


def test_only_a_second_ctrl_c_of_the_same_host_ends_the_job():
    job = Job()
    job.coordinator.signal(signal.SIGINT)
    job.coordinator.report(job.hosts.living[1], {"say": "signal", "number": signal.SIGINT})
    assert job.coordinator.outcome() is None and not job.commands("close")
    assert {one["number"] for one in job.commands("signal")} == {signal.SIGTERM}
    job.coordinator.report(job.hosts.living[1], {"say": "signal", "number": signal.SIGINT})
    assert job.coordinator.outcome() == 130 and job.commands("close")
