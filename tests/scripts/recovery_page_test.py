"""Checks that the measured sections of docs/studies/recovery.md and docs/studies/papers.md are made from
the committed figures, and that figures of different machines are kept apart."""

import copy
import json
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from measuring.machines import this_machine
from measuring.pages import Section
from measuring.figures_file import Figures
from recovery_jobs import Kill, Line
from recovery_page import COMMAND, DOCS, geometric, ratios, sections
from recovery_swift import Setting, setting_rates

FIGURES = json.loads((ROOT / "bench/results/recovery.json").read_text())
OTHER = {"machine": "pdp11", "processor": "", "cores": 1, "load": 0.0}


def recovery_page(figures: dict) -> str:
    return sections(figures)[DOCS / "recovery.md"]


class RecoveryPageTest(unittest.TestCase):
    def test_the_pages_hold_what_the_script_makes(self):
        for page, made in sections(FIGURES).items():
            held = Section.made_by(page, COMMAND).held()
            self.assertEqual(held, made, f"{page}: run {COMMAND}")

    def test_another_figure_gives_another_page(self):
        other = copy.deepcopy(FIGURES)
        other["kills"]["holdfast"]["recovery"] = [9.0 for _ in other["kills"]["holdfast"]["recovery"]]
        other["rates"]["swift"] = {way: 1.0 for way in other["rates"]["swift"]}
        made, changed = sections(FIGURES), sections(other)
        for page in made:
            self.assertNotEqual(made[page], changed[page], page)

    def test_the_page_says_which_part_comes_from_another_machine(self):
        other = copy.deepcopy(FIGURES)
        other["machines"]["totals"] = OTHER
        self.assertIn("*totals* on pdp11 with 1 cores", recovery_page(other))
        other["machines"] = dict.fromkeys(FIGURES["machines"], OTHER)
        self.assertNotIn("different machines", recovery_page(other))

    def test_the_page_says_which_part_was_measured_on_a_busy_machine(self):
        other = copy.deepcopy(FIGURES)
        other["machines"] = {part: OTHER | {"load": 3.0 if part == "cost" else 0.0}
                             for part in FIGURES["machines"]}  # fmt: skip
        self.assertIn("too long: *cost* (3.0 of 1 cores were at work)", recovery_page(other))

    def test_a_way_whose_survivors_go_on_is_not_exact(self):
        other = copy.deepcopy(FIGURES)
        row = next(row for row in other["totals"] if row["way"] == "Holdfast")
        row = row | {"way": "torchft", "same_bits": False, "standstill": [1.25], "share": 0.75}
        other["totals"] = [one for one in other["totals"] if one["way"] != "torchft"] + [row]
        other["torchft"] = {"heartbeat_timeout_ms": 1000, "join_timeout_ms": 10000,
                            "quorum_tick_ms": 100, "patience": 2.0}  # fmt: skip
        page = recovery_page(other)
        line = next(line for line in page.splitlines() if line.startswith("| torchft |"))
        self.assertIn("| 1.25 |", line)
        self.assertTrue(line.endswith("| no |"), line)
        self.assertIn("25 % of the samples are in no update", page)

    def test_a_run_is_compared_with_holdfast_under_the_same_kills(self):
        ours = [{"sequence": 0, "total": 1.0}, {"sequence": 1, "total": 2.0}]
        self.assertEqual(ratios([{"sequence": 1, "total": 6.0}], ours), [3.0])

    def test_intervals_of_ratios_do_not_reach_below_zero(self):
        middle, low, high = geometric([0.5, 2.0, 8.0])
        self.assertAlmostEqual(middle, 2.0)
        self.assertTrue(0 < low < middle < high)
        self.assertAlmostEqual(low * high, middle**2)


class SwiftTest(unittest.TestCase):
    def test_a_rival_whose_lost_steps_are_free_reaches_the_factor_at_no_rate(self):
        setting = Setting("free", 100, (100, 100), 100, 25.0)
        made = setting_rates(setting, 1.0, lambda cost, step, mtbf: 1 + cost.restart / mtbf)
        self.assertTrue(all(one["crossing"] is None for one in made["bounds"]))

    def test_what_a_restart_redoes_makes_the_factor(self):
        """By hand: (1 + (20 + 50) / m) / (1 + 10 / m) is 1.16 at m = 365."""
        def total(cost, step, mtbf):
            interval = float(cost.schedule.removesuffix("s"))
            return 1 + (cost.restart + interval / 2) / mtbf

        made = setting_rates(Setting("one", 100, (100, 100), 100, 10.0), 1.0, total)
        for one in made["bounds"]:
            self.assertAlmostEqual(one["step"], 1.0)
            self.assertAlmostEqual(one["crossing"], 365, delta=8)  # interpolated
            self.assertGreater(one["ratios"][0], 1.16)


class FiguresTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "figures.json"

    def figures(self, machine: dict | None) -> Figures:
        machines = {"totals": machine, "cost": OTHER} if machine else {}
        self.path.write_text(json.dumps({"machines": machines, "totals": [{"sequence": 0}], "cost": 1}))
        return Figures(self.path)

    def test_totals_of_this_machine_are_continued(self):
        figures = self.figures(this_machine() | {"load": 0.0})
        self.assertEqual(figures.of_this_machine("totals"), [{"sequence": 0}])

    def test_totals_of_another_machine_are_refused(self):
        with self.assertRaisesRegex(SystemExit, "comes from pdp11 with 1 cores; expected .* --anew"):
            self.figures(OTHER).of_this_machine("totals")
        with self.assertRaisesRegex(SystemExit, "a machine that is not named"):
            self.figures(None).of_this_machine("totals")

    def test_a_part_that_is_measured_again_has_this_machine_and_others_keep_theirs(self):
        self.figures(OTHER).keep("totals", [])
        held = json.loads(self.path.read_text())
        self.assertLessEqual(this_machine().items(), held["machines"]["totals"].items())
        self.assertEqual(held["machines"]["cost"], OTHER)


class KillTest(unittest.TestCase):
    def test_survivors_that_go_on_stand_still_for_less_than_the_recovery(self):
        kill = Kill(at=10.0, rank=1, newest=5, known={1, 2})
        for pid, step, done in ((1, 6, 10.1), (1, 7, 12.0), (1, 8, 12.5), (3, 9, 13.0), (1, 10, 20.0)):
            kill.hear(Line(0, pid, step, 0.0, done, ""))
        self.assertEqual((kill.recovery, kill.lost), (3.0, 0))
        self.assertAlmostEqual(kill.standstill, 1.9)
        self.assertAlmostEqual(kill.delay(0.5), 1.0)

    def test_steps_that_are_made_again_are_standstill(self):
        kill = Kill(at=10.0, rank=1, newest=5, known={1, 2})
        for step, done in ((4, 18.0), (5, 18.5), (6, 19.0)):
            kill.hear(Line(0, 3, step, 0.0, done, ""))
        self.assertEqual((kill.recovery, kill.lost, kill.standstill), (8.0, 2, 9.0))


if __name__ == "__main__":
    unittest.main()
