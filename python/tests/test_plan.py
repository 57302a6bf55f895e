"""holdfast.plan returns what the command line prints. The planner itself is tested in C++."""

import json
import subprocess
from pathlib import Path

import pytest

import holdfast

PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"

CALLS = [
    ("tenplex-6.7b", "tp=4,pp=2,dp=1", "tp=4,pp=4,dp=1", "4x4", True),
    ("tenplex-6.7b", "tp=4,pp=2,dp=1", "tp=8,pp=2,dp=1", "4x4", False),
    ("gpt2", "dp=4,zero=3", "tp=2,pp=2", None, False),
    ("mixtral-8x7b", "tp=2,dp=4,ep=4,etp=2", "tp=4,dp=1,ep=2,etp=2", "1x8", True),
]


def run(*arguments):
    return subprocess.run([PROGRAM, "plan", *arguments], capture_output=True, text=True)


@pytest.mark.parametrize(("model", "source", "target", "hosts", "place"), CALLS)
def test_python_and_the_command_line_print_the_same(model, source, target, hosts, place):
    plan = holdfast.plan(source, target, model=model, hosts=hosts, place=place)
    options = ["--place"] * place + (["--hosts", hosts] if hosts else [])
    done = run("--model", model, "--from", source, "--to", target, "--json", *options)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert json.loads(plan.json) == printed
    for name, value in printed["figures"].items():
        assert getattr(plan.figures, name) == value
    assert plan.moves == printed["moves"]
    assert (plan.placement is not None) == place


def test_speeds_of_links_give_a_cost():
    change = {"source": "tp=4,pp=2", "target": "tp=4,pp=4", "model": "tenplex-6.7b", "hosts": "4x4"}
    speeds = "device=31.5,host=12.5,latency=10"
    plan = holdfast.plan(**change, speeds=speeds)
    done = run("--model", "tenplex-6.7b", "--from", change["source"], "--to", change["target"],
               "--hosts", "4x4", "--speeds", speeds)  # fmt: skip
    cost = json.loads(plan.json)["cost"]
    assert cost["busiest"] == "host"
    # A host gets 1/4 of the state, all of it from others.
    assert cost["seconds"] == pytest.approx(plan.figures.crossing / 2 / 12.5e9, rel=0.4)
    assert cost["least"] <= cost["seconds"]
    assert "by the given speeds it takes" in done.stdout and "busiest: host" in done.stdout
    with pytest.raises(ValueError, match="speeds: \"hots\" is not known"):
        holdfast.plan(**change, speeds="hots=1")


def test_the_published_case_moves_what_it_must():
    figures = holdfast.plan(
        "tp=4,pp=2", "tp=4,pp=4", model="tenplex-6.7b", hosts="4x4", place=True
    ).figures
    assert figures.moved == figures.moved_bound
    assert round(figures.moved / 1e9, 1) == 45.1
    assert figures.needed == figures.in_place + figures.copied + figures.moved


def test_layout_files_and_a_config_are_read(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4,
             "vocab_size": 1000, "n_positions": 32}
        )
    )
    whole = holdfast.plan("tp=1", "tp=2", model=config)
    assert holdfast.plan("tp=1", "tp=2", model=tmp_path).json == whole.json
    done = run("--model", str(config), "--from", "tp=1", "--to", "tp=2",
               "--export", str(tmp_path / "layouts"))
    assert done.returncode == 0, done.stderr
    files = holdfast.plan(tmp_path / "layouts/from.json", tmp_path / "layouts/to.json")
    assert files.figures.moved == whole.figures.moved


def test_the_example_of_the_documentation_is_a_layout(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "layouts.md"
    example = page.read_text(encoding="utf-8").split("```json")[1].split("```")[0]
    (tmp_path / "a.json").write_text(example)
    figures = holdfast.plan(tmp_path / "a.json", tmp_path / "a.json").figures
    assert figures.needed == figures.in_place > 0


def test_bad_calls_name_the_offender():
    with pytest.raises(holdfast.NotFoundError, match="gpt-9000"):
        holdfast.plan("tp=1", "tp=2", model="gpt-9000")
    with pytest.raises(ValueError, match="to: parallel: tp=0"):
        holdfast.plan("tp=1", "tp=0", model="gpt2")
    with pytest.raises(ValueError, match="without a model"):
        holdfast.plan("a.json", "b.json", place=True)
    with pytest.raises(holdfast.NotFoundError, match="missing.json: No such file"):
        holdfast.plan("missing.json", "missing.json")


def test_model_names_are_known():
    assert {"gpt2", "llama-3-8b", "mixtral-8x7b"} <= set(holdfast.model_names())
