"""study/checkpoints: the recorder sees every call, planted engines get the verdict they deserve, real ones are judged."""

import importlib
import json
import math
import mmap
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import xml.dom.minidom
from pathlib import Path

import numpy as np
import pytest

import holdfast
from long_tests import IS_LONG, LONG

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "study/checkpoints"
NAMES = ("trees", "recorder", "damage", "states", "engine", "crash", "cells", "results", "forks", "models", "flips", "tables",
         "charts", "verdicts", "page", "report", "run", "cost", "measuring.machines", "measuring.disk")  # fmt: skip


@pytest.fixture(scope="module")
def study():
    """The modules of the study by name, imported as its scripts import each other."""
    before, known = list(sys.path), set(sys.modules)
    sys.path[:0] = [str(FOLDER), str(ROOT / "bench")]
    yield {name: importlib.import_module(name) for name in NAMES}
    sys.path[:] = before
    for name in set(sys.modules) - known:  # these names are too common to stay
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def record(study, tmp_path):
    """Records some works in the folder "f"."""
    folder = tmp_path / "f"
    folder.mkdir()
    try:
        study["recorder"].record([lambda: None], folder)
    except study["recorder"].NotPermitted as error:
        pytest.skip(str(error))
    return lambda *works, **how: study["recorder"].record(
        [lambda work=work: work(folder) for work in works], folder, **how)  # fmt: skip


