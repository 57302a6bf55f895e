"""study/elastic.py makes the tables of docs/studies/elastic.md. `make bench` checks the large ones."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"


@pytest.fixture(scope="module")
def study():
    """The study's main script. It imports the scripts beside it, as it does when it is run."""
    sys.path.insert(0, str(ROOT / "study"))
    yield importlib.import_module("elastic")
    sys.path.remove(str(ROOT / "study"))


def test_the_tables_of_the_page_are_made_again(study):
    makers = study.makers(study.Program(PROGRAM))
    for name in makers.keys() - {"llama-70b", "llama-405b"}:
        assert study.section(name).held() == makers[name](), f"run study/elastic.py {name} --doc"


def test_the_large_tables_have_all_their_rows(study):
    tables = importlib.import_module("elastic_tables")
    for name, changes in (("llama-70b", tables.LLAMA_70B), ("llama-405b", tables.LLAMA_405B)):
        rows = study.section(name).held().splitlines()[2:]
        assert [row.split(" | ")[3] for row in rows] == [
            f"{tables.ranks(c.source)} → {tables.ranks(c.target)}" for c in changes]
    first = tables.LLAMA_70B[0]
    row = tables.row(study.Program(PROGRAM), first)
    assert f"| {' | '.join(row)} |\n" in study.section("llama-70b").held()


def test_the_bytes_of_the_released_planner_are_counted_from_layouts(study):
    bytes_ = importlib.import_module("tenplex_bytes")
    seen = bytes_.crossing(study.Program(PROGRAM), "2,4,1", "2,2,1")
    assert seen["needed"] == seen["planned_need"]  # every box is fetched from somewhere, once
    row = f"| 2,4,1 → 2,2,1 | {seen['theirs'] / 1e9:.2f} | {seen['ours'] / 1e9:.2f} |"
    assert row in bytes_.SECTION.held()
    layout = {"holders": [{"name": name, "host": host} for name, host in (("a", "x"), ("b", "y"))],
              "tensors": [{"name": "w", "dtype": "F32"}]}
    source = layout | {"slices": [{"tensor": "w", "box": [[0, 4]], "copies": [{"holder": "b"}, {"holder": "a"}]}]}
    target = layout | {"slices": [{"tensor": "w", "box": [[2, 6]], "copies": [{"holder": "a"}, {"holder": "b"}]}]}
    assert list(bytes_.fetched(source, target)) == [("x", "x", 8), ("x", "y", 8)]


def test_a_table_that_the_page_does_not_have_is_named(study, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "PAGE", Path(shutil.copy(study.PAGE, tmp_path)))
    with pytest.raises(SystemExit, match="the table fig-99"):
        study.section("fig-99").held()
    before = study.section("fig-14").held()
    study.section("machines").write("other\n")
    assert study.section("machines").held() == "other\n"
    assert study.section("fig-14").held() == before


def test_figures_with_and_without_bars_are_shown(study, tmp_path):
    measured = importlib.import_module("elastic_measured")
    assert measured.figures_table("reshard", tmp_path) == "Not measured on a quiet machine yet.\n"
    figures = {"copy": {"GB/s": [1.0, 3.0, 2.0]},
               "ratio": {"median": 0.5, "lower": 0.25, "upper": 0.75, "bar": 0.8, "passed": False}}
    run = {"machine": "pdp11", "processor": "", "cores": 1, "date": "1970-01-01"}
    (tmp_path / "layout_change.json").write_text(json.dumps({"run": run} | figures))
    assert measured.figures_table("layout_change", tmp_path).startswith("On pdp11 with 1 cores, 1970-01-01:\n\n| figure |")
    (tmp_path / "reshard.json").write_text(json.dumps(figures))
    assert measured.figures_table("reshard", tmp_path).splitlines()[2:] == [
        "| copy | 2.00 (1.50 to 2.50) |  |", "| ratio | 0.50 (0.25 to 0.75) | 0.8, **missed** |"]
