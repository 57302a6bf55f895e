"""Checks that docs/studies/corruption.md is made from the committed results, and checks the rules of its
verdicts."""

import copy
import json
import math
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "study/corruption"))
import intervals
import page
import verdicts
from cells import BITS, CRUCIAL, all_cells
from results import RESULTS, log_ratio

GIVEN = json.loads(RESULTS.read_text())


class PageTest(unittest.TestCase):
    def test_the_pages_hold_what_the_script_makes(self):
        again = "run study/corruption/page.py"
        self.assertEqual(page.PAGE.read_text(), page.make_page(GIVEN), again)
        held = page.PAPERS.read_text().partition(page.BEGIN)[2].partition(page.END)[0]
        self.assertEqual(held, page.papers_text(GIVEN), again)

    def test_other_results_give_another_page(self):
        other = copy.deepcopy(GIVEN)
        other["cells"]["bit-weights-30"] = page.NONE | {
            "machine": "A", "trials": 7, "outcomes": {"N-EV": 7}}
        self.assertNotEqual(page.make_page(GIVEN), page.make_page(other))
        self.assertNotEqual(page.papers_text(GIVEN), page.papers_text(other))

    def test_a_study_that_has_not_run_says_so(self):
        empty = page.Results({"machines": {}, "cells": {}, "pairs": {}})
        self.assertEqual({verdict.word for _, _, verdict in page.findings(empty)}, {"not run"})
        page.make_page({"machines": {}, "cells": {}, "pairs": {}})

    def test_cells_have_names_of_their_own(self):
        names = [cell.name for cell in all_cells()]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(set(GIVEN["cells"]) - set(names), set())


class IntervalsTest(unittest.TestCase):
    """Against published values."""

    def near(self, seen, expected, digits=4):
        for one, other in zip(seen, expected, strict=True):
            self.assertAlmostEqual(one, other, digits)

    def test_wilson(self):
        self.near(intervals.wilson(81, 263), (0.2553, 0.3662))  # Newcombe 1998, method 3
        self.near(intervals.wilson(0, 20), (0.0, 0.1611))
        self.near(intervals.wilson(1, 29), (0.0061, 0.1718))

    def test_difference_of_independent_rates(self):
        # Newcombe 1998 (Statistics in Medicine 17, 873-890), method 10, contrasts a and b.
        self.near(intervals.difference(56, 70, 48, 80), (0.0524, 0.3339))
        self.near(intervals.difference(9, 10, 3, 10), (0.1705, 0.8090))

    def test_difference_of_paired_rates(self):
        # The approval of a prime minister in two surveys: Agresti, Categorical Data Analysis.
        self.near(intervals.paired_difference(794, 150, 86, 1600), (0.021, 0.059), 3)
        low, high = intervals.paired_difference(300, 0, 0, 1068)
        self.assertTrue(-0.01 < low < 0 < high < 0.01)
        self.assertEqual(intervals.paired_difference(0, 0, 0, 0), (-1, 1))

    def test_fisher_and_mcnemar(self):
        self.assertAlmostEqual(intervals.fisher(3, 4, 1, 4), 34 / 70)  # the lady tasting tea
        self.assertAlmostEqual(intervals.fisher(10, 10, 0, 10), 2 / math.comb(20, 10))
        self.assertAlmostEqual(intervals.mcnemar(5, 15), 0.04138947)
        self.assertEqual(intervals.mcnemar(0, 0), 1)

    def test_holm(self):
        self.near(intervals.holm([0.01, 0.04, 0.03, 0.005]), (0.03, 0.06, 0.06, 0.02))
        self.assertEqual(intervals.holm([]), [])

    def test_median(self):
        self.assertEqual(intervals.median_interval(range(1, 11)), (5.5, 2, 9))
        self.assertEqual(intervals.median_interval([3.0]), (3.0, -math.inf, math.inf))
        self.assertEqual(intervals.median_interval([math.inf] * 20)[0], math.inf)


class VerdictsTest(unittest.TestCase):
    def bits(self, top: int, other: int, odd: int | None = None):
        cells = {f"bit-weights-{bit}": {"trials": 100, "outcomes": {"N-EV": other}} for bit in BITS}
        cells[f"bit-weights-{CRUCIAL}"]["outcomes"]["N-EV"] = top
        if odd is not None:
            cells["bit-weights-29"]["outcomes"]["N-EV"] = odd
        return verdicts.crucial_bit(cells).word

    def test_one_crucial_bit(self):
        self.assertEqual(self.bits(90, 1), "confirmed")
        self.assertEqual(self.bits(90, 1, 88), "undecided")
        self.assertEqual(self.bits(60, 1, 95), "refuted")
        self.assertEqual(verdicts.crucial_bit({}).word, "undecided")

    def pair(self, first: int, second: int, pairs: int = 1068):
        given = {"only_first": first, "only_second": second, "both": pairs // 4, "pairs": pairs}
        return verdicts.more_resilient(page.NO_PAIR | given).word

    def test_horovod_is_more_resilient(self):
        self.assertEqual(self.pair(60, 10), "confirmed")
        self.assertEqual(self.pair(10, 60), "refuted")
        self.assertEqual(self.pair(1, 0), "no relevant difference")
        self.assertEqual(self.pair(30, 25), "undecided")
        self.assertEqual(self.pair(0, 0, 50), "undecided")

    def alike(self, **row):
        row = {"pairs": 500, "above": 10, "below": 10, "low": -0.1, "high": 0.1} | row
        return verdicts.spreads_alike(page.NO_PAIR | {"pairs": 500, "spread": {"a": row}}).word

    def test_faults_spread_alike(self):
        self.assertEqual(self.alike(), "confirmed")
        self.assertEqual(self.alike(above=240, high=0.29), "undecided")
        self.assertEqual(self.alike(above=400, high=0.9), "refuted")
        self.assertEqual(self.alike(high="inf"), "undecided")

    def sensitive(self, weights: int, part: int):
        names = {name for names in verdicts.PARTS for name in names}
        return verdicts.more_sensitive({
            name: {"trials": 1068, "outcomes": {"degraded": weights if "weights" in name else part}}
            for name in names}).word  # fmt: skip

    def test_the_model_is_more_sensitive(self):
        self.assertEqual(self.sensitive(300, 200), "confirmed")
        self.assertEqual(self.sensitive(200, 300), "refuted")
        self.assertEqual(self.sensitive(200, 201), "undecided")

    def test_ratios_of_distances(self):
        self.assertEqual(log_ratio(0.0, 0.0), 0)
        self.assertEqual(log_ratio(0.0, 1e-3), math.inf)
        self.assertEqual(log_ratio(1e-3, 0.0), -math.inf)
        self.assertAlmostEqual(log_ratio(1e-3, 1e-2), 1)


if __name__ == "__main__":
    unittest.main()
