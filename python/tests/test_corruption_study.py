"""study/corruption runs campaigns end to end: from flipped bits to the counts of the page."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).resolve().parents[2]
HOROVOD = ROOT / ".cache/horovod/built"
LONG = bool(os.environ.get("HOLDFAST_LONG"))
PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"
FOLDER = ROOT / "study/corruption"


@pytest.fixture(scope="module")
def study():
    """The modules of the study by name, imported as its scripts import each other."""
    sys.path.insert(0, str(FOLDER))
    names = ("cells", "results", "verdicts", "page", "run", "archive")
    yield {name: importlib.import_module(name) for name in names}
    sys.path.remove(str(FOLDER))
    for name in names:  # these names are too common to stay
        del sys.modules[name]


def run_study(work, *options):
    return subprocess.run(
        [sys.executable, FOLDER / "run.py", "--work", work, "--program", PROGRAM, "--no-page",
         "--jobs", "1", *options], capture_output=True, text=True, timeout=500, check=False,
        env=os.environ | {"PYTHONPATH": str(Path(holdfast.__file__).parents[1])})  # fmt: skip


@pytest.mark.skipif(not LONG, reason="takes a quarter of a minute: HOLDFAST_LONG=1")
def test_a_cell_runs_and_is_counted(study, tmp_path):
    done = run_study(tmp_path, "--only", "role-sgd-weights", "--scale", "0.0025")
    assert done.returncode == 0, done.stdout + done.stderr
    found = study["results"].collect(tmp_path)
    cell = found["cells"]["role-sgd-weights"]
    assert cell["trials"] == sum(cell["outcomes"].values()) == 3
    assert cell["golden"]["first"] > 0.9
    page = study["page"].make_page(found)
    assert "the optimizer | **undecided** | 3 of 5,340 |" in page


@pytest.mark.skipif(not LONG, reason="takes half a minute: HOLDFAST_LONG=1")
def test_a_greater_scale_adds_trials_and_bits_take_turns(study, tmp_path):
    trials = tmp_path / "bit-weights.24-31/trials.jsonl"
    seen = []
    for scale in ("0.005", "0.01"):
        done = run_study(tmp_path, "--only", "bit-weights.24-31", "--scale", scale)
        assert done.returncode == 0, done.stdout + done.stderr
        seen.append(trials.read_text().splitlines())
    assert len(seen[0]) == 4 and len(seen[1]) == 8 and seen[1][:4] == seen[0]
    cells = study["results"].collect(tmp_path)["cells"]
    assert [cells[f"bit-weights-{bit}"]["trials"] for bit in range(24, 32)] == [1] * 8
    assert cells["bit-weights-30"]["struck"] == cells["bit-weights-30"]["outcomes"]
    assert not cells["bit-weights-29"]["struck"]


@pytest.mark.skipif(not LONG, reason="takes a minute: HOLDFAST_LONG=1")
@pytest.mark.skipif(not HOROVOD.exists(), reason="needs Horovod: scripts/rivals.sh")
def test_ddp_and_horovod_on_two_ranks_have_equal_bits(study, tmp_path):
    done = run_study(tmp_path, "--only", "ddp-2.0", "horovod-2.0", "--scale", "0.3")
    assert done.returncode == 0, done.stdout + done.stderr
    pair = study["results"].collect(tmp_path)["pairs"]["ddp-2 horovod-2"]
    assert pair["same_golden"] and pair["pairs"] == 24
    assert pair["same_bits"] == pair["pairs"] - pair["lost"]


@pytest.mark.skipif(not LONG, reason="takes a minute: HOLDFAST_LONG=1")
def test_a_pipeline_of_whole_batches_has_the_bits_of_one_process(study, tmp_path):
    done = run_study(tmp_path, "--only", "alone", "pipeline-2-whole", "--scale", "0.05")
    assert done.returncode == 0, done.stdout + done.stderr
    pair = study["results"].collect(tmp_path)["pairs"]["alone pipeline-2-whole"]
    assert pair["same_golden"] and pair["pairs"] == pair["same_outcome"] == 5
    assert pair["same_bits"] == pair["pairs"] - pair["lost"]


CAMPAIGN = {
    "version": 1, "holdfast": "campaign", "settings": {}, "command": ["true"], "deadline": 10.0,
    "thresholds": {"extreme_loss": 1000.0, "degraded_accuracy": 5.0, "degraded_loss": 1.1,
                   "spiked_loss": 2.0},
    "golden_seconds": 1.0, "sites": 32, "predicted": None,
    "golden": [{"step": 0, "accuracy": 0.95}, {"step": 40, "accuracy": 0.95, "loss": 0.1}]}


def trial_line(trial, outcome="benign", loss=0.5, accuracy=0.9, first=0.9, distance=1.0, flips=()):
    line = {"trial": trial, "seed": 0, "flips": list(flips), "outcome": outcome, "steps": 40,
            "final_loss": loss, "final_accuracy": accuracy, "first_accuracy": first,
            "seconds": 1.0, "why": ""}
    return line if distance is None else line | {"distance": {"1.fc": distance}}


def flip(mask, tensor="model.fc.weight"):
    """A flip of a number that was 0, as campaigns of earlier versions recorded it."""
    return {"tensor": tensor, "role": "parameter", "layer": "fc", "element": 0, "dtype": "F32",
            "bits": [], "mask": mask, "old": "00000000", "new": mask}


def make_campaign(study, folder, name, trials, base="0" * 32):
    """The finished trials of a cell, as a campaign's folder has them."""
    folder.mkdir()
    base = {"path": "base.pt", "kind": "torch", "digest": base}
    (folder / "campaign.json").write_text(json.dumps(CAMPAIGN | {"base": base}))
    (folder / "trials.jsonl").write_text("".join(json.dumps(each) + "\n" for each in trials))
    cell = next(each for each in study["cells"].all_campaigns() if each.name == name)
    return study["results"].Campaign(cell, folder)


