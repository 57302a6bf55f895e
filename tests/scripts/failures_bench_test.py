"""bench/failures_bench.py must compare policies within each sequence of kills."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from failures_bench import dearer_than_young, over_sequences

# Sequences differ much more than policies do within a sequence.
YOUNG = (10.0, 40.0, 90.0)


def rows(auto: tuple[float, ...]) -> list[dict]:
    return [{"example": "gpt", "sequence": number, "policy": policy, "overhead": seconds}
            for number, pair in enumerate(zip(YOUNG, auto))
            for policy, seconds in zip(("young", "auto"), pair)]  # fmt: skip


class FailuresBenchTest(unittest.TestCase):
    def test_differences_are_taken_within_a_sequence(self) -> None:
        seen = over_sequences(rows((12.0, 43.0, 92.5)))["auto"]
        self.assertAlmostEqual(seen["against_first"][0], 2.5)
        # Student's 4.302653 times the standard deviation of 0.5, divided by the root of 3
        self.assertAlmostEqual(seen["against_first"][1], 4.302653 * 0.5 / 3**0.5, 6)
        self.assertGreater(seen["overhead"][1], 50)

    def test_auto_is_dearer_only_if_its_whole_interval_is(self) -> None:
        self.assertEqual(len(dearer_than_young(rows((12.0, 43.0, 92.5)))), 1)
        self.assertEqual(dearer_than_young(rows((12.0, 49.0, 89.0))), [])
        self.assertEqual(dearer_than_young(rows((12.0,))), [])  # one sequence says nothing


if __name__ == "__main__":
    unittest.main()