def write(path, data, *, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC, pieces=1, sync=False):
    number = os.open(path, flags, 0o644)
    size = -(-len(data) // pieces)
    for at in range(0, len(data), size):
        os.write(number, data[at : at + size])
    if sync:
        os.fsync(number)
    os.close(number)


def contents(tree):
    return {name: entry.data for name, entry in tree.items() if entry.data is not None}


class TestRecorder:
    def test_known_calls_give_exactly_their_states(self, record):
        def work(folder):
            os.mkdir(folder / "new")
            write(folder / "new" / "a", b"abcd", pieces=2, sync=True)
            os.rename(folder / "new" / "a", folder / "b")
            write(os.devnull, b"elsewhere")
            os.open(folder / "b", os.O_RDONLY)
            os.unlink(folder / "b")

        found = record(work)
        assert found.codes == [0] and not found.unseen
        # Python may take another call for the same: openat or open, rename or renameat2.
        assert [(call.name.rstrip("at2"), call.paths) for call in found.calls] == [
            ("mkdir", ("new",)), ("open", ("new/a",)), ("write", ("new/a",)), ("write", ("new/a",)),
            ("fsync", ("new/a",)), ("rename", ("new/a", "b")), ("unlink", ("b",))]  # fmt: skip
        assert [contents(call.before) for call in found.calls] == [
            {}, {}, {"new/a": b""}, {"new/a": b"ab"}, {"new/a": b"abcd"}, {"new/a": b"abcd"}, {"b": b"abcd"}]
        assert contents(found.last) == {} and found.writes == 2

    def test_threads_and_children_are_seen(self, record):
        def work(folder):
            threads = [threading.Thread(target=write, args=(folder / f"{one}", b"x" * 1000))
                       for one in range(4)]  # fmt: skip
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            subprocess.run(["sh", "-c", f"echo child > {folder}/child"], check=True)

        found = record(work)
        seen = {path for call in found.calls if call.writes for path in call.paths}
        assert seen == {"0", "1", "2", "3", "child"} and not found.unseen
        # No state has a part of a write: each file is missing, empty or whole.
        sizes = {len(data) for tree in found.states() for name, data in contents(tree).items() if name != "child"}
        assert sizes == {0, 1000}

    def test_what_a_mapping_writes_is_told(self, record):
        def work(folder):
            write(folder / "a", bytes(4096))
            os.mkdir(folder / "b")
            with (folder / "a").open("r+b") as file, mmap.mmap(file.fileno(), 4096) as mapped:
                mapped[:4] = b"seen"
            write(folder / "c", b"")

        assert record(work).unseen == {"a"}

    def test_a_full_disk_is_an_answer(self, record):
        def work(folder):
            write(folder / "a", b"12")
            write(folder / "b", b"12")

        found = record(work, full_after=1)
        assert found.codes == [1] and contents(found.last) == {"a": b"12", "b": b""}

    def test_one_of_two_ranks_is_killed_at_a_call(self, record):
        def rank(name):
            return lambda folder: [write(folder / f"{name}{number}", b"x") for number in range(2)]

        found = record(rank("a"), rank("b"), kill=(1, 4))
        assert found.codes == [0, -9]
        assert contents(found.last) == {"a0": b"x", "a1": b"x", "b0": b"x", "b1": b""}

    def test_work_that_never_ends_is_killed(self, record):
        assert record(lambda folder: threading.Event().wait(), seconds=0.5).codes == [-9]


def in_place(folder, data):
    write(folder / "last", data, pieces=4)


def renamed(folder, data, sync=False):
    write(folder / "new", data, pieces=4, sync=sync)
    os.rename(folder / "new", folder / "last")


def renamed_and_synced(folder, data):
    renamed(folder, data, sync=True)


def renamed_behind_a_sync_of_everything(folder, data):
    write(folder / "new", data, pieces=4)
    os.sync()
    os.rename(folder / "new", folder / "last")


def forgiving(folder, data):
    try:
        renamed_and_synced(folder, data)
    except OSError:
        pass


def by_a_thread(folder, data):
    thread = threading.Thread(target=in_place, args=(folder, data))
    thread.start()
    thread.join()


def by_a_child(folder, data):
    subprocess.run([sys.executable, "-S", "-c", "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())",
                    folder / "last"], input=data, check=True)  # fmt: skip


def halves(folder, data):
    """Each of two ranks replaces its half, without a word to the other."""
    rank = int(os.environ["RANK"])
    half = len(data) // 2
    write(folder / f"part-{rank}.new", data[rank * half : (rank + 1) * half], sync=True)
    os.rename(folder / f"part-{rank}.new", folder / f"part-{rank}")


def hang(folder):
    threading.Event().wait()


def crash(folder):
    os._exit(3)


class TestVerdicts:
    @pytest.fixture
    def measure(self, study, record, tmp_path, monkeypatch):
        def measured(write_all, load=None, ranks=1):
            states = study["states"]

            def save(step, state, folder):
                write_all(folder, b"".join(array.tobytes() for array in state.values()))

            def read(folder):
                parts = sorted(folder.glob("part-?")) or [folder / "last"]
                if not parts[0].exists():
                    return None
                data = np.frombuffer(b"".join(part.read_bytes() for part in parts), np.float32)
                wanted = states.make_state(1)
                assert data.size == sum(array.size for array in wanted.values()), "cut short"
                found, at = {}, 0
                for name, array in wanted.items():
                    found[name], at = data[at : at + array.size], at + array.size
                return found

            engine = study["engine"].Engine("planted", "holdfast", lambda state: state, save, load or read, ranks)
            return study["crash"].measure(engine, tmp_path / "w")

        monkeypatch.setattr(study["crash"], "SECONDS", 2)
        return measured

    def test_in_place_loses_everything(self, measure):
        found = measure(in_place)
        assert found["kill"] == {"previous": 1, "lost": 4, "newest": 1} and found["unseen"] == []
        assert found["torn"] == {"lost": 4} and found["full"] == {"lost": 4}

    def test_a_rename_without_a_sync_survives_kills_and_no_power_cut(self, measure):
        found = measure(renamed)
        assert set(found["kill"]) == {"previous", "newest"} and set(found["power"]) == {"previous", "lost", "wrong"}

    @pytest.mark.parametrize("engine", [renamed_and_synced, renamed_behind_a_sync_of_everything])
    def test_a_rename_behind_a_sync_survives_all(self, measure, engine):
        found = measure(engine)
        for kind in ("kill", "torn", "power", "full"):
            assert set(found[kind]) <= {"previous", "newest"}, kind

    def test_a_swallowed_error_is_a_lie(self, measure):
        assert measure(forgiving)["full"] == {"said done, and it is not there": 4}

    @pytest.mark.parametrize("engine", [by_a_thread, by_a_child])
    def test_saves_by_others_are_judged_alike(self, measure, engine):
        found = measure(engine)
        assert found["kill"]["previous"] == 1 and found["kill"]["newest"] == 1 and found["kill"]["lost"] >= 1

    def test_ranks_that_do_not_agree_mix_two_steps(self, measure):
        found = measure(halves, ranks=2)
        assert found["kill"]["wrong"] >= 1 and found["rank"]["wrong"] >= 1 and "lost" not in found["kill"]

    @pytest.mark.parametrize(("load", "verdict"), [(crash, "crashes"), (hang, "hangs")])
    def test_an_engine_that_crashes_or_hangs_has_a_verdict(self, study, measure, monkeypatch, load, verdict):
        monkeypatch.setattr(study["crash"], "SECONDS", 0.5)
        assert set(measure(lambda folder, data: write(folder / "last", data), load)["after"]) == {verdict}


ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(holdfast.__file__).parents[1])}
TINY = ["digits", "momentum"]


