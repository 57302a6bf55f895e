"""Checks that what documents say of the files below bench/results is made from these files."""

import importlib.util
import json
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "study"))
import derived


def load_script():
    spec = importlib.util.spec_from_file_location("gpu_table", ROOT / "bench/results/gpu_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ResultsPageTest(unittest.TestCase):
    def test_the_pages_hold_what_the_script_makes(self):
        for path, made in load_script().pages().items():
            self.assertEqual(path.read_text(), made, f"{path}: run bench/results/gpu_table.py")

    def test_every_file_of_the_gpu_has_a_row(self):
        script = load_script()
        named = {file for part in script.PARTS for *_, file in part()} | {script.RIVALS}
        further = {path.name for path in script.FOLDER.glob("gpu_bench_rivals_*_h200.json")}
        self.assertEqual({path.name for path in script.FOLDER.glob("*_h200.json")} - further, named)

    def test_other_rounds_give_other_figures(self):
        script = load_script()
        before, row = script.gpu_text(), script.comparison_row()
        with tempfile.TemporaryDirectory() as folder:
            for file in script.FOLDER.glob("*.json"):
                shutil.copy(file, folder)
            script.FOLDER = Path(folder)
            for name in ("gpu_bench_copy_h200.json", script.RIVALS):
                figures = script.read(name)
                rounds = figures[script.COPY]["rounds_ms"]
                rounds["save"] = [value + 9 for value in rounds["bare"]]
                figures[script.COPY]["save_added_ms"] = [9.0, 9.0, 9.0, 0.98]
                (script.FOLDER / name).write_text(json.dumps(figures))
            self.assertIn("| 9.0 ms (9.0 to 9.0) | 4 ms |", script.gpu_text())
            self.assertIn("| 9.0 ms (9.0 to 9.0) |", script.comparison_row())
        self.assertNotIn("9.0 ms (9.0 to 9.0)", before + row)

    def test_an_interval_of_the_bootstrap_is_left_out(self):
        told = load_script().told
        self.assertEqual(told([1.0, 0.5, 2.0], " ms", ".1f"), "1.0 ms, rounds not kept")
        self.assertEqual(told([1.0, 0.5, 2.0, 0.97], " ms", ".1f"), "1.0 ms (0.5 to 2.0)")
        self.assertEqual(told([1.0, 0.5, 2.0, 0.75], " ms", ".1f"), "1.0 ms (0.5 to 2.0, 75 %)")

    def test_machines_are_told_as_the_files_have_them(self):
        words = load_script().machine_words
        one = {"machine": "pdp11", "processor": "", "cores": 1}
        self.assertEqual(words({"run": one | {"gpu": "G", "date": "1970-01-01"}}), "pdp11 with 1 cores, G, 1970-01-01")
        self.assertEqual(words({"machines": {"a": one, "b": one | {"cores": 2}}}),
                         "pdp11 with 1 cores (a); pdp11 with 2 cores (b)")
        self.assertEqual(words({"seconds": 1}), "not kept")

    def test_derived_figures_are_those_of_their_file(self):
        self.assertEqual(derived.SECTION.held(), derived.make_table(json.loads(derived.RESULTS.read_text())),
                         "run study/derived.py --doc")  # fmt: skip


if __name__ == "__main__":
    unittest.main()
