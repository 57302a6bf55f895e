"""Checks that docs/studies/corruption.md is made from the committed results, and checks the rules of its
verdicts."""

import copy
import json
import re
import sys
import tarfile
import unittest
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "study/corruption"))
import page  # first: it knows where the modules of the benches are
import larger
import verdicts
from cells import BITS, CRUCIAL, all_cells
from results import RESULTS

GIVEN = json.loads(RESULTS.read_text())
OUTCOME = re.compile(r'"outcome":"([^"]*)"')


class PageTest(unittest.TestCase):
    def test_the_pages_hold_what_the_script_makes(self):
        again = "run study/corruption/page.py"
        self.assertEqual(page.PAGE.read_text(), page.make_page(GIVEN), again)

    def test_other_results_give_another_page(self):
        other = copy.deepcopy(GIVEN)
        other["cells"]["bit-weights-30"] = page.NONE | {
            "machine": "A", "trials": 7, "outcomes": {"N-EV": 7}}
        self.assertNotEqual(page.make_page(GIVEN), page.make_page(other))

    def test_the_archives_have_the_records_behind_the_results(self):
        archives = sorted((ROOT / "study/corruption/trials").glob("*.tar.xz"))
        self.assertGreaterEqual(len(archives), 3)
        seen: dict[str, Counter] = {}
        for path in archives:
            with tarfile.open(path) as archive:
                for member in archive:
                    if member.name.endswith("trials.jsonl"):
                        cell = member.name.partition("/")[0].partition(".")[0]
                        lines = archive.extractfile(member).read().decode().splitlines()
                        seen.setdefault(cell, Counter()).update(OUTCOME.search(line)[1] for line in lines)
        for cell, outcomes in seen.items():  # a campaign of bits that take turns has a cell for each
            own = [row["outcomes"] for name, row in GIVEN["cells"].items()
                   if name == cell or (cell.startswith("bit-") and name.startswith(f"{cell}-"))]  # fmt: skip
            self.assertEqual(outcomes, sum(map(Counter, own), Counter()), cell)

    def test_causes_are_counted_by_stage_and_size_of_the_weight(self):
        def trial(stage: str, before: str, outcome: str) -> dict:
            return {"flips": [{"layer": f"model.{stage}.0.conv1", "before": before}], "outcome": outcome}

        rows = larger.cause_rows([trial("layer2", "bc23d70b", "N-EV"), trial("layer2", "3ca3d70b", "degraded"),
                                  trial("layer1", "3c23d709", "N-EV"), trial("layer1", "00000000", "benign")])
        self.assertEqual(rows, [["layer1", "1 of 2", "–", "–", "1 of 2"],
                                ["layer2", "–", "1 of 1", "1 of 1", "2 of 2"],
                                ["all", "1 of 2", "1 of 1", "1 of 1", "3 of 4"]])

    def test_the_records_of_the_crucial_bit_are_those_of_its_figures(self):
        rows = larger.cause_rows(larger.trials())
        self.assertEqual(rows[-1][-1], "{} of {}".format(*larger.one_bit_harm()))

    def test_a_study_that_has_not_run_says_so(self):
        empty = page.Results({"machines": {}, "cells": {}, "pairs": {}})
        self.assertEqual({verdict.word for _, _, verdict in page.findings(empty)}, {"not run"})
        page.make_page({"machines": {}, "cells": {}, "pairs": {}})

    def test_cells_have_names_of_their_own(self):
        names = [cell.name for cell in all_cells()]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(set(GIVEN["cells"]) - set(names), set())


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

    def roles(self, weights: int, part: int, **others: int) -> dict:
        counts = {name: weights for name in verdicts.SLOTS}
        counts |= {each: part for parts in verdicts.SLOTS.values() for each in parts}
        counts |= {f"role-adam-{name}": count for name, count in others.items()}
        return {name: {"trials": 1068, "outcomes": {"degraded": count}}
                for name, count in counts.items()}  # fmt: skip

    def test_the_model_is_more_sensitive(self):
        for judge in (verdicts.more_sensitive, verdicts.more_sensitive_than_each):
            self.assertEqual(judge(self.roles(300, 200)).word, "confirmed")
            self.assertEqual(judge(self.roles(200, 300)).word, "refuted")
            self.assertEqual(judge(self.roles(200, 201)).word, "undecided")

    def test_the_parts_of_an_optimizer_are_taken_together(self):
        cells = self.roles(300, 200, m=290)
        self.assertEqual(verdicts.more_sensitive(cells).word, "confirmed")
        self.assertEqual(verdicts.more_sensitive_than_each(cells).word, "undecided")

    def test_harm_by_accuracy_is_another_verdict(self):
        lower = {"accuracy:5": {"harm": 0}, "accuracy:1": {"harm": 0}}
        cells = {f"bit-weights-{bit}": {"trials": 100, "outcomes": {"degraded": 90}, "lower": lower}
                 for bit in BITS}
        cells[f"bit-weights-{CRUCIAL}"]["lower"] = {"accuracy:5": {"harm": 90}}
        self.assertEqual(verdicts.crucial_bit(cells).word, "undecided")
        self.assertEqual(verdicts.crucial_bit(cells, "accuracy:5").word, "confirmed")
        del cells["bit-weights-3"]["lower"]
        self.assertEqual(verdicts.crucial_bit(cells, "accuracy:5").word, "not judged")
        pair = {"pairs": 1068, "only_first": 0, "only_second": 0, "both": 300,
                "lower": {"accuracy:5": {"only_first": 60, "only_second": 10, "both": 200}}}
        self.assertEqual(verdicts.more_resilient(pair).word, "no relevant difference")
        self.assertEqual(verdicts.more_resilient(pair, "accuracy:5").word, "confirmed")
        del pair["lower"]
        self.assertEqual(verdicts.more_resilient(pair, "accuracy:5").word, "not judged")


if __name__ == "__main__":
    unittest.main()