def run_study(*options):
    return subprocess.run([sys.executable, FOLDER / "run.py", "--quick", *options], capture_output=True, text=True,
                          timeout=300, check=False, env=ENVIRONMENT)  # fmt: skip


@pytest.fixture(scope="module")
def measured(study):
    """What torch's worker finds of real engines, in one process: all experiments, with a tiny state."""
    memory = study["run"].MEMORY  # thousands of small files are written
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as work:
        return measure_all(Path(work))


def measure_all(work):
    cells = {f"crash-{name}": {} for name in ("torch.save", "safetensors", "holdfast")}
    cells |= {f"{kind}-{name}": options for name in ("torch.save", "holdfast") for kind, options in {
        "formats": {"model": TINY[0], "optimizer": TINY[1], "rounds": 2}, "flips": {"flips": 20},
        "cost": {"intervals": [1, 3], "rounds": 2, "state": TINY}}.items()}  # fmt: skip
    cells["scale-torch.save"] = {"who": "all", "ranks": [2], "state": TINY}
    found = ask_worker("torch", sys.executable, work, cells | (LONG_CELLS if IS_LONG else {}))
    assert not [one for one in found.values() if "failed" in one], found
    return found


def ask_worker(framework, python, work, cells):
    lines = [json.dumps({"experiment": (words := name.removesuffix("-resnet50+momentum").partition("-"))[0],
                         "engine": words[2], "work": str(work / name),
                         "options": options}) for name, options in cells.items()]  # fmt: skip
    done = subprocess.run([python, FOLDER / "worker.py", framework], input="\n".join(lines), capture_output=True,
                          text=True, timeout=600, check=True, env=ENVIRONMENT)  # fmt: skip
    return dict(zip(cells, map(json.loads, done.stdout.splitlines()), strict=True))


LONG_CELLS = {**{f"bits-{way}": {"framework": "torch"} for way in ("torch.save", "holdfast", "torch.save+generator+position")},
              "restart-holdfast": {"framework": "torch", "rounds": 1, "state": TINY},
              "scale-dcp": {"who": "parts", "ranks": [2], "state": TINY},
              "scale-holdfast": {"who": "parts", "ranks": [2], "state": TINY}}  # fmt: skip


