"""Checks what the benches know of machines and of engines that fail, and that DCP's stager saves more than once."""

import contextlib
import io
import json
import sys
import tempfile
import unittest
import warnings
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench/device")]
import torch
from measuring import machines, results, rivals


class MachinesTest(unittest.TestCase):
    def test_two_machines_of_a_kind_are_told_apart(self):
        with tempfile.TemporaryDirectory() as folder:
            names = []
            for number in "12":
                (boot := Path(folder) / number).write_text(number)
                with mock.patch.object(machines, "BOOT", boot):
                    names.append(machines.identity())
        self.assertEqual(len(set(names)), 2)
        self.assertEqual(machines.identity(), machines.identity())

    def test_figures_are_written_with_their_machine(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "figures.json"
            results.write(path, {"a": 1})
            self.assertEqual(json.loads(path.read_text())["run"], machines.this_run())
            results.write(path, {"a": 1, "machines": {}})
            self.assertEqual(set(json.loads(path.read_text())), {"a", "machines"})


class RivalsTest(unittest.TestCase):
    def test_a_stager_that_closes_itself_after_a_save_is_made_anew(self):
        """As that of torch 2.11 does."""
        from torch.distributed.checkpoint import staging

        stage = staging.DefaultStager._stage

        def stage_and_close(self, state, **options):
            staged = stage(self, state, **options)
            self._state_dict_stager.close()
            return staged

        state = {"model": {"weight": torch.zeros(3)}, "steps": 0}
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"), \
                mock.patch.object(staging.DefaultStager, "_stage", stage_and_close):  # fmt: skip
            rival = rivals.DcpStaged()
            for step in range(3):
                with rival.updating():
                    state["model"]["weight"].fill_(step)
                rival.save(state, Path(folder) / str(step))
                rival.wait()
            rival.close()
            for step in range(3):
                loaded = {"model": {"weight": torch.empty(3)}, "steps": -1}
                rivals.Dcp().load(loaded, Path(folder) / str(step))
                self.assertEqual(loaded["model"]["weight"].tolist(), [step] * 3)

    def test_an_engine_that_fails_is_noted_with_its_error(self):
        import gpu_bench

        noted = {}
        options = mock.Mock(rivals=["safetensors"], rounds=2, minutes=1)
        with mock.patch.object(gpu_bench, "in_new_process", lambda *_, **__: "OSError: it is full"):
            gpu_bench.measure_rivals(options, {}, noted.__setitem__)
        self.assertEqual(noted, {"safetensors": {"failed": "OSError: it is full"}})
        errors = "Traceback (most recent call last):\n  File \"x\"\nKeyError: <class 'type'>\n[rank0] a warning at the end\n"
        self.assertEqual(gpu_bench.reason_of(errors, 1), "KeyError: <class 'type'>")
        self.assertEqual(gpu_bench.reason_of("", -9), "it ended with -9")

    def test_figures_of_another_machine_of_this_kind_are_not_continued(self):
        import gpu_bench

        here = machines.this_run()
        known = {"a": {"saves": {}}, "b": {"failed": "once"}}
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            path = Path(folder) / "figures.json"
            for run, kept in ((here, {"a", "run"}), (here | {"identity": "another"}, set())):
                path.write_text(json.dumps(known | {"run": run}))
                self.assertEqual({name for name in gpu_bench.known_figures(path)} - {"run"}, kept - {"run"})


if __name__ == "__main__":
    unittest.main()
