"""Checks that the measured section of docs/failures.md is made from the committed figures."""

import copy
import json
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from measuring.machines import is_busy
from watch_page import MEASURED, section

FIGURES = json.loads((ROOT / "bench/results/watch.json").read_text())


class WatchPageTest(unittest.TestCase):
    def test_the_page_holds_what_the_script_makes(self):
        self.assertEqual(MEASURED.held(), section(FIGURES),
                         f"{MEASURED.page}: run bench/watch_bench.py --doc")

    def test_another_figure_gives_another_page(self):
        other = copy.deepcopy(FIGURES)
        other["detection"][0]["seen"] += 1
        self.assertNotEqual(section(other), section(FIGURES))

    def test_the_chance_that_the_watch_tells_agrees_with_the_flips(self):
        """On a busy machine the times of the flips are not exact enough to tell."""
        busy = is_busy(FIGURES)
        for one in FIGURES["detection"]:
            self.assertGreaterEqual(one["flips"], 1000)
            self.assertTrue(one["agrees"] or busy, one)


if __name__ == "__main__":
    unittest.main()