class TestStudy:
    def test_real_engines_are_judged_and_holdfast_loses_nothing(self, record, measured):
        assert measured["crash-torch.save"]["kill"]["lost"] >= 5
        assert "lost" not in measured["crash-safetensors"]["kill"] and measured["crash-safetensors"]["power"]["lost"] >= 1
        for kind in ("kill", "torn", "power", "full"):
            assert set(measured["crash-holdfast"][kind]) <= {"newest", "previous"}, kind
        assert measured["crash-holdfast"]["calls"] > 30 and measured["crash-holdfast"]["unseen"] == []

    def test_real_engines_save_what_they_load(self, study, measured):
        exact = sum(array.nbytes for array in study["models"].make(*TINY).values())
        for name in ("torch.save", "holdfast"):
            found = measured[f"formats-{name}"]
            assert found["exact"] == exact < found["bytes"] < 2.5 * exact
            assert found["equal"] and found["one_tensor"]["equal"]
            assert {len(times) for times in found["seconds"].values()} == {2}
            blocks = measured[f"cost-{name}"]["blocks"]
            assert [(blocks[k]["saves"], blocks[k]["steps"]) for k in ("1", "3")] == [(10, 10), (3, 9)]
        assert set(measured["formats-torch.save"]["without"]) == {"CRC", "container"}

    def test_only_digests_notice_a_flipped_bit(self, measured):
        assert measured["flips-torch.save"]["tensors"] == {"wrong": 20}
        assert measured["flips-holdfast"]["tensors"] == {"noticed": 20}

    def test_each_of_two_ranks_writes_a_full_copy(self, measured):
        found = measured["scale-torch.save"]["ranks"]["2"]
        assert found["files"] == 2 and found["bytes"] > 2 * measured["formats-torch.save"]["exact"]

    @LONG
    def test_all_experiments_run(self, measured):
        assert measured["bits-torch.save"]["bits"] == {"end": "different", "middle": "different"}
        assert measured["bits-holdfast"]["bits"] == {"end": "equal", "middle": "equal"}
        assert measured["bits-torch.save+generator+position"]["bits"] == {"end": "equal", "middle": "equal"}
        assert set(measured["restart-holdfast"]["seconds"]) == {"import", "load", "step"}
        for name in ("dcp", "holdfast"):
            found = measured[f"scale-{name}"]["ranks"]["2"]
            assert found["files"] >= 2 and found["syncs"] >= 2 and found["bytes"] > measured["formats-torch.save"]["exact"]

    @LONG
    @pytest.mark.parametrize("framework", ["tensorflow", "chainer", "orbax"])
    def test_every_engine_of_other_frameworks_is_measured(self, study, record, tmp_path, framework):
        python = ROOT / f".cache/{framework}/bin/python"
        if not python.exists():
            pytest.skip(f"needs scripts/foreign_environment.sh {framework}")
        options = {"crash": {"most_deaths": 2}, "formats": {"model": TINY[0], "optimizer": TINY[1], "rounds": 1},
                   "flips": {"flips": 4}, "cost": {"intervals": [1], "rounds": 1, "state": TINY},
                   "restart": {"framework": framework, "rounds": 1, "state": TINY}, "bits": {"framework": framework}}  # fmt: skip
        cells = {cell.name: options[cell.experiment] for cell in study["cells"].all_cells(quick=True)
                 if cell.framework == framework and cell.experiment in options}  # fmt: skip
        found = ask_worker(framework, python, tmp_path, cells)
        assert not [one for one in found.items() if {"failed", "not_run"} & set(one[1])], found
        assert all(one["equal"] for name, one in found.items() if name.startswith("formats-"))

    def test_what_is_measured_is_not_measured_again(self, study, tmp_path):
        kept = tmp_path / "results.json"
        study["results"].Results(kept, study["measuring.machines"].this_machine()).keep("crash-dcp", {"kill": {"lost": 1}, "quick": True})
        before = kept.read_text()
        done = run_study("--only", "crash-dcp", "--results", kept)
        assert (done.returncode, kept.read_text()) == (0, before) and "crash-dcp:" not in done.stdout
        assert "`dcp` 1 of 1" in kept.with_suffix(".html").read_text().replace("<code>", "`").replace("</code>", "`")
        results = study["results"].Results(kept, study["measuring.machines"].this_machine())
        assert results.is_done("crash-dcp", quick=True) and not results.is_done("crash-dcp", quick=False)

    @LONG
    def test_a_study_that_is_killed_goes_on_where_it_was(self, record, tmp_path):
        words = [sys.executable, FOLDER / "run.py", "--engine", "safetensors", "--only", "crash-safetensors", "flips-safetensors",
                 "--results", tmp_path / "results.json", "--folder", tmp_path]  # fmt: skip
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as study:
            first = study.stdout.readline()
            study.kill()
        assert first.startswith("crash-safetensors: ")
        again = subprocess.run(words, capture_output=True, text=True, check=True, env=ENVIRONMENT).stdout
        assert again.startswith("flips-safetensors: ") and "crash-safetensors: " not in again
        assert set(json.loads((tmp_path / "results.json").read_text())["cells"]) == {"crash-safetensors", "flips-safetensors"}

    def test_cells_of_two_machines_are_not_mixed(self, tmp_path):
        kept = tmp_path / "results.json"
        kept.write_text(json.dumps({"machine": {"machine": "vax"}, "cells": {}}))
        done = run_study("--engine", "torch.save", "--results", kept)
        assert done.returncode == 1 and "vax" in done.stderr and "--anew" in done.stderr

    @pytest.mark.parametrize(("patterns", "engines", "nearest"), [((), ("torch_save",), "torch.save"),
                                                                  (("crsh-dcp",), (), "crash-dcp")])
    def test_unknown_names_are_refused_with_the_nearest(self, study, patterns, engines, nearest):
        with pytest.raises(ValueError, match=re.escape(nearest)):
            study["cells"].choose(patterns, engines)

    def test_an_unknown_name_is_a_wrong_call(self):
        assert run_study("--engine", "torch_save").returncode == 2

    def test_the_cells_are_the_engines_and_ways(self, study):
        for framework, names in study["cells"].ENGINES.items():
            text = (FOLDER / f"{framework}_engines.py").read_text()
            assert re.findall(r'(?:[Ee]ngine|on_module|on_model)\("([^"]+)"', text) == list(names)

    def test_states_have_the_sizes_of_the_models(self, study):
        def size(name):
            shapes = study["models"].shapes_with(*name.split("+"))
            return sum(math.prod(shape) * np.dtype(study["states"].dtype_of(name)).itemsize
                       for name, shape in shapes.items())  # fmt: skip

        assert [size(name) for name in study["cells"].STATES] == [
            102_441_032, 204_669_160, 306_897_288, 553_430_176, 1_106_860_352, 1_660_290_528, 488_806_720, 1_493_277_696]