def test_the_cells_whose_trials_are_committed_are_counted_as_the_results_say(study, tmp_path):
    results, archive = study["results"], study["archive"]
    archive.unpack(FOLDER / "trials", tmp_path)
    kept = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert {"ddp-2.0", "horovod-2.0", "ddp-4.0", "horovod-4.0"} <= kept
    for name in () if LONG else kept:  # most of the trials: seconds
        if not name.startswith(("ddp-2.", "horovod-2.", "crucial-", "count-1000-")):
            shutil.rmtree(tmp_path / name)
    found = results.collect(tmp_path)
    assert {"ddp-2", "crucial-fc", "count-1000-all"} <= set(found["cells"]) and "ddp-2 horovod-2" in found["pairs"]
    assert all("lower" in row for row in (*found["cells"].values(), *found["pairs"].values()))
    # All other cells are taken from what is known.
    results.write(results.merge(results.read(), found), tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == results.RESULTS.read_bytes()


def test_an_accuracy_of_five_points_below_golden_is_low(study, tmp_path):
    # 0.95 - 0.90 is a little less than 0.05.
    trials = [trial_line(i, first=first) for i, first in enumerate((0.90, 0.9001, 0.5, "nan"))]
    found = make_campaign(study, tmp_path / "a", "layer-fc", trials)
    assert found.summaries()["layer-fc"]["low_first"] == 3


def test_harm_by_accuracy_is_counted_beside_the_outcomes(study, tmp_path):
    """Golden's accuracy at the end is 0.95."""
    trials = [trial_line(0, "degraded", accuracy=0.95), trial_line(1, "degraded", accuracy=0.93),
              trial_line(2, "benign", accuracy=0.90), trial_line(3, "N-EV", "nan", 0.1,
                                                                flips=[flip("40000000")]),
              trial_line(4, "crashed", None, None, flips=[flip("80000000")])]  # fmt: skip
    campaign = make_campaign(study, tmp_path / "a", "layer-fc", trials)
    assert campaign.summaries()["layer-fc"]["lower"] == {
        "accuracy:5": {"harm": 3, "struck": 1, "signed": 1},
        "accuracy:1": {"harm": 4, "struck": 1, "signed": 1}}  # fmt: skip
    pair = make_pair(study, tmp_path, [trial_line(0, accuracy=0.5), trial_line(1, "degraded")],
                     [trial_line(0), trial_line(1, accuracy=0.93)])
    assert (pair["only_first"], pair["only_second"], pair["both"]) == (1, 0, 0)
    assert pair["lower"] == {
        "accuracy:5": {"only_first": 1, "only_second": 0, "both": 1},
        "accuracy:1": {"only_first": 0, "only_second": 0, "both": 2}}  # fmt: skip


def make_pair(study, folder, *lines):
    return study["results"].compare(*(
        make_campaign(study, folder / name, name, trials)
        for name, trials in zip(("ddp-2.0", "horovod-2.0"), lines)))  # fmt: skip


def test_only_finite_pairs_have_equal_bits(study, tmp_path):
    pair = make_pair(study, tmp_path, *(
        [trial_line(0), trial_line(1, "N-EV", "nan", "nan"), trial_line(2, distance="inf"),
         trial_line(3, loss=loss), trial_line(4, "crashed", None, None)]
        for loss in (0.5, 0.6)))  # fmt: skip
    assert (pair["pairs"], pair["lost"], pair["same_bits"]) == (5, 2, 1)
    assert pair["spread"]["1.fc"]["pairs"] == 2  # without that of infinite distances
    assert "without an end to compare" in study["verdicts"].spreads_alike(pair).why


def test_ratios_of_distances_are_those_of_the_second_to_the_first(study, tmp_path):
    pair = make_pair(study, tmp_path, *(
        [trial_line(trial, distance=distance) for trial, distance in enumerate(distances)]
        for distances in ((0.0, 0.0, 0.0, 1e-3, 1e-3), (0.0, 1e-3, 1e-3, 0.0, 1e-2))))  # fmt: skip
    assert pair["spread"]["1.fc"] == {"pairs": 5, "above": 3, "below": 1, "median": 1.0,
                                      "low": "-inf", "high": "inf"}  # fmt: skip


def test_harm_of_the_first_alone_is_not_that_of_the_second(study, tmp_path):
    pair = make_pair(study, tmp_path, [trial_line(0, "degraded"), trial_line(1, "N-EV")],
                     [trial_line(0), trial_line(1, "timed out")])
    assert (pair["only_first"], pair["only_second"], pair["both"]) == (1, 0, 1)
    assert (pair["overflow"], pair["lost"], pair["same_outcome"]) == (1, 1, 0)


def test_pairs_of_two_frameworks_have_the_same_bits_at_other_names(study, tmp_path):
    def campaign(name, tensor, mask, **more):
        trials = [trial_line(0, flips=[flip(mask, tensor)], **more)]
        return make_campaign(study, tmp_path / name, name, trials, base=name.ljust(32, "0"))

    compare = study["results"].compare
    one = campaign("alone", "model.fc.weight", "00000001")
    pair = compare(one, campaign("keras", "dense", "00000001", distance=None))
    assert pair["pairs"] == pair["same_outcome"] == 1 and not pair["spread"]
    with pytest.raises(holdfast.ConflictError, match="chainer and .*alone: trial 0: the plans differ"):
        compare(one, campaign("chainer", "fc/W", "00000002"))
    with pytest.raises(holdfast.ConflictError, match="have different bases"):
        compare(one, campaign("pipeline-2", "model.fc.weight", "00000001"))


def test_parts_of_another_golden_run_are_no_parts_of_a_cell(study, tmp_path):
    for name in ("ddp-2.0", "ddp-2.1"):
        make_campaign(study, tmp_path / name, name, [trial_line(0)])
    cells = study["results"].collect(tmp_path)["cells"]
    assert cells["ddp-2"]["trials"] == 2
    file = tmp_path / "ddp-2.1/campaign.json"
    file.write_text(file.read_text().replace("0.95", "0.96"))
    with pytest.raises(holdfast.ConflictError, match="different golden runs, step 0: accuracy"):
        study["results"].collect(tmp_path)


def test_a_verdict_needs_all_planned_trials(study):
    roles = study["cells"].role_cells()
    cells = {cell.name: {"trials": 1068, "outcomes": {"N-EV": 500 if "weights" in cell.name else 1},
                         "struck": {}, "low_first": 0, "seconds": 1.0} for cell in roles}
    page = study["page"]

    def verdict():
        found = page.findings(page.Results({"machines": {}, "pairs": {}, "cells": cells}))
        return next(each for name, _, each in found if name.startswith("the model"))

    assert verdict().word == "confirmed"
    cells["role-adam-v"]["trials"] -= 1
    assert verdict().word == "undecided"
    assert verdict().why.startswith("5,339 of 5,340 trials run; so far: the model lies above")
    cells.clear()
    assert (verdict().word, verdict().why) == ("not run", "")


def test_a_page_without_trials_has_no_empty_sentences(study):
    given = {"machines": {}, "pairs": {}, "cells": {}}
    page = study["page"].make_page(given)
    for words in ("The machine", ": .", " of 0", "checkpoint: not run"):
        assert words not in page
    assert "**not run**" in page


def results_of(machines, pairs=(), **cells):
    """Results whose cells have a machine and a number of trials."""
    return {"machines": machines, "pairs": {name: {"pairs": 1} for name in pairs},
            "cells": {name.replace("_", "-"): {"machine": letter, "trials": trials}
                      for name, (letter, trials) in cells.items()}}  # fmt: skip


def test_results_keep_the_cells_that_have_fewer_trials_here(study):
    merge = study["results"].merge
    before = results_of({"A": {"CPU": "a"}}, layer_fc=("A", 20), layer_conv1=("A", 20),
                        layer_conv2=("A", 20), keras=("A", 20))  # fmt: skip
    found = results_of({"A": {"CPU": "b"}, "B": {"CPU": "a"}}, layer_conv1=("A", 20),
                       layer_conv2=("B", 21), alone=("A", 1), layer_fc=("A", 19))  # fmt: skip
    merged = merge(before, found)
    assert merged == results_of(
        {"A": {"CPU": "a"}, "B": {"CPU": "b"}}, alone=("B", 1), keras=("A", 20),
        layer_conv1=("B", 20), layer_conv2=("A", 21), layer_fc=("A", 20))  # fmt: skip
    assert list(merged["cells"]) == ["alone", "keras", "layer-conv1", "layer-conv2", "layer-fc"]
    assert merge(merged, found) == merged


def test_machines_of_results_keep_their_letters_and_unused_ones_go(study):
    merge, empty = study["results"].merge, results_of({})
    before = results_of({"A": {"CPU": "a"}, "B": {"CPU": "b"}}, alone=("A", 1), keras=("B", 1))
    found = results_of({"A": {"CPU": "c"}}, alone=("A", 1))
    merged = merge(before, found)
    assert merged == results_of({"B": {"CPU": "b"}, "C": {"CPU": "c"}}, alone=("C", 1),
                                keras=("B", 1))  # fmt: skip
    assert merge(empty, found) == found and merge(before, empty) == before


@pytest.mark.parametrize("trials, has", [((5, 5), 1), ((4, 4), 1), ((4, 5), 0), ((5, 4), 0)])
def test_a_pair_of_results_has_the_cells_it_compares(study, trials, has):
    machine, pair = {"A": {"CPU": "a"}}, ["alone pipeline-2"]
    before = results_of(machine, pair, alone=("A", 5), pipeline_2=("A", 5))
    found = results_of(machine, pair, alone=("A", trials[0]), pipeline_2=("A", trials[1]))
    found["pairs"][pair[0]]["new"] = True
    merged = study["results"].merge(before, found)["pairs"]
    kept = found if trials == (5, 5) else before
    assert merged == (kept["pairs"] if has else {})


def test_committed_results_stay_as_they_are_where_no_campaign_is(study, tmp_path):
    results = study["results"]
    results.write(results.merge(results.read(), results.collect(tmp_path)), tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == results.RESULTS.read_bytes()
    assert not results.read(tmp_path / "missing")["cells"]


def test_the_page_can_be_made_without_running_anything(study, monkeypatch, tmp_path):
    run = study["run"]
    make_campaign(study, tmp_path / "layer-fc", "layer-fc", [trial_line(0)])
    written = []
    monkeypatch.setattr(run, "read", lambda: results_of({"A": {"CPU": "a"}}, alone=("A", 7)))
    monkeypatch.setattr(run, "write", written.append)
    monkeypatch.setattr(study["page"], "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(study["page"], "make_page", lambda given: written.append(given) or "made")
    monkeypatch.setattr(sys, "argv", ["run.py", "--work", str(tmp_path), "--only-page",
                                      "--program", "missing"])
    assert run.main() == 0 and list(written[0]["cells"]) == ["alone", "layer-fc"]
    assert written[1] is written[0] and (tmp_path / "page.md").read_text() == "made"


def test_strikes_of_the_sign_alone_are_counted_apart(study, tmp_path):
    trials = [trial_line(i, "N-EV", flips=[flip(mask)])
              for i, mask in enumerate(("40000000", "80000000", "c0000000", "00000001"))]
    cell = make_campaign(study, tmp_path / "a", "layer-fc", trials).summaries()["layer-fc"]
    assert cell["struck"] == {"N-EV": 2} and cell["signed"] == {"N-EV": 1}
    assert study["page"].split(cell) == "2 of 2; 1 of 1; 1 of 1"


def test_cells_of_two_machines_are_named_and_not_paired(study, tmp_path):
    results = study["results"]
    for name, machine in (("ddp-2.0", "a"), ("horovod-2.0", "b"), ("layer-fc", "b")):
        make_campaign(study, tmp_path / name, name, [trial_line(0)])
        results.machine_note(tmp_path / name).write_text(json.dumps({"CPU": machine}))
    found = results.collect(tmp_path)
    assert found["machines"] == {"A": {"CPU": "a"}, "B": {"CPU": "b"}} and not found["pairs"]
    page = study["page"].make_page(found)
    assert "Machine A: CPU a. Machine B: CPU b." in page
    assert "2 of 3,106 trials on machines A and B" in page
    assert "1 of 4,235 trials on machine B" in page
    results.machine_note(tmp_path / "ddp-2.0").write_text(json.dumps({"CPU": "b"}))
    assert "ddp-2 horovod-2" in results.collect(tmp_path)["pairs"]


def test_campaigns_are_carried_to_another_folder_and_replace_none(study, tmp_path):
    results, archive = study["results"], study["archive"]
    work, out, other = tmp_path / "work", tmp_path / "out", tmp_path / "other"
    work.mkdir()
    for name in ("layer-fc", "layer-conv1", "ddp-2.0"):
        make_campaign(study, work / name, name, [trial_line(0)])
        results.machine_note(work / name).write_text(json.dumps({"CPU": "a"}))
    assert len(archive.pack(work, out)) == len(archive.unpack(out, other)) == 2
    assert results.collect(other) == results.collect(work)
    archive.unpack(out, other)  # once more changes nothing
    (other / "ddp-2.0/trials.jsonl").write_text("")
    (other / "layer-fc/trials.jsonl").unlink()
    with pytest.raises(ValueError, match="ddp-2.0/trials.jsonl: is there and differs"):
        archive.unpack(out, other)
    assert not (other / "layer-fc/trials.jsonl").exists()


def test_a_campaign_that_is_not_finished_is_carried_with_the_state_of_its_golden_run(
    study, tmp_path
):
    archive = study["archive"]
    [planned] = [cell.trials for cell in archive.all_campaigns() if cell.name == "ddp-2.0"]
    for left in (0, 1):
        work, out, other = (tmp_path / f"{name} {left}" for name in ("work", "out", "other"))
        work.mkdir()
        lines = [trial_line(trial) for trial in range(planned - left)]
        make_campaign(study, work / "ddp-2.0", "ddp-2.0", lines)
        study["results"].machine_note(work / "ddp-2.0").write_text("{}")
        (work / "ddp-2.0" / archive.STATE).write_bytes(b"state")
        archive.pack(work, out)
        archive.unpack(out, other)
        assert (other / "ddp-2.0" / archive.STATE).exists() == bool(left)


PROGRAM_THAT_WRITES = """#!/usr/bin/env python3
# Writes the trials that it is asked for, and fails for Horovod.
import pathlib, sys
if "horovod" in sys.argv:
    sys.exit("no Horovod here")
out = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
out.mkdir(exist_ok=True)
trials = int(sys.argv[sys.argv.index("--trials") + 1])
(out / "trials.jsonl").write_text('{"seconds": 60}\\n' * trials)
"""


def test_a_kind_that_fails_leaves_out_only_its_cells(study, tmp_path, capsys):
    run = study["run"]
    program = tmp_path / "holdfast"
    program.write_text(PROGRAM_THAT_WRITES)
    program.chmod(0o755)
    (tmp_path / "sgd.pt").touch()
    names = ("ddp-2.0", "horovod-2.0", "layer-fc", "layer-conv1")
    cells = [cell for cell in study["cells"].all_campaigns() if cell.name in names]
    work = run.Study(tmp_path, program, 0.1)
    failed = run.run_cells(cells, work, 1)
    said = capsys.readouterr().out
    assert [cell.name for cell in failed] == ["horovod-2.0"] and "no Horovod here" in said
    assert "1 cells are left out" in said and "3 cells, 82 trials left, about 82 min" in said
    assert not (tmp_path / "horovod-2.0").exists()
    counts = {cell.name: work.seen(cell) for cell in cells}
    assert counts == {"ddp-2.0": (8, 480), "horovod-2.0": (0, 0), "layer-fc": (39, 2340),
                      "layer-conv1": (39, 2340)}  # fmt: skip
    (tmp_path / "layer-fc/trials.jsonl").unlink()  # is not read again
    rest = [cell for cell in cells if cell.name != "horovod-2.0"]
    assert work.left(rest, 1) == "0 trials left, about 1 min"


def test_another_machine_does_not_continue_a_cell(study, tmp_path):
    run = study["run"]
    program = tmp_path / "holdfast"
    program.write_text(PROGRAM_THAT_WRITES)
    program.chmod(0o755)
    (tmp_path / "sgd.pt").touch()
    cell = next(cell for cell in study["cells"].all_campaigns() if cell.name == "layer-fc")
    run.Study(tmp_path, program, 0.1).run(cell)
    note = study["results"].machine_note(tmp_path / cell.name)
    note.write_text(json.dumps({"CPU": "another"}))
    run.Study(tmp_path, program, 0.1).run(cell)  # nothing is left to do
    more = run.Study(tmp_path, program, 0.2)
    with pytest.raises(RuntimeError, match="layer-fc: its 39 trials ran on CPU another, and this"):
        more.run(cell)
    assert more.seen(cell)[0] == 39
    (tmp_path / cell.name / "old").touch()
    anew = run.Study(tmp_path, program, 0.2, anew=True)
    anew.run(cell)
    assert anew.seen(cell)[0] == 77 and not (tmp_path / cell.name / "old").exists()
    assert json.loads(note.read_text()) == run.describe_machine()


def test_the_study_ends_its_campaigns_when_the_minutes_have_passed(study, tmp_path):
    run = study["run"]
    program = tmp_path / "holdfast"
    program.write_text(f"#!/bin/sh\ntrap 'touch {tmp_path}/asked; exit 1' INT\nwhile :; do sleep 0.1; done\n")
    program.chmod(0o755)
    (tmp_path / "sgd.pt").touch()
    cells = [cell for cell in study["cells"].all_campaigns() if cell.name.startswith("layer")]
    work = run.Study(tmp_path, program, 1.0, minutes=0.005)
    assert run.run_cells(cells, work, 1) == []  # no failure, and the other cells do not begin
    assert (tmp_path / "asked").exists() and work.is_over()
    assert len(list(tmp_path.glob("*.machine.json"))) == 1


@pytest.mark.parametrize(
    "options", [("--ranks", "2"), ("--steps", "0"), ("--serve", "--save", "x"),
                ("--batch", "2000"), ("--launcher", "ddp"), ("--launcher", "pipeline"),
                ("--launcher", "pipeline", "--ranks", "3"),
                ("--launcher", "pipeline", "--ranks", "2", "--microbatches", "5"),
                ("--launcher", "pipeline", "--ranks", "2", "--save", "x")])
def test_wrong_options_of_the_training_are_refused_in_words(options, monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setattr(sys, "argv", ["train_digits.py", *options])
    with pytest.raises(SystemExit):
        importlib.import_module("train_digits").parse()
    assert "expected" in capsys.readouterr().err


@pytest.mark.parametrize("options", [("--scale", "0"), ("--scale", "nan"), ("--jobs", "0"), ("--minutes", "nan")])
def test_wrong_options_of_the_study_are_refused_in_words(options, tmp_path):
    done = run_study(tmp_path / "work", *options)
    assert done.returncode == 2 and "expected" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "work").exists()
