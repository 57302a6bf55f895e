"""What tensors are for, in files of others: by what the files say, and marked where it is guessed."""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import holdfast

FIXTURES = Path(__file__).parents[2] / "tests" / "fixtures"
PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"
KERAS_3 = FIXTURES / "tensorflow" / "keras3"


def run(*words, code=0):
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == code or (code is None and done.returncode in (1, 2, 4)), (
        done.stdout + done.stderr)
    return done.stdout + done.stderr


def tensors(path, *words):
    return json.loads(run("show", path, "--json", *words))["tensors"]


def roles(path, *words):
    """The role and its origin by name, without what TensorFlow puts behind names."""
    return {one["name"].removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): (one["role"], one["role_from"])
            for one in tensors(path, *words)}


def struck(path, *words):
    """All tensors that a plan with these options can strike."""
    plan = json.loads(run("inject", path, "--dry-run", "--json", "--rate", 0.9, *words))
    return {flip["tensor"] for flip in plan["flips"]}


def test_the_graph_tells_weights_that_tensorflow_stores_below_the_optimizer(tmp_path):
    seen = roles(KERAS_3)
    trained = {name for name in seen if "_trainable_variables/" in name}
    assert len(trained) == 6
    for name, role in seen.items():
        if name in trained:
            assert role == ("parameter", "file"), name
        elif "/moving_" in name:
            assert role == ("buffer", "file"), name
        elif name in ("optimizer/_iterations", "optimizer/_learning_rate"):
            assert role == ("counter", "file"), name
        else:
            assert name.startswith("optimizer/_variables/") and role == ("slot", "file"), name
    assert {re.sub("/.ATTR.*", "", name) for name in struck(KERAS_3, "--roles", "parameter")} == trained
    assert not struck(KERAS_3, "--roles", "slot") & struck(KERAS_3, "--roles", "parameter")
    # The graph goes along, and so do the roles.
    holdfast.convert(KERAS_3, tmp_path / "a.safetensors")
    assert roles(tmp_path / "a.safetensors") == seen


def test_a_slot_of_tensorflow_is_in_the_layer_of_its_weight():
    layers = {one["name"]: one["layer"] for one in tensors(KERAS_3)}
    dense = {name for name, layer in layers.items() if layer == "sequential/dense"}
    assert {re.sub("/.ATTR.*", "", name) for name in dense} == {
        "optimizer/_trainable_variables/4", "optimizer/_trainable_variables/5",
        *(f"optimizer/_variables/{i}" for i in (10, 11, 12, 13))}
    assert struck(KERAS_3, "--roles", "slot", "--layers", "last") < dense


@pytest.mark.parametrize("name", ["keras/model.keras", "keras/sharded.weights.json"])
def test_moving_averages_of_keras_are_buffers(name):
    seen = roles(FIXTURES / name)
    group = "layers/batch_normalization/vars/"
    assert [seen[group + str(i)] for i in range(4)] == [
        ("parameter", "file"), ("parameter", "file"), ("buffer", "file"), ("buffer", "file")]
    assert seen["layers/dense/vars/0"] == ("parameter", "file")
    counted = Counter(role for name, (role, _) in seen.items() if name.startswith("optimizer/"))
    assert counted.keys() == {"slot", "counter"} and counted["counter"] == 2


@pytest.mark.parametrize("name", ["keras/model.h5", "keras2/model.h5"])
def test_the_optimizer_of_an_h5_file_of_keras_is_no_parameter(name):
    seen = roles(FIXTURES / name)
    for tensor, (role, origin) in seen.items():
        last = tensor.rpartition("/")[2].removesuffix(":0")
        if tensor.startswith("optimizer_weights/"):
            assert role == ("counter" if last in ("iteration", "learning_rate") else "slot")
        else:
            assert role == ("buffer" if last.startswith("moving_") else "parameter"), tensor
        assert origin == "file", tensor
    slots = {one["name"]: one["layer"].rpartition("/")[2] for one in tensors(FIXTURES / name)
             if one["role"] == "slot"}
    assert all(layer in tensor for tensor, layer in slots.items())
    assert set(slots.values()) >= {"dense", "batch_normalization"}


def test_a_role_that_only_a_name_suggests_is_marked_as_guessed(tmp_path):
    # Weights alone: no config says what a layer is.
    seen = roles(FIXTURES / "keras2" / "weights.h5")
    assert seen["batch_normalization/batch_normalization/moving_mean:0"] == ("buffer", "guessed")
    assert seen["conv2d/conv2d/kernel:0"] == ("parameter", "guessed")
    text = run("show", FIXTURES / "keras2" / "weights.h5", "--roles")
    assert re.search(r"moving_mean:0 +buffer +guessed", text), text
    assert re.search(r"moving_mean:0 .* buffer \(guessed\)",
                     run("show", FIXTURES / "keras2" / "weights.h5", "--tensors"))


