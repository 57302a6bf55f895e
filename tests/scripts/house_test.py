"""What was made one mechanism stays one."""

import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import house  # noqa: E402: it is beside the scripts


class HouseTest(unittest.TestCase):
    def test_no_mechanism_exists_twice_again(self):
        self.assertEqual(house.doubles(), [])

    def test_it_counts(self):
        counted = house.count(None)
        self.assertGreater(counted["lines of product C++"], 10_000)
        self.assertGreater(counted["lines of product Python"], 10_000)


if __name__ == "__main__":
    unittest.main()
