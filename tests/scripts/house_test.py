"""What was made one mechanism stays one."""

import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import house  # noqa: E402: it is beside the scripts


class HouseTest(unittest.TestCase):
    def test_no_mechanism_exists_twice_again(self):
        self.assertEqual(house.doubles(), [])

    def test_statistics_that_come_back_are_seen(self):
        planted = {"study/own.py": "def wilson(hits, trials):\n", "bench/a/t.py": "x = s.stdev(y)\n",
                   "study/list.py": 'HARM = ("crashed", "timed out", "N-EV")\n',
                   "holdfast/cli/own.cpp": "double x = std::erfc(y);\n"}  # fmt: skip
        fine = {"bench/uses.py": "from holdfast.statistics import holm, wilson_interval\n",
                "holdfast/statistics/statistics.cpp": "std::lgamma(x)\n"}  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (planted | fine).items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            seen = house.statistics_again(Path(folder))
        self.assertEqual(sorted(fault.partition(":")[0] for fault in seen), sorted(planted))

    def test_it_counts(self):
        counted = house.count(None)
        self.assertGreater(counted["lines of product C++"], 10_000)
        self.assertGreater(counted["lines of product Python"], 10_000)


if __name__ == "__main__":
    unittest.main()