def planted(**more):
    """One cell of each experiment, with figures."""
    formats = {"bytes": 300, "exact": 200, "files": 1, "equal": True, "memory": {"save": 200, "load": 0},
               "seconds": {"call": [1.0], "synced": [2.0], "load": [3.0]},
               "without": {"deflate": {"pairs": [[8.0, 2.0]] * 6, "bytes": 400},
                           "sync": {"pairs": [[1.0, 3.0]] * 6, "bytes": 300},
                           "CRC": {"pairs": [[1.0, 2.0]] + [[2.0, 1.0]] * 5, "bytes": 300},
                           "copy": {"pairs": [[2.0, 1.0]], "bytes": 300}}}  # fmt: skip
    block = {"saves": 1, "steps": 10, "with": [1.5] * 6, "without": [1.0] * 6}
    cells = {"formats-planted-resnet50+momentum": formats, "flips-planted": {"tensors": {"wrong": 3, "noticed": 1}},
             "cost-planted": {"first": 1.0, "step": 0.1, "blocks": {"10": block}},
             "restart-planted": {"seconds": {"import": [4.0] * 6, "load": [1.0] * 6}},
             "bits-planted": {"bits": {"end": "different", "middle": "different"}},
             "bits-planted+generator": {"bits": {"end": "equal", "middle": "different"}},
             "scale-planted-all": {"ranks": {"1": {"seconds": [1.0], "bytes": 10, "files": 1},
                                             "4": {"seconds": [2.0], "bytes": 40, "files": 4}}}}  # fmt: skip
    return cells | more


