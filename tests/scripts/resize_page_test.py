"""Checks that the sections of docs/studies/elastic.md and docs/studies/papers.md about trainings that change
while they live are made from the committed figures, and that bars are judged by intervals."""

import contextlib
import copy
import io
import json
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from measuring.pages import Section
from measuring.results import Bars
from resize_page import CENTRAL, CHANGES, COMMAND, DOCS, RESTARTS, beyond_doubt, judge, sections

COMMITTED = json.loads((ROOT / "bench/results/resize.json").read_text())
ROUND = {"resize": {**{change: [0.3, 0.4] for change in CHANGES},
                    "phases": {change: [{"built": 0.1, "in all": 0.3}] for change in CHANGES}},
         **{way: {change: [6.0] for change in CHANGES} for way in RESTARTS}}
LOST = {str(dead): {"seconds": 1.0 * dead, "made again": 0} for dead in (1, 2, 3)}
INVENTED = {
    "machines": {"still": {"machine": "pdp11", "processor": "", "cores": 1, "load": 0.0}},
    "still": [ROUND] * 6,
    "lost": [{"holdfast": LOST, "torchrun": {dead: {"seconds": 9.0, "made again": 7} for dead in LOST}}] * 3,
    "turns": [{"resize": [9, 5, 3, 5, 9], "resize dp": [9, 5, 0, 5, 4], "torchrun": [9, 2, 0, 1, 2]}],
    "redeploy": [{CENTRAL: {"median": 2.5, "lower": 2.4, "upper": 2.6},
                  **{f"{way} by transport to other ranks": {"median": 1.0} for way in ("exchange", "Central")}}],
    "idle": [{"elastic": [110.0] * 11, "plain": [100.0] * 11, "look": 40.0}],
    "allocate": [{"phases": [[0.0, 4], [12.0, 2], [24.0, 1]], "length": 36.0, "measured": 90.0, "simulated": 84.0}],
}


def judged(figures: dict) -> Bars:
    bars = Bars()
    with contextlib.redirect_stdout(io.StringIO()):
        judge(figures, bars)
    return bars


class ResizePageTest(unittest.TestCase):
    def test_the_pages_hold_what_the_script_makes(self):
        for page, made in sections(COMMITTED).items():
            self.assertEqual(Section.made_by(page, COMMAND).held(), made, f"{page}: run {COMMAND}")

    def test_every_part_has_a_text_and_bars(self):
        made = sections(INVENTED)[DOCS / "elastic.md"]
        for text in ("pdp11 with 1 cores", "| 4 to 4 | tp=2,pp=2 → pp=2,dp=2 | 0.35 (0.30 to 0.40) |",
                     "| 2 of 4 | 2.00 (2.00 to 2.00, 75 %); 0 | 9.00 (9.00 to 9.00, 75 %); 7 |",
                     "| 9 | 5 | 3 | 5 | 9 | 31 | 1.00 | 1.00 |", "| 9 | 2 | 0 | 1 | 2 | 14 | 0.45 | 0.50 |",
                     "2.50 times as long", "0.04 %", "1.071 times as many"):
            self.assertIn(text, made)
        for text in ("0.35 (0.30 to 0.40) s from 4 to 4 workers", "takes 17 to 17 times as long",
                     "1.0 s against 9.0 s, 2.0 s against 9.0 s", "make 0.45 of the steps, and 0.50 of them",
                     "2.5 times as fast", "adds 0.04 % to a step"):
            self.assertIn(text, sections(INVENTED)[DOCS / "papers.md"])
        self.assertTrue(judged(INVENTED).passed)

    def test_what_is_beyond_doubt_between_policies_is_computed(self):
        def rows(count: int, *costs: float) -> list[dict]:
            return [{"ways": {name: {"overhead": cost + at} for name, cost in zip(("young", "coci", "auto"), costs)}}
                    for at in range(count)]  # fmt: skip

        self.assertEqual(beyond_doubt(rows(6, 50, 60, 40), "young"),
                         "Beyond doubt, by pairs with 95 % intervals: coci above young, auto below young.")
        for few_or_equal in (rows(5, 50, 60, 40), rows(6, 50, 50, 50)):
            self.assertEqual(beyond_doubt(few_or_equal, "young"), "No difference to young is beyond doubt.")

    def test_a_bar_is_missed_only_beyond_the_interval(self):
        other = copy.deepcopy(INVENTED)
        for row in other["still"]:
            row["torchrun"]["4 to 4"] = [5.0]
        other["still"][0]["torchrun"]["4 to 4"] = [0.9]
        other["still"][0]["resize"]["4 to 4"] = [0.03]  # 30 times: the interval contains the bar
        self.assertTrue(judged(other).figures["4 to 4: torchrun, Holdfast's checkpoint, of a change"]["passed"])
        for row in other["still"]:
            row["resize"]["4 to 4"] = [0.8, 0.9]
            row["torchrun"]["4 to 4"] = [5.0]
        figures = judged(other).figures
        self.assertFalse(figures["4 to 4: torchrun, Holdfast's checkpoint, of a change"]["passed"])
        self.assertTrue(figures["4 to 2: torchrun, Holdfast's checkpoint, of a change"]["passed"])

    def test_other_parts_miss_their_bars_too(self):
        for part, change in (("redeploy", lambda row: row[CENTRAL].update(median=1.9)),
                             ("idle", lambda row: row.update(elastic=[400.0] * 11)),
                             ("allocate", lambda row: row.update(measured=97.0))):
            other = copy.deepcopy(INVENTED)
            change(other[part][0])
            self.assertFalse(judged(other).passed, part)


if __name__ == "__main__":
    unittest.main()
