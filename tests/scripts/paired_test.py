"""bench/measuring must find a real difference, and none where there is only noise; it must tell a bar
that is missed from one that is met, and replace nothing but the section that it made."""

import contextlib
import io
import json
import math
import random
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from measuring import results
from measuring.events import events_of
from measuring.machines import is_busy
from measuring.options import parser
from measuring.pages import Section, table
from measuring.paired import Interval, difference, in_turns, interval, quantile


class PairedTest(unittest.TestCase):
    def test_every_round_has_each_way_once_in_a_changing_order(self) -> None:
        calls: list[str] = []
        ways = {name: lambda name=name: calls.append(name) or 0.0 for name in "abc"}
        in_turns(ways, 20)
        rounds = [tuple(calls[at : at + 3]) for at in range(0, 60, 3)]
        self.assertTrue(all(sorted(one) == ["a", "b", "c"] for one in rounds))
        self.assertGreater(len(set(rounds)), 3)

    def test_a_difference_below_the_drift_of_the_machine_is_found(self) -> None:
        noise = random.Random(1)
        drift = [100.0 * at for at in range(30)]
        base = [d + noise.gauss(0, 1) for d in drift]
        more = [d + 5 + noise.gauss(0, 1) for d in drift]
        found = difference(more, base)
        self.assertLess(abs(found.median - 5), 1)
        self.assertTrue(found.exceeds(3))
        self.assertFalse(found.exceeds(5))

    def test_an_interval_covers_the_median_as_often_as_it_says(self) -> None:
        noise, draws = random.Random(2), 10_000
        for count, says in ((3, 0.75), (7, 0.984), (11, 0.988)):
            for one in (lambda: noise.gauss(0, 1), lambda: noise.expovariate(1) - math.log(2)):
                seen = [interval([one() for _ in range(count)]) for _ in range(draws)]
                share = sum(each.low <= 0 <= each.high for each in seen) / draws
                self.assertAlmostEqual(seen[0].covers, says, 3)
                # Within what chance leaves: three standard deviations.
                away = 3 * math.sqrt(says * (1 - says) / draws)
                self.assertLess(abs(share - seen[0].covers), away, count)

    def test_an_interval_of_few_rounds_says_what_it_covers(self) -> None:
        self.assertEqual(str(interval([1.0, 3.0, 2.0])), "2.00 (1.00 to 3.00, 75 %)")
        self.assertEqual(str(interval(range(5))), "2.00 (0.00 to 4.00, 93 %)")
        self.assertEqual(str(interval(range(6))), "2.50 (0.00 to 5.00)")
        self.assertEqual(str(interval([2.5])), "2.50 (once)")

    def test_one_outlier_does_not_decide_a_high_quantile(self) -> None:
        self.assertEqual(quantile([1.0] * 98 + [1.1, 50.0], 0.99)[:3], (1.1, 1.0, 50.0))
        few = quantile([1.0] * 18 + [2.0, 3.0], 0.99)
        self.assertEqual(few[:3], (3.0, 2.0, 3.0))
        self.assertLess(few.covers, 0.2)  # the largest of 20 lies below with 0.99**20

    def test_only_an_interval_above_the_bar_exceeds_it(self) -> None:
        self.assertFalse(Interval(6, 4, 8, 0.95).exceeds(4))
        self.assertTrue(Interval(6, 4.1, 8, 0.95).exceeds(4))


class ResultsTest(unittest.TestCase):
    def bars(self) -> results.Bars:
        made = results.Bars()
        self.enterContext(contextlib.redirect_stdout(io.StringIO()))
        made.show("a figure without a bar", 7.0)
        made.at_most("at the bar", 2.0, 2.0)
        made.at_least("above it", 3.0, 2.0)
        made.at_most("an interval that reaches below the bar", Interval(6, 4, 8, 0.95), 4.0)
        return made

    def test_one_missed_bar_fails_all(self) -> None:
        self.assertTrue(self.bars().passed)
        for miss in (lambda bars: bars.at_most("more", 2.1, 2.0),
                     lambda bars: bars.at_least("less", 1.9, 2.0),
                     lambda bars: bars.at_most("no number", math.nan, 2.0),
                     lambda bars: bars.at_most("an interval", Interval(6, 4.1, 8, 0.95), 4.0)):
            bars = self.bars()
            miss(bars)
            self.assertFalse(bars.passed)

    def test_the_file_has_the_figures(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            results.write(path := Path(folder) / "figures.json", self.bars().figures)
            self.assertEqual(json.loads(path.read_text())["above it"],
                             {"median": 3.0, "bar": 2.0, "passed": True})
        results.write(None, {})

    def test_only_the_options_that_are_named_are_there(self) -> None:
        self.assertEqual(vars(parser("what it measures", rounds=5, json=None).parse_args(["--json", "a"])),
                         {"rounds": 5, "json": Path("a")})

    def test_a_machine_with_half_of_its_cores_at_work_is_quiet(self) -> None:
        self.assertFalse(is_busy({"load": 1.0, "cores": 2}))
        self.assertTrue(is_busy({"load": 1.1, "cores": 2}))

    def test_a_line_that_a_kill_cut_off_is_no_event(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "events").mkdir()
            (Path(folder) / "events/rank-0000.jsonl").write_text(
                '{"event": "a", "mono_ns": 2}\n{"event": "b", "mono_ns": 3}\n{"event": "a", "mo')
            (Path(folder) / "events/rank-0001.jsonl").write_text('{"event": "a", "mono_ns": 1}\n')
            self.assertEqual([one["mono_ns"] for one in events_of(Path(folder), "a")], [1, 2])


class SectionTest(unittest.TestCase):
    def test_what_stands_around_a_section_stays(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (page := Path(folder) / "page.md").write_text("before\n<!-- made by a: begin -->\nold\n"
                                                          "<!-- made by a: end -->\nafter\n")
            section = Section.made_by(page, "a")
            self.assertEqual(section.held(), "old\n")
            section.write(table(["x", "y"], [["1", "2"]]) + "\n")
            self.assertEqual(section.held(), "| x | y |\n|---|---|\n| 1 | 2 |\n")
            self.assertTrue(page.read_text().startswith("before\n"))
            self.assertTrue(page.read_text().endswith("\nafter\n"))
            with self.assertRaisesRegex(SystemExit, "has no lines <!-- made by b: begin -->"):
                Section.made_by(page, "b").write("new")


if __name__ == "__main__":
    unittest.main()
