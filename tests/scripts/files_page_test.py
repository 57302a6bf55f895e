"""Checks that the measured section of bench/results/README.md is made from the committed figures, and that bars are judged."""

import contextlib
import copy
import io
import json
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from files_page import INDEXING, MEASURED, SHUFFLE, WINDOWS, judge, section
from measuring.results import Bars

COMMITTED = json.loads((ROOT / "bench/results/files.json").read_text())
RATES = {"holdfast": [300.0] * 6, "torch": [100.0] * 6}
INVENTED = {
    "machines": {part: {"machine": "pdp11", "processor": "", "cores": 1, "load": 0.0}
                 for part in ("native", "loader", "mount")},
    "bytes": 2_000_000_000, "rounds": 6,
    "native": {f"{cache}: {name}": {"median": 0.9, "bar": bar, "passed": True} for cache in ("cold", "cached")
               for name, bar in ((INDEXING, 0.5), (SHUFFLE, 0.8))}
    | {name: {"median": 0.25, "bar": 10.0, "passed": True} for name in WINDOWS},
    "loader": {"cold": RATES, "cached": RATES},
    "mount": {"raw": [4e9] * 6, "mount": [3e9] * 6, "shuffled": [1e9] * 6, "again": [4e9] * 6, "listed": [0.125] * 6},
}


def judged(figures: dict) -> Bars:
    bars = Bars()
    with contextlib.redirect_stdout(io.StringIO()):
        judge(figures, bars)
    return bars


class FilesPageTest(unittest.TestCase):
    def test_the_page_holds_what_the_script_makes(self):
        self.assertEqual(MEASURED.held(), section(COMMITTED), f"{MEASURED.page}: run bench/files_bench.py --doc")

    def test_every_way_is_in_the_table_and_has_its_bar(self):
        for text in ("2.0 GB of lines of 1 KiB on pdp11 with 1 cores; 6 rounds", "| 0.90 | 0.90 |",
                     "| 3.00 (3.00 to 3.00) | 3.00 (3.00 to 3.00) |", "|  | 0.75 (0.75 to 0.75) |",
                     "|  | 0.25 (0.25 to 0.25) |", "|  | 1.00 (1.00 to 1.00) |", "opened in 0.250 ms", "in 125.00 (125.00 to 125.00) ms"):
            self.assertIn(text, section(INVENTED))
        self.assertTrue(judged(INVENTED).passed)
        self.assertEqual(sum("bar" in one for one in judged(INVENTED).figures.values()), 10)

    def test_a_bar_that_is_missed_is_told(self):
        for change in (lambda one: one["native"][f"cold: {SHUFFLE}"].update(median=0.7),
                       lambda one: one["loader"]["cached"].update(torch=[200.0] * 6),
                       lambda one: one["mount"].update(mount=[2e9] * 6),
                       lambda one: one["mount"].update(listed=[2.0] * 6),
                       lambda one: one["native"][WINDOWS[0]].update(median=11.0)):
            other = copy.deepcopy(INVENTED)
            change(other)
            self.assertFalse(judged(other).passed)


if __name__ == "__main__":
    unittest.main()
