"""Checks that the table of claims in docs/studies/papers.md is made from the committed results."""

import json
import sys
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "study"))
import claims

MOST_WORDS = 5000


class ClaimsTest(unittest.TestCase):
    def test_the_page_holds_what_the_script_makes(self):
        self.assertEqual(claims.SECTION.held(), claims.make_table(), "run study/claims.py")

    def test_every_work_has_claims_and_every_claim_a_verdict_and_a_command(self):
        for work, made in claims.WORKS.items():
            found = made()
            self.assertGreaterEqual(len(found), 2, work)
            for claim in found:
                self.assertTrue(all(claim), claim)
                self.assertRegex(claim.command, "^`.*`$")

    def test_other_figures_give_other_verdicts(self):
        seen = claims.read("recovery.json")
        seen["kills"]["holdfast"]["recovery"] = seen["kills"]["torchrun"]["recovery"]
        seen["cost"]["recovers"] = [1.2 * plain for plain in seen["cost"]["plain"]]
        seen["rates"]["swift"] = dict.fromkeys(seen["rates"]["swift"])
        for row in seen["totals"]:
            row |= {"same_bits": False, "total": 60.0}
        with mock.patch.object(claims, "read", lambda name: json.loads(json.dumps(seen))):
            found = claims.swift_claims()
        self.assertEqual({claim.verdict for claim in found}, {"undecided", "not reproduced"})

    def test_what_only_a_simulation_shows_is_told(self):
        simulated, wide, narrow = {"a": 60.0, "b": 60.0}, (1.6, 0.8, 3.2), (1.6, 1.1, 2.0)
        for measured, verdict in (({"a": wide, "b": wide}, "undecided by measurement, confirmed in simulation"),
                                  ({"a": narrow, "b": wide}, "confirmed against a; against the others undecided by "
                                                             "measurement, confirmed in simulation"),
                                  ({"a": narrow, "b": narrow}, "confirmed")):  # fmt: skip
            self.assertEqual(claims.shorter_verdict(measured, simulated), verdict)
        self.assertEqual(claims.shorter_verdict({"a": wide}, {"a": None}), "not reproduced")

    def test_the_axes_of_the_study_are_judged_by_its_results(self):
        for words, verdict, told in ((("yes", "yes"), "confirmed", "2 of 2 claims of section 1 hold"),
                                     (("no", "no"), "not reproduced", "0 of 2 claims of section 1 hold; not: a; b"),
                                     (("yes", "no"), "undecided", "1 of 2 claims of section 1 hold; not: b")):
            made = claims.axes_claim({name: f"**{word}**: 7 %" for name, word in zip("ab", words)})
            self.assertEqual((made.verdict, made.found), (verdict, told))
        self.assertEqual(claims.axes_claim({"a": "not measured on this machine"}).verdict, "undecided")

    def test_the_median_is_that_of_the_page_of_schedules(self):
        self.assertIn(f"median {claims.median_of_the_schedule()} %", claims.coci_claims()[0].found)

    def test_the_page_can_be_read_at_once(self):
        self.assertLess(len(claims.PAPERS.read_text().split()), MOST_WORDS)


if __name__ == "__main__":
    unittest.main()
