"""Plans of any model: holdfast.layout_of(module), and `holdfast plan --module`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from long_tests import LONG
from torch import nn

import holdfast
from holdfast import module_layout

PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"
PACKAGE = Path(holdfast.__file__).parents[1]

MODELS = """
import torch
from torch import nn

class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(1000, 64)
        self.norm = nn.LayerNorm(64)
        layer = nn.TransformerEncoderLayer(64, 8, 256)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.lm_head = nn.Linear(64, 1000, bias=False)
        self.lm_head.weight = self.embed_tokens.weight
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(1 << 20), persistent=False)

def build():
    print("this is no answer")
    return Language()

def fail():
    raise OSError("the disk is full")

def number():
    return 3

ready = Language()
"""


def build():
    names = {}
    exec(MODELS, names)
    with torch.device("meta"):
        return names["Language"]()


def run(folder, *words, python=sys.executable):
    (folder / "my_models.py").write_text(MODELS)
    environment = os.environ | {"HOLDFAST_PYTHON": python, "PYTHONPATH": str(PACKAGE)}
    return subprocess.run([PROGRAM, "plan", *words], capture_output=True, text=True, cwd=folder,
                          env=environment)


def test_a_layout_has_what_a_state_dict_has():
    model = build()
    layout = holdfast.layout_of(model)
    names = {tensor["name"] for tensor in layout["tensors"]}
    ties = {alias for tensor in layout["tensors"] for alias in tensor.get("ties", [])}
    assert names | ties == set(model.state_dict())
    assert ties == {"lm_head.weight"}
    for tensor in layout["tensors"]:
        held = model.state_dict()[tensor["name"]]
        assert tensor["shape"] == list(held.shape)
        assert tensor["dtype"] == str(held.dtype).split(".")[1]
    roles = {tensor["name"]: tensor["role"] for tensor in layout["tensors"]}
    assert roles["seen"] == "counter" and roles["norm.weight"] == "parameter"
    assert layout["heads"] == 8


@LONG
def test_wrappers_do_not_change_a_layout():
    assert holdfast.layout_of(torch.compile(build()))["tensors"] == \
        holdfast.layout_of(build())["tensors"]
    with pytest.raises(TypeError, match="expected a torch.nn.Module"):
        holdfast.layout_of(build().state_dict())


@pytest.mark.parametrize("target", ["my_models:build", "my_models:ready"])
def test_the_command_line_plans_any_model(tmp_path, target):
    done = run(tmp_path, "--module", target, "--from", "tp=2,pp=2", "--to", "tp=4,dp=2,zero=3",
               "--json")
    assert done.returncode == 0, done.stderr
    planned = holdfast.plan("tp=2,pp=2", "tp=4,dp=2,zero=3", model=holdfast.layout_of(build()))
    printed = json.loads(done.stdout)
    assert printed == json.loads(planned.json)
    parameters = sum(p.numel() for p in build().parameters())
    assert printed["state"] == 14 * parameters + 8  # and the counter
    assert printed["model"] == "Language"


def test_a_layout_in_a_file_is_a_model(tmp_path):
    path = tmp_path / "model.json"
    path.write_text(json.dumps(holdfast.layout_of(build())))
    done = run(tmp_path, "--model", str(path), "--from", "tp=1", "--to", "tp=2", "--json")
    assert done.returncode == 0, done.stderr
    planned = holdfast.plan("tp=1", "tp=2", model=holdfast.layout_of(build()))
    assert json.loads(done.stdout) == json.loads(planned.json)


def test_tensor_parallelism_cuts_the_projections():
    """Each of two ranks has half of the attention and the MLP, and all of norms and positions."""
    model = build()
    planned = holdfast.plan("tp=2", "tp=2", model=holdfast.layout_of(model), training="weights")
    cut = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "linear1.weight", "linear1.bias",
           "linear2.weight", "embed_tokens.weight")
    whole = sum(p.numel() for name, p in model.named_parameters() if not name.endswith(cut))
    parts = sum(p.numel() for name, p in model.named_parameters() if name.endswith(cut))
    assert planned.figures.needed == 2 * (parts + 2 * whole) + 2 * 8


def test_a_large_model_takes_no_memory():
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(16384, 16384, bias=False) for _ in range(256)))
    planned = holdfast.plan("dp=64,zero=3", "dp=32,zero=3,pp=2", model=holdfast.layout_of(model))
    assert json.loads(planned.json)["state"] == 14 * 256 * 16384**2


@pytest.mark.parametrize(("target", "sentence"), [
    ("my_models", '"my_models"; expected MODULE:NAME such as my_models:build'),
    ("nothing:build", "nothing:build: there is no module nothing; expected one in the current "
                      "folder or on PYTHONPATH"),
    ("my_models:nothing", "my_models:nothing: my_models has no nothing"),
    ("my_models:number", "my_models:number: gave a int; expected a torch.nn.Module"),
    ("my_models:fail", "my_models:fail: OSError: the disk is full"),
])
def test_what_cannot_be_called_is_one_sentence(tmp_path, monkeypatch, target, sentence):
    (tmp_path / "my_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    assert module_layout.answer_for(target) == {"error": sentence}
    sys.modules.pop("my_models", None)


def test_the_program_tells_what_went_wrong(tmp_path):
    done = run(tmp_path, "--module", "my_models:fail", "--from", "tp=1", "--to", "tp=2")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == \
        "holdfast: --module my_models:fail: OSError: the disk is full"


def test_a_missing_python_is_one_sentence(tmp_path):
    words = ("--module", "my_models:build", "--from", "tp=1", "--to", "tp=2")
    done = run(tmp_path, *words, python="/nowhere/python3")
    assert done.returncode == 2
    assert done.stderr == ("holdfast: /nowhere/python3: No such file or directory; expected a "
                           "Python with torch (HOLDFAST_PYTHON names another)\n")
    done = run(tmp_path, *words, python="/bin/true")
    assert 'in which "import holdfast" works' in done.stderr


def test_a_python_without_torch_is_one_sentence(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('not here')\n")
    done = run(tmp_path, "--module", "my_models:build", "--from", "tp=1", "--to", "tp=2")
    assert done.returncode == 2
    assert "has no torch; expected a Python with torch" in done.stderr.splitlines()[-1]