def test_torch_tells_the_optimizer_by_its_nesting_and_generators_are_no_parameters(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    adam = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 3)).sum().backward()
    adam.step()
    torch.save({"net": model.state_dict(), "trainer": {"adam": adam.state_dict()},
                "rng": torch.get_rng_state(), "cuda_rng_state": torch.zeros(16, dtype=torch.uint8)},
               tmp_path / "a.pt")
    seen = roles(tmp_path / "a.pt")
    assert seen["rng"] == seen["cuda_rng_state"] == ("counter", "guessed")
    assert seen["trainer.adam.state.0.exp_avg"] == ("slot", "file")
    assert seen["trainer.adam.state.3.step"] == ("counter", "file")
    assert seen["net.0.weight"] == ("parameter", "guessed")
    assert seen["net.1.running_mean"] == ("buffer", "guessed")


def test_the_roles_of_a_map_come_first(tmp_path):
    np.savez(tmp_path / "a.npz", **{"a.w": np.ones(3, "f4"), "a.m": np.ones(3, "f4"),
                                    "b.w": np.ones(3, "f4")})
    given = tmp_path / "roles.json"
    given.write_text('{"slot": "a.m", "buffer": ["b"]}')
    assert roles(tmp_path / "a.npz", "--roles-from", given) == {
        "a.w": ("parameter", "guessed"), "a.m": ("slot", "given"), "b.w": ("buffer", "given")}
    assert re.search(r"a\.m +slot +given", run("show", tmp_path / "a.npz", "--roles-from", given))
    choice = ["--roles-from", given, "--roles"]
    assert struck(tmp_path / "a.npz", *choice, "slot") == {"a.m"}
    assert struck(tmp_path / "a.npz", *choice, "parameter") == {"a.w"}
    for text, said in (('{"slot": ["a.m", "x"]}', "x: no tensor has such a name"),
                       ('{"slot": "a", "buffer": "a.m"}', "a.m: is a "),
                       ('{"slots": "a"}', "slots"), ("[]", "expected an object of roles"),
                       ('{"slot": 3}', "is no pattern"), ("{", "roles.json")):
        given.write_text(text)
        assert said in run("show", tmp_path / "a.npz", "--roles-from", given, code=None), text
    assert "roles-from" in run("inject", tmp_path / "a.npz", "--dry-run", "--plan", "p.json",
                               "--roles-from", given, code=None)


def test_layers_are_the_same_in_every_format(tmp_path):
    names = [f"layer.{i}.{kind}" for i in (10, 2, 1) for kind in ("weight", "bias")]
    torch.save({name: torch.ones(2) for name in names}, tmp_path / "a.pt")
    for to in ("a.safetensors", "a.npz", "a.h5"):
        holdfast.convert(tmp_path / "a.pt", tmp_path / to)
    run("convert", tmp_path / "a.pt", tmp_path / "a.tf", "--format", "tensorflow")
    for layer, number in (("first", 1), ("1", 2), ("last", 10)):
        for file in ("a.pt", "a.safetensors", "a.npz", "a.h5", "a.tf"):
            assert struck(tmp_path / file, "--layers", layer) == {
                f"layer.{number}.weight", f"layer.{number}.bias"}, (file, layer)


def test_a_model_of_keras_has_the_same_layers_in_all_its_formats():
    def layers(path):
        listed = run("show", path, "--roles").partition("\ntensor ")[2].partition("\n\n")[0]
        return sorted(set(re.findall(r" (\d) +(?:sequential/)?(\w+)$", listed, re.M)))

    both = [("0", "batch_normalization"), ("1", "dense")]
    assert layers(FIXTURES / "keras" / "model.h5") == both
    assert layers(FIXTURES / "keras" / "sharded.weights.json") == both
    all_three = [("0", "batch_normalization"), ("1", "conv2d"), ("2", "dense")]
    assert layers(KERAS_3) == layers(FIXTURES / "keras2" / "model.h5") == all_three


def test_a_chunk_that_was_never_written_is_passed_over_and_counted(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        sparse = file.create_dataset("w", (64, 16), "f4", chunks=(4, 16), fillvalue=1.0)
        sparse[8:12] = 2.0
    passed = 0
    for seed in range(8):
        words = ["inject", tmp_path / "a.h5", tmp_path / f"{seed}.h5", "--seed", seed,
                 "--checksums", "raw"]
        plan = json.loads(run(*words, "--json"))
        passed += plan.get("unwritten", 0)
        assert [flip["index"][0] // 4 for flip in plan["flips"]] == [2]
        with h5py.File(tmp_path / f"{seed}.h5") as file:
            assert np.count_nonzero(file["w"][8:12] != 2.0) == 1
            assert (file["w"][:8] == 1.0).all() and (file["w"][12:] == 1.0).all()
        if plan.get("unwritten"):
            said = run("inject", tmp_path / "a.h5", "--dry-run", "--seed", seed)
            assert f"passed over {plan['unwritten']} drawn sites" in said
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        run("inject", tmp_path / "a.h5", "--dry-run", "--plan", tmp_path / "plan.json")
    assert passed > 8
    run("inject", tmp_path / "a.h5", "--dry-run", "--sampling", "legacy")
    plan = json.loads(run("inject", tmp_path / "a.h5", "--dry-run", "--json", "--rate", 0.5))
    assert 64 * 32 / 3 < sum(bin(int(flip["mask"], 16)).count("1") for flip in plan["flips"]) < 64 * 32
    with h5py.File(tmp_path / "none.h5", "w") as file:
        file.create_dataset("w", (64, 16), "f4", chunks=(4, 16))
    assert "have no site left" in run("inject", tmp_path / "none.h5", "--dry-run", code=None)
