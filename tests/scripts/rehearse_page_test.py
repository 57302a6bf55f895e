"""Checks that the measured section of docs/rehearse.md is made from the committed figures."""

import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from rehearse_page import MEASURED, committed, section

SEEN = {"machine": "x86_64", "processor": "", "cores": 2, "load": 0.1, "step_ms": 31.0,
        "ratio": {"median": 1.2, "low": 1.1, "high": 1.31}}  # fmt: skip


class RehearsePageTest(unittest.TestCase):
    def test_the_page_holds_what_the_script_makes(self):
        self.assertEqual(MEASURED.held(), section(committed()),
                         f"{MEASURED.page}: run bench/rehearse_bench.py --doc")

    def test_a_figure_stands_in_the_page_with_its_interval_and_its_file(self):
        for part in ("takes 1.20 times", "1.10 to 1.31", "rehearse.json", "steps of 31 ms"):
            self.assertIn(part, section(SEEN))

    def test_a_busy_machine_gives_no_figure(self):
        self.assertNotIn("1.20", section({**SEEN, "load": 1.9}))


if __name__ == "__main__":
    unittest.main()