class TestPage:
    @pytest.fixture
    def given(self, study):
        return json.loads(study["page"].RESULTS.read_text())

    def test_the_page_is_what_the_script_makes(self, study, given):
        page = study["page"]
        assert page.PAGE.read_text() == page.make_page(given), "run study/checkpoints/page.py"
        assert page.PAPERS.held() == page.make_claims(given), "run study/checkpoints/page.py"
        for path, svg in page.make_charts(given).items():
            assert path.read_text() == svg, "run study/checkpoints/page.py"

    def test_other_results_give_another_page_and_report(self, study, given):
        pages = [study["page"].make_page, study["report"].make_report]
        before = [make(given) for make in pages]
        given["cells"]["crash-orbax"]["kill"] = {"lost": 7}
        after = [make(given) for make in pages]
        assert all("7 LOST" in text for text in after) and all(a != b for a, b in zip(before, after, strict=True))

    def test_an_engine_that_did_not_run_stays_in_the_table(self, study, given):
        given["cells"] = {"crash-orbax": {"not_run": "orbax was not installed: no network"}}
        for text in (study["page"].make_page(given), study["report"].make_report(given)):
            assert "orbax was not installed: no network" in text and "not run: nobody has run it" in text
        assert study["verdicts"].advice(given["cells"], "users") == []

    def test_the_report_needs_nothing_from_elsewhere(self, study, given):
        text = study["report"].make_report(given)
        assert "<script" not in text and not re.findall(r"(?:src|href)=|url\(|@import", text)
        assert "prefers-color-scheme:dark" in text and "@media print" in text
        assert text.count("<svg") == sum(bool(make(given["cells"])) for make in study["charts"].CHARTS.values()) >= 1
        xml.dom.minidom.parseString(study["charts"].alone(study["charts"].crash_chart(given["cells"])))

    @pytest.mark.parametrize(("reader", "cell", "said"), [
        ("users", {"kill": {"lost": 3, "newest": 1}}, "`planted` 3 of 4"),
        ("users", {"kill": {"refuses": 1}}, "must try older ones"),
        ("users", {"kill": {"newest": 1}, "power": {"previous": 1}}, "After a power cut, too: `planted`"),
        ("developers", {"kill": {"newest": 3}, "rank": {"wrong": 1}}, "in 1 of 4 states"),
        ("developers", {"kill": {"newest": 1}, "power": {"lost": 1}}, "not after power cuts"),
        ("developers", {"kill": {}, "full": {"said done, and it is not there": 1}}, "on a full disk"),
        ("developers", {"kill": {"starts anew": 1}}, "starts anew without a word"),
    ])  # fmt: skip
    def test_every_rule_on_crashes_fires_on_figures_and_is_silent_without(self, study, reader, cell, said):
        advice = study["verdicts"].advice
        assert any(said in text and "planted" in text for text in advice({"crash-planted": cell}, reader))
        assert not any(said in text for text in advice({"crash-planted": {"kill": {}}}, reader))

    @pytest.mark.parametrize(("reader", "said"), [
        ("users", "`planted` 500 ms (500 to 500), every 500 steps"), ("users", "`planted` 4.00 (4.00 to 4.00) times as long for 25 % fewer"),
        ("users", "only at the end of an epoch: `planted+generator`; never: `planted`"), ("users", "`planted` 3 of 4"),
        ("users", "`planted` 5.00 (5.00 to 5.00) s, of which import 4.00 (4.00 to 4.00) s"),
        ("developers", "leaving it out. `planted`: deflate 75 % (75 to 75)."),
        ("developers", "a save takes longer. `planted`: sync, 3.00 (3.00 to 3.00) times."),
        ("developers", "is not decided by these figures. `planted`: CRC; `planted`: copy."),
        ("developers", "so many times its bytes: `planted` 1.0"), ("developers", "once it also saves the generator"),
        ("developers", "`planted-all`: from 1 to 4 ranks, a save writes 4.0 times the bytes in 4 files instead of 1."),
    ])  # fmt: skip
    def test_every_other_rule_prints_its_figures(self, study, reader, said):
        advice = study["verdicts"].advice
        assert any(said in text for text in advice(planted(), reader)), advice(planted(), reader)

    def test_sizes_are_compared_once_there_are_two(self, study):
        other = planted()["formats-planted-resnet50+momentum"] | {"bytes": 202}
        cells = planted(**{"formats-other-resnet50+momentum": other})
        said = "`other` has +1.00 % and `planted` +50.00 %"
        assert any(said in text for text in study["verdicts"].advice(cells, "users"))

    def test_page_and_claim_judge_sizes_by_one_rule(self, study):
        for size, word, verdict in ((202, "Formats differ", "**yes**"), (300, "Formats hardly differ", "**no**")):
            other = planted()["formats-planted-resnet50+momentum"] | {"bytes": size}
            cells = planted(**{"formats-other-resnet50+momentum": other})
            assert any(text.startswith(word) for text in study["verdicts"].advice(cells, "users"))
            assert verdict in dict((words[0], text) for words, text in study["verdicts"].claims(cells))[
                "formats and file sizes differ"]  # fmt: skip

    def test_what_is_not_told_from_nothing_is_no_claim(self, study):
        block = {"saves": 1, "steps": 10, "with": [1.5, 0.9] * 3, "without": [1.0] * 6}
        cells = {"cost-a": {"first": 1.0, "step": 0.1, "blocks": {"10": block}},
                 "cost-b": {"first": 1.0, "step": 0.1, "blocks": {"10": block | {"with": [1.9] * 6}}}}
        assert any("`a` 200 ms (-100 to 500), which is not told from 0" in text
                   for text in study["verdicts"].advice(cells, "users"))  # fmt: skip
        claim = next(text for words, text in study["verdicts"].claims(cells) if "cost-*" in words[1])
        assert claim.startswith("**undecided**")

    def test_times_of_ranks_beyond_the_cores_are_not_told(self, study):
        cells = {"scale-torch.save-all": planted()["scale-planted-all"]}
        (row,) = (row for row in study["tables"].scale_table(cells, 2).rows if row[0] == "`torch.save` all")
        assert row[1:] == ["1.00 (once) s, 0 MB, 1 files", "0 MB, 4 files"]

    def test_the_kind_of_a_file_system_is_that_of_its_mount(self, study, tmp_path):
        mounts = tmp_path / "mounts"
        mounts.write_text(f"/dev/a / ext4 rw 0 0\nb {tmp_path} tmpfs rw 0 0\nc {tmp_path} xfs rw 0 0\n")
        kind = study["measuring.disk"].file_system
        assert (kind(tmp_path / "x", mounts), kind(Path("/"), mounts), kind(tmp_path, tmp_path / "none")) == ("xfs", "ext4", "")

    def test_no_block_pays_for_what_another_writes_in_the_background(self, study, tmp_path):
        """A planted engine that writes for longer than a block takes."""
        written = []

        def save(step):
            threads.append(threading.Thread(target=lambda: (time.sleep(0.02), written.append(step))))
            threads[-1].start()

        def finish():
            for thread in threads:
                thread.join()

        threads = []
        training = study["cost"]._Training({}, study["engine"].Session(save, lambda: None, finish), tmp_path)
        training.run(3, 1)
        assert sorted(written) == [1, 2, 3]

    def test_all_flips_that_are_noticed_are_praised(self, study):
        cells = planted(**{"flips-planted": {"tensors": {"noticed": 4}}})
        assert any("is noticed by `planted`" in text for text in study["verdicts"].advice(cells, "users"))

    def test_a_flip_changes_one_bit(self, study, tmp_path):
        (tmp_path / "a").write_bytes(bytes(4))
        study["flips"].flip(tmp_path / "a", 17)
        assert (tmp_path / "a").read_bytes() == b"\0\0\2\0"


class TestBench:
    def test_quick_measures_all_and_leaves_nothing(self, tmp_path):
        words = [sys.executable, "-m", "holdfast.bench", tmp_path, "--quick", "--size", "1", "--json"]
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=ENVIRONMENT)
        found = json.loads(done.stdout)
        assert {"Holdfast", "torch.save", "DCP"} <= set(found["engines"]) and found["rounds"] >= 2 and done.stderr == ""
        for one in found["engines"].values():
            assert 0 < one["stall"][1] <= one["stall"][0] <= one["durable"][0] and one["load"][0] > 0 and one["every"] > 0
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(("words", "said"), [(["nowhere"], "nowhere: not a folder"), ([300 * "long"], "not a folder"),
                                                 ([".", "--mtbf", "soon"], "soon"),
                                                 ([".", "--size", "99999999"], "MB are free")])
    def test_wrong_calls_are_one_sentence(self, words, said, capsys):
        from holdfast import bench

        with pytest.raises(SystemExit) as ended:
            bench.main(words)
        told = capsys.readouterr().err
        assert ended.value.code == 2 and said in told and told.count("\n") == 1 and told.startswith("holdfast: bench: ")
