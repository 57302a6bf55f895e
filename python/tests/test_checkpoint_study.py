"""study/checkpoints: the recorder sees every call, planted engines get the verdict they deserve, real ones are judged."""

import importlib
import json
import mmap
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import holdfast

FOLDER = Path(__file__).resolve().parents[2] / "study/checkpoints"
NAMES = ("trees", "recorder", "damage", "states", "engine", "crash", "cells", "results")


@pytest.fixture(scope="module")
def study():
    """The modules of the study by name, imported as its scripts import each other."""
    sys.path.insert(0, str(FOLDER))
    yield {name: importlib.import_module(name) for name in NAMES}
    sys.path.remove(str(FOLDER))
    for name in NAMES:  # these names are too common to stay
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

            engine = study["engine"].Engine("planted", "holdfast", save, load or read, ranks)
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
    def test_an_engine_that_crashes_or_hangs_has_a_verdict(self, measure, load, verdict):
        assert set(measure(lambda folder, data: write(folder / "last", data), load)["after"]) == {verdict}


def run_study(*options):
    return subprocess.run([sys.executable, FOLDER / "run.py", "--quick", *options], capture_output=True, text=True,
                          timeout=300, check=False,
                          env=os.environ | {"PYTHONPATH": str(Path(holdfast.__file__).parents[1])})  # fmt: skip


class TestStudy:
    def test_real_engines_are_judged_and_holdfast_loses_nothing(self, record, tmp_path):
        kept = tmp_path / "results.json"
        run_study("--engine", "torch.save", "--results", kept)
        first = kept.read_text()
        done = run_study("--engine", "torch.save", "safetensors", "holdfast", "--results", kept)
        assert done.returncode == 0, done.stderr
        assert "crash-torch.save:" not in done.stdout, "it was measured again"
        cells = json.loads(kept.read_text())["cells"]
        assert json.loads(first)["cells"]["crash-torch.save"] == cells["crash-torch.save"]
        assert cells["crash-torch.save"]["kill"]["lost"] >= 5
        assert "lost" not in cells["crash-safetensors"]["kill"] and cells["crash-safetensors"]["power"]["lost"] >= 1
        for kind in ("kill", "torn", "power", "full"):
            assert set(cells["crash-holdfast"][kind]) <= {"newest", "previous"}, kind
        assert cells["crash-holdfast"]["calls"] > 30 and cells["crash-holdfast"]["unseen"] == []

    def test_cells_of_two_machines_are_not_mixed(self, tmp_path):
        kept = tmp_path / "results.json"
        kept.write_text(json.dumps({"machine": {"machine": "vax"}, "cells": {}}))
        done = run_study("--engine", "torch.save", "--results", kept)
        assert done.returncode == 1 and "vax" in done.stderr and "--anew" in done.stderr

    @pytest.mark.parametrize(("option", "value", "nearest"), [("--engine", "torch_save", "torch.save"),
                                                              ("--only", "crsh-dcp", "crash-dcp")])
    def test_unknown_names_are_wrong_calls(self, option, value, nearest):
        done = run_study(option, value)
        assert done.returncode == 2 and nearest in done.stderr

    def test_the_cells_are_the_engines(self, study):
        for framework, names in study["cells"].ENGINES.items():
            text = (FOLDER / f"{framework}_engines.py").read_text()
            assert re.findall(r'Engine\("([^"]+)"', text) == list(names)


@pytest.fixture(scope="module")
def page(study):
    yield {name: importlib.import_module(name) for name in ("verdicts", "page")}
    for name in ("verdicts", "page"):
        del sys.modules[name]


class TestPage:
    @pytest.fixture
    def given(self, page):
        return json.loads(page["page"].RESULTS.read_text())

    def test_the_page_is_what_the_script_makes(self, page, given):
        assert page["page"].PAGE.read_text() == page["page"].make_page(given), "run study/checkpoints/page.py"

    def test_other_results_give_another_page(self, page, given):
        before = page["page"].make_page(given)
        given["cells"]["crash-orbax"]["kill"] = {"lost": 7}
        assert "7 LOST" in page["page"].make_page(given) != before

    def test_an_engine_that_did_not_run_stays_in_the_table(self, page, given):
        given["cells"] = {"crash-orbax": {"not_run": "orbax was not installed: no network"}}
        text = page["page"].make_page(given)
        assert "orbax was not installed: no network" in text and "`torch.save` | not run" in text
        assert page["verdicts"].advice(given["cells"], "users") == []

    @pytest.mark.parametrize(("reader", "cell", "said"), [
        ("users", {"kill": {"lost": 3, "newest": 1}}, "`planted` 3 of 4"),
        ("users", {"kill": {"refuses": 1}}, "must try older ones"),
        ("users", {"kill": {"newest": 1}, "power": {"previous": 1}}, "After a power cut, too: `planted`"),
        ("developers", {"kill": {"newest": 3}, "rank": {"wrong": 1}}, "in 1 of 4 states"),
        ("developers", {"kill": {"newest": 1}, "power": {"lost": 1}}, "not after power cuts"),
        ("developers", {"kill": {}, "full": {"said done, and it is not there": 1}}, "on a full disk"),
        ("developers", {"kill": {"starts anew": 1}}, "starts anew without a word"),
    ])  # fmt: skip
    def test_every_rule_fires_on_figures_and_is_silent_without(self, page, reader, cell, said):
        advice = page["verdicts"].advice
        assert any(said in text and "planted" in text for text in advice({"crash-planted": cell}, reader))
        assert not any(said in text for text in advice({"crash-planted": {"kill": {}}}, reader))
