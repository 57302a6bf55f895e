"""One checkpoint in the files of several frameworks: a flip plan of one is a plan of the others."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import holdfast

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "study/corruption/frameworks"
PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"
LONG = bool(os.environ.get("HOLDFAST_LONG"))
ENVIRONMENTS = {"keras": "tensorflow", "chainer": "chainer"}
ENDINGS = {"keras": ".weights.h5", "chainer": ".h5"}


@pytest.fixture(scope="module")
def tables():
    sys.path.insert(0, str(FOLDER))
    names = ("tables", "make_tables")
    yield {name: importlib.import_module(name) for name in names}
    sys.path.remove(str(FOLDER))
    for name in names:
        del sys.modules[name]


def run(*words, **options):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, cwd=ROOT,
                          check=False, timeout=300, **options)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_model(tables):
    """Random tensors with the names and shapes of PyTorch."""
    torch.manual_seed(1)
    return {name.removeprefix("model."): torch.randn(place.shape)
            for name, place in tables["tables"].read_table("digits.chainer").items()}  # fmt: skip


def read_model(path):
    return {f"model.{name}": tensor.numpy()
            for name, tensor in torch.load(path)["model"].items()}  # fmt: skip


def flip_torch(folder):
    """Flips 300 bits of base.pt. Returns the tensors before and after that."""
    run(PROGRAM, "inject", folder / "base.pt", folder / "hurt.pt", "--tensors", "model", "--roles",
        "parameter", "buffer", "--flips", 300, "--seed", 5, "--checksums", "consistent",
        "--save-plan", folder / "plan.json")  # fmt: skip
    return read_model(folder / "base.pt"), read_model(folder / "hurt.pt")


def bits(array):
    return np.asarray(array).view(np.uint32)


def check_same_flips(tables, framework, before, after, base, hurt, tmp_path):
    """The converted file has the old bits before, and the same new bits at the places of the table
    after the translated plan was carried out."""
    module = tables["tables"]
    table = module.read_table(f"digits.{framework}")
    plan = json.loads((tmp_path / "plan.json").read_text())
    moved = tmp_path / f"{framework}.json"
    moved.write_text(json.dumps(module.translate(plan, table)))
    run(PROGRAM, "inject", base, hurt, "--plan", moved, "--checksums", "consistent")
    with h5py.File(base) as old, h5py.File(hurt) as new:
        for name, place in table.items():
            assert (bits(old[place.name][()]) == bits(place.convert(before[name]))).all(), name
            assert (bits(new[place.name][()]) == bits(place.convert(after[name]))).all(), name
            struck = {flip["element"] for flip in json.loads(moved.read_text())["flips"]
                      if flip["tensor"] == place.name}  # fmt: skip
            changed = np.flatnonzero(bits(old[place.name][()]) != bits(new[place.name][()]))
            assert set(changed.tolist()) == struck, name


@pytest.mark.parametrize("framework", ENVIRONMENTS)
def test_a_plan_flips_the_same_bits_of_a_converted_file(tables, framework, tmp_path):
    torch.save({"model": make_model(tables)}, tmp_path / "base.pt")
    before, after = flip_torch(tmp_path)
    base = tmp_path / f"base{ENDINGS[framework]}"
    # Chainer compresses, Keras does not.
    packed = {"compression": 4} if framework == "chainer" else {}
    with h5py.File(base, "w") as file:
        for name, place in tables["tables"].read_table(f"digits.{framework}").items():
            file.create_dataset(place.name, data=place.convert(before[name]), **packed)
    check_same_flips(tables, framework, before, after, base, tmp_path / f"hurt{ENDINGS[framework]}",
                     tmp_path)  # fmt: skip


@pytest.mark.skipif(not LONG, reason="starts TensorFlow: HOLDFAST_LONG=1")
@pytest.mark.parametrize("framework", ENVIRONMENTS)
def test_the_framework_itself_writes_and_trains_such_a_file(tables, framework, tmp_path):
    python = ROOT / f".cache/{ENVIRONMENTS[framework]}/bin/python"
    if not python.exists():
        pytest.skip(f"needs scripts/foreign_environment.sh {ENVIRONMENTS[framework]}")
    run(sys.executable, "examples/train_digits.py", "--steps", 2, "--save", tmp_path / "base.pt")
    before, after = flip_torch(tmp_path)
    start, base = tmp_path / "start.npz", tmp_path / f"base{ENDINGS[framework]}"
    script = [python, FOLDER / f"train_{framework}.py", "--start", start]
    run(sys.executable, FOLDER / "export.py", tmp_path / "base.pt", start)
    run(*script, "--save", base)
    hurt = tmp_path / f"hurt{ENDINGS[framework]}"
    check_same_flips(tables, framework, before, after, base, hurt, tmp_path)
    run(*script, "--resume", base, "--log", tmp_path / "base.jsonl")
    run(*script, "--resume", hurt, "--log", tmp_path / "hurt.jsonl")
    run(sys.executable, "examples/train_digits.py", "--resume", tmp_path / "base.pt", "--log",
        tmp_path / "torch.jsonl")  # fmt: skip
    seen, expected = (read_log(tmp_path / f"{name}.jsonl") for name in ("base", "torch"))
    assert [line["step"] for line in seen] == list(range(41))
    # The same start, samples and rules, but other orders of sums.
    for one, other in zip(seen[1:], expected[1:], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)
    assert seen[0]["accuracy"] == pytest.approx(expected[0]["accuracy"])
    assert read_log(tmp_path / "hurt.jsonl") != seen


WRITE_SHAPES = {
    "keras": """
