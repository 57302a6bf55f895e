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

    def test_the_charts_are_well_formed_and_show_every_library(self):
        script = load_script()
        for mode in script.COLOURS:
            root = xml.etree.ElementTree.fromstring(script.chart(mode))
            words = "".join(root.itertext())
            for name, _ in script.LIBRARIES:
                self.assertIn(name, words)


if __name__ == "__main__":
    unittest.main()
