"""These tests need packages that scripts/test-all.sh installs; without them they are left out."""

import importlib.util

NEEDS = {"test_huggingface.py": "transformers", "test_lightning.py": "lightning",
         "test_torchdata.py": "torchdata"}

collect_ignore = [name for name, package in NEEDS.items()
                  if importlib.util.find_spec(package) is None]
