"""Checks that the chart and the table of README.md are made from the committed figures."""

import importlib.util
import json
import shutil
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def load_script():
    spec = importlib.util.spec_from_file_location("chart", ROOT / "bench/results/chart.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ChartTest(unittest.TestCase):
    def test_chart_and_table_are_what_the_script_makes(self):
        for path, made in load_script().wanted().items():
            self.assertEqual(path.read_text(), made, f"{path}: run bench/results/chart.py")

    def test_another_figure_gives_another_chart_and_table(self):
        script = load_script()
        table, chart = script.table(), script.chart("light")
        with tempfile.TemporaryDirectory() as folder:
            for file in script.FOLDER.glob("*.json"):
                shutil.copy(file, folder)
            script.FOLDER = Path(folder)
            figures = script.read()
            figures["DCP async_save"]["save_added_ms"][0] += 100
            (script.FOLDER / script.FIGURES).write_text(json.dumps(figures))
            self.assertNotEqual(script.table(), table)
            self.assertNotEqual(script.chart("light"), chart)

    def test_the_sentences_follow_from_the_figures(self):
        script = load_script()
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(script.FOLDER / script.FIGURES, folder)
            script.FOLDER, before = Path(folder), script.section()
            figures = script.read()
            figures["Holdfast, copy inside the GPU"]["save_added_ms"][0] = 7.25
            for _, name in script.measured():
                figures[name]["identity"] = "a"
            figures["torch.save"]["rounds_ms"]["save"].append(3000.0)
            figures["Holdfast, copy inside the GPU"]["identity"] = "b"
            figures["safetensors"] = {"failed": "OSError: it is full"}
            del figures["DCP async_save"]
            (script.FOLDER / script.FIGURES).write_text(json.dumps(figures))
            made = script.section()
        for words in ("adds 7.2 ms,", "12 of torch.save", "2 machines of this kind measured them",
                      "| safetensors | failed: OSError: it is full |", "Not measured: DCP async_save."):
            self.assertIn(words, made)
            self.assertNotIn(words, before)

    def test_the_charts_are_well_formed_and_show_every_library(self):
        script = load_script()
        for mode in script.COLOURS:
            root = xml.etree.ElementTree.fromstring(script.chart(mode))
            words = "".join(root.itertext())
            self.assertGreaterEqual(len(script.measured()), 4)
            for name, _ in script.measured():
                self.assertIn(name, words)

    def test_machines_that_do_not_agree_give_a_range(self):
        script = load_script()
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(script.FOLDER / script.FIGURES, folder)
            script.FOLDER = Path(folder)
            name, alone = "DCP async_save", script.table()
            other = script.read()
            middle = script.milliseconds(other[name]["save_added_ms"][0])
            for added, words in ((other[name]["save_added_ms"], None),
                                 ([842.0, 700.0, 900.0, 0.95], f"842 to {middle}")):
                other[name]["save_added_ms"] = added
                (script.FOLDER / "gpu_bench_rivals_b_h200.json").write_text(json.dumps({name: other[name]}))
                if words is None:
                    self.assertEqual(script.table(), alone)
                else:
                    self.assertIn(words, script.table())


if __name__ == "__main__":
    unittest.main()
