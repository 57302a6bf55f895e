"""Tests on which host the launcher starts processes that help a replacement, and when it ends them."""

from holdfast.launch.helpers import Helpers
from holdfast.launch.rank import Rank
from holdfast.launch.worker_identity import HELPERS


class Host:
    """Keeps the commands that a host gets."""

    def __init__(self):
        self.commands = []

    def do(self, command):
        self.commands.append(command["do"])


def rank_on(host, number, **more):
    return Rank(number, 0, host, serial=number + 1, exit_code=None, **more)


def test_a_single_lost_rank_gets_as_many_helpers_as_it_has_said():
    ranks = [rank_on(Host(), number, helps=many) for number, many in enumerate((3, 1))]
    assert [Helpers().count_for(one, is_single=True) for one in ranks] == [3, 0]


def test_where_several_ranks_are_lost_none_gets_helpers():
    helpers, ranks = Helpers(), [rank_on(Host(), number, helps=3) for number in range(2)]
    assert [helpers.count_for(ranks[k], is_single=k == 1) for k in range(2)] == [0, 0]
    assert helpers.why_alone == "several ranks were lost"
    helpers.done()
    assert helpers.count_for(ranks[0], is_single=True) == 3


def report(helper, **what):
    return {"rank": helper.number, "serial": helper.serial, **what}


def test_a_helper_that_dies_ends_the_replacement_unless_that_is_whole():
    for code, is_whole, killed in ((-9, False, ["kill"]), (-9, True, []), (0, False, [])):
        host, helpers = Host(), Helpers()
        helped = rank_on(host, 1, is_whole=is_whole)
        helper = helpers.add(helped, 1, 7)
        assert helper.number > HELPERS
        assert helpers.hear(host, report(helper, say="ended", code=code, why=""), is_filling=True)
        assert host.commands == killed
        assert helpers.why_alone == ("one of them has died" if killed else "")


def test_helpers_that_are_not_needed_are_ended_and_not_heard_of_again():
    host, helpers = Host(), Helpers()
    helper = helpers.add(rank_on(host, 1, is_whole=False), 1, 7)
    helpers.told(rank_on(host, 1), {})
    assert host.commands == ["kill"]
    assert helpers.hear(host, report(helper, say="ended", code=-9, why="x"), is_filling=True)
    assert host.commands == ["kill"] and not helpers.why_alone
    assert not helpers.hear(host, {"rank": 1, "serial": 2, "say": "ended"}, is_filling=True)
