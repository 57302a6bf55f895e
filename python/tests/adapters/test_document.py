"""Runs the examples of docs/adapters.md. Each must leave an undamaged run directory."""

import re
from pathlib import Path

import pytest

import holdfast

PAGE = Path(__file__).parents[3] / "docs" / "adapters.md"
EXAMPLES = re.findall(r"^## (.*?)$.*?^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def test_the_page_has_an_example_for_each_package():
    assert [title for title, _ in EXAMPLES] == [
        "torch.distributed.checkpoint", "Hugging Face Trainer", "Lightning", "torchdata",
        "accelerate"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("title", "example"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_an_example_runs(tmp_path, monkeypatch, title, example):
    monkeypatch.chdir(tmp_path)
    exec(compile(example, f"{PAGE.name}: {title}", "exec"), {"__name__": title})
    assert len(holdfast.open("run")) > 0
