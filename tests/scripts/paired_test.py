"""bench/paired.py must find a real difference, and none where there is only noise."""

import random
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from paired import Interval, difference, in_turns, interval, quantile


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

    def test_the_interval_covers_the_median_as_often_as_it_says(self) -> None:
        noise = random.Random(2)
        hits = 0
        for _ in range(200):
            one = interval([noise.gauss(0, 1) for _ in range(18)], resamples=400)
            hits += one.low <= 0 <= one.high
        self.assertGreater(hits, 180)

    def test_one_outlier_does_not_decide_a_high_quantile(self) -> None:
        values = [1.0] * 98 + [1.1, 50.0]
        self.assertEqual(quantile(values, 0.99), Interval(1.1, 1.0, 50.0))
        self.assertEqual(quantile([1.0] * 18 + [2.0, 3.0], 0.99), Interval(3.0, 2.0, 3.0))

    def test_only_an_interval_above_the_bar_exceeds_it(self) -> None:
        self.assertFalse(Interval(6, 4, 8).exceeds(4))
        self.assertTrue(Interval(6, 4.1, 8).exceeds(4))


if __name__ == "__main__":
    unittest.main()
