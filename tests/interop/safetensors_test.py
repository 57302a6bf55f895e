"""The safetensors library must read the files that Holdfast writes, bit for bit.

    safetensors_test.py CONVERT

CONVERT is the program that convert.cpp becomes.
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

FIXTURES = Path(__file__).parents[1] / "fixtures" / "formats" / "safetensors"
CONVERT = sys.argv.pop()


def bits(tensor):
    return tensor.dtype, tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).tolist()


def all_bits(tensors):
    return {name: bits(tensor) for name, tensor in tensors.items()}


class SafetensorsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def convert(self, source, *target):
        subprocess.run([CONVERT, source, *target], check=True)

    def test_every_fixture_written_again_reads_alike(self):
        for name in ("every_dtype", "every_shape", "odd_names"):
            source, target = FIXTURES / f"{name}.safetensors", self.folder / f"{name}.safetensors"
            self.convert(source, target)
            self.assertEqual(all_bits(load_file(target)), all_bits(load_file(source)))
            with safe_open(target, "pt") as file:
                self.assertEqual(file.metadata(), {"made by": name, "format": "pt"})

    def test_a_folder_has_every_tensor_where_its_index_says(self):
        folder = self.folder / "model"
        self.convert(FIXTURES / "every_dtype.safetensors", f"{folder}/")
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        seen = {}
        for name, file in index["weight_map"].items():
            with safe_open(folder / file, "pt") as shard:
                seen[name] = shard.get_tensor(name)
        want = load_file(FIXTURES / "every_dtype.safetensors")
        self.assertEqual(all_bits(seen), all_bits(want))
        self.assertEqual(index["metadata"]["total_size"], sum(t.nbytes for t in want.values()))

    def test_a_folder_becomes_one_file(self):
        target = self.folder / "one.safetensors"
        self.convert(FIXTURES / "sharded", target)
        want = load_file(FIXTURES / "every_shape.safetensors")
        self.assertEqual(all_bits(load_file(target)), all_bits(want))

    def test_large_tensors_stream_unchanged(self):
        tensors = {"a": torch.rand(3_000_000), "b": torch.rand(1001, 999).bfloat16(), "c": torch.arange(7)}
        save_file(tensors, self.folder / "from.safetensors")
        self.convert(self.folder / "from.safetensors", self.folder / "to.safetensors")
        seen = load_file(self.folder / "to.safetensors")
        self.assertEqual(seen.keys(), tensors.keys())
        for name, tensor in tensors.items():
            self.assertTrue(torch.equal(seen[name], tensor))


if __name__ == "__main__":
    unittest.main()
