"""Checks that the measured sections of docs/recovery.md and docs/papers.md are made from the
committed figures."""

import copy
import json
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from recovery_page import BEGIN, END, sections

FIGURES = json.loads((ROOT / "bench/results/recovery.json").read_text())


class RecoveryPageTest(unittest.TestCase):
    def test_the_pages_hold_what_the_script_makes(self):
        for page, made in sections(FIGURES).items():
            held = page.read_text().partition(BEGIN)[2].partition(END)[0]
            self.assertEqual(held, made, f"{page}: run bench/recovery_bench.py --doc")

    def test_another_figure_gives_another_page(self):
        other = copy.deepcopy(FIGURES)
        other["kills"]["holdfast"]["recovery"] = [9.0 for _ in other["kills"]["holdfast"]["recovery"]]
        other["rates"]["swift"] = {way: 1.0 for way in other["rates"]["swift"]}
        made, changed = sections(FIGURES), sections(other)
        for page in made:
            self.assertNotEqual(made[page], changed[page], page)


if __name__ == "__main__":
    unittest.main()