import os, sys
os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
import h5py, json, keras
shapes = {}
def visit(name, item):
    if isinstance(item, h5py.Dataset):
        shapes[name] = item.shape
getattr(keras.applications, sys.argv[1])(weights=None).save_weights(sys.argv[2])
with h5py.File(sys.argv[2]) as file:
    file.visititems(visit)
print(json.dumps(shapes))
""",
    "chainer": """
import json, sys
import chainer
model = getattr(chainer.links, sys.argv[1] + "Layers")(pretrained_model=None)
saver = chainer.serializers.DictionarySerializer()
saver.save(model)
print(json.dumps({name: getattr(array, "shape", ()) for name, array in saver.target.items()}))
""",
}


@pytest.mark.skipif(not LONG, reason="starts TensorFlow: HOLDFAST_LONG=1")
@pytest.mark.parametrize("framework", ENVIRONMENTS)
@pytest.mark.parametrize("model", ["ResNet50", "VGG16"])
def test_large_models_have_the_names_and_shapes_of_their_tables(tables, framework, model, tmp_path):
    python = ROOT / f".cache/{ENVIRONMENTS[framework]}/bin/python"
    if not python.exists():
        pytest.skip(f"needs scripts/foreign_environment.sh {ENVIRONMENTS[framework]}")
    written = tmp_path / "a.weights.h5"
    seen = json.loads(run(python, "-c", WRITE_SHAPES[framework], model, written))
    table = tables["tables"].read_table(f"{model.lower()}.{framework}")
    assert {place.name: list(place.stored) for place in table.values()}.items() <= seen.items()
    # What no table has: counters, and biases in front of BatchNorm.
    rest = set(seen) - {place.name for place in table.values()}
    assert all(name.endswith(("/N", "/b", "/persistent", "vars/1")) for name in rest), rest


def read_log(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_tables_hold_what_their_script_makes(tables):
    made = tables["make_tables"]
    names = {f"{model}.{framework}" for model in made.MODELS for framework in made.FRAMEWORKS}
    assert {path.stem for path in FOLDER.glob("*.json")} == names
    for name in names:
        assert (FOLDER / f"{name}.json").read_text() == made.table_text(*name.split("."))


def test_elements_move_as_arrays_are_transposed(tables):
    random = np.random.default_rng(3)
    for path in sorted(FOLDER.glob("*.json")):
        for name, place in tables["tables"].read_table(path.stem).items():
            size = int(np.prod(place.shape))
            elements = [0, size - 1, *map(int, random.integers(0, size, 3))]
            if size <= 2**20:  # the large ones would take seconds
                flat = place.convert(np.arange(size, dtype=np.uint32)).reshape(-1)
                assert [int(flat[place.move(each)]) for each in elements] == elements, name
            moved = [place.move(each) for each in elements]
            assert len(set(moved)) == len(set(elements)) and max(moved) < size, name


def test_wrong_tables_and_plans_are_refused_in_words(tables):
    module = tables["tables"]
    with pytest.raises(ValueError, match=r"a: axes are \[0, 0\]; expected an order of 2 axes"):
        module.read_place("a", {"name": "b", "shape": [2, 3], "axes": [0, 0]})
    with pytest.raises(ValueError, match=r"a: stored is \[5\]; expected 6 elements"):
        module.read_place("a", {"name": "b", "shape": [2, 3], "stored": [5]})
    table = module.read_table("digits.keras")
    with pytest.raises(ValueError, match="plan: flips a bit of other; expected one of model.conv1"):
        module.translate({"flips": [{"tensor": "other", "element": 0}], "bytes": []}, table)
    with pytest.raises(ValueError, match="plan: has flips of bytes of the file"):
        module.translate({"flips": [], "bytes": [{"offset": 1}]}, table)
