"""Tests of the adapters. They need packages that scripts/test-all.sh installs, and are skipped
without them. They start ranks with ../torch/ranks.py.
"""

import importlib.util
import sys
from pathlib import Path

NEEDS = {"test_accelerate.py": "accelerate", "test_document.py": "lightning",
         "test_elastic_huggingface.py": "transformers",
         "test_huggingface.py": "transformers", "test_huggingface_datasets.py": "datasets",
         "test_huggingface_reads.py": "transformers",
         "test_launch_adapters.py": "lightning", "test_lightning.py": "lightning",
         "test_lightning_epochs.py": "lightning",
         "test_planned_models.py": "transformers", "test_rehearse_adapters.py": "lightning", "test_torchdata.py": "torchdata",
         "test_weights.py": "peft"}

collect_ignore = [name for name, package in NEEDS.items()
                  if importlib.util.find_spec(package) is None]

_HERE = Path(__file__).parent
sys.path.insert(0, str(_HERE.parent / "torch"))
sys.path.insert(0, str(_HERE))

import ranks  # noqa: E402


def pytest_collection_finish(session):
    if any(_HERE in item.path.parents for item in session.items):
        if not session.config.option.collectonly:
            ranks.open_nursery()


def pytest_unconfigure():
    ranks.close_nursery()
