"""Folders of Megatron-LM are cut again, and read by torch as Megatron would read them."""

import json
import subprocess
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path

import numpy
import pytest
import torch
from megatron_folders import LAYER, Gpt, load
from safetensors.torch import load_file

import holdfast

EMBEDDING = "embedding.word_embeddings.weight"
PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"


def reshard(*arguments, fails=False):
    done = subprocess.run([PROGRAM, "reshard", *map(str, arguments)], capture_output=True,
                          text=True, timeout=60)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def assert_equal(a, b, where="", ignored=()):
    assert type(a) is type(b), where
    if isinstance(a, Namespace):
        assert_equal(vars(a), vars(b), where, ignored)
    elif isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            if key not in ignored:
                assert_equal(a[key], b[key], f"{where}.{key}", ignored)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b)):
            assert_equal(x, y, f"{where}.{i}", ignored)
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), where
    elif isinstance(a, numpy.ndarray):
        assert a.dtype == b.dtype and (a == b).all(), where
    else:
        assert a == b, where


def plain(tree):
    """OrderedDicts become dicts, as Holdfast writes them."""
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    return [plain(item) for item in tree] if isinstance(tree, list) else tree


@pytest.fixture(scope="module")
def gpt():
    return Gpt()


def test_every_value_is_where_megatron_saves_it(tmp_path, gpt):
    source = gpt.save(tmp_path / "source", 4, 2)
    told = reshard(source, tmp_path / "out", "--to", "tp=2,pp=4")
    assert "megatron  tp=4,pp=2  8 files" in told and "megatron  8 files" in told
    assert "what several files have is read for each of them" in told
    assert (tmp_path / "out" / "latest_checkpointed_iteration.txt").read_text() == "50"
    made = load(tmp_path / "out")
    expected = load(Gpt().save(tmp_path / "expected", 2, 4))
    assert list(made) == list(expected)
    for name in made:
        assert_equal(made[name], plain(expected[name]), name, ignored=("rng_state",))
    # Ranks of a stage share their streams, except for the one of model parallelism.
    trackers = []
    for name, file in made.items():
        state = file["rng_state"][0]
        peer = made["mp_rank_00" + name[10:]]["rng_state"][0]
        trackers.append(bytes(state["rng_tracker_states"]["model-parallel-rng"].tolist()))
        assert_equal(state, peer, name, ignored=("rng_tracker_states",))
    assert len(set(trackers)) == 8


def test_there_and_back_gives_the_same_bytes(tmp_path, gpt):
    source = gpt.save(tmp_path / "source", 4, 2)
    reshard(source / "iter_0000050", tmp_path / "a", "--to", "tp=4,pp=2")
    reshard(tmp_path / "a", tmp_path / "b", "--to", "tp=2,pp=4")
    reshard(tmp_path / "b", tmp_path / "c", "--to", "tp=4,pp=2")
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.pt"))
    assert len(files) == 8
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "c" / file).read_bytes()
    for name, file in load(tmp_path / "a").items():
        assert_equal(file, plain(load(source)[name]), name)
    # Through a step of a run, and merged.
    reshard(tmp_path / "b", tmp_path / "run", "--to", "tp=2,pp=2,dp=2", "--format", "native")
    reshard(tmp_path / "run", tmp_path / "d", "--to", "tp=4,pp=2", "--format", "megatron")
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "d" / file).read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_one_rank_gets_the_whole_model(tmp_path, gpt):
    source = gpt.save(tmp_path / "source", 4, 2)
    reshard(source, tmp_path / "one", "--to", "whole")
    expected = Gpt().save(tmp_path / "expected", 1, 1)
    for name, file in load(tmp_path / "one").items():
        assert_equal(file, plain(load(expected)[name]), name, ignored=("rng_state",))
    # Back to more ranks the tied output layer and its moments are there again, and the streams
    # of one rank are not enough.
    told = reshard(tmp_path / "one", tmp_path / "two", "--to", "tp=2,pp=2")
    assert "rng_state: is left out" in told
    for name, file in load(tmp_path / "two").items():
        expected = plain(Gpt().rank_file(int(name[8:10]), int(name[11:]), 2, 2))
        expected.pop("rng_state")
        assert_equal(file, expected, name)
    reshard(source, tmp_path / "whole", "--to", "whole", "--format", "safetensors")
    tensors = {key: value for file in (tmp_path / "whole").glob("*.safetensors")
               for key, value in load_file(file).items()}
    name = "language_model.encoder.layers.3.mlp.dense_4h_to_h.weight"
    assert torch.equal(tensors["model." + name],
                       gpt.whole("layers.3.mlp.dense_4h_to_h.weight", "weight"))
    assert torch.equal(tensors[f"optimizer.{name}.exp_avg"],
                       gpt.whole("layers.3.mlp.dense_4h_to_h.weight", "exp_avg"))


def test_what_is_read_is_compared_with_each_byte_once(tmp_path, gpt):
    """The source has 1,024 rows of words and the targets of one and two ranks, too."""
    source = gpt.save(tmp_path / "source", 4, 2)
    whole = [gpt.whole(name, "master").numel() * 14 for name in gpt.names(0, 1)]
    copied = gpt.whole(EMBEDDING, "master").numel() * 14
    for to, copies in (("whole", 0), ("tp=1,pp=2", copied)):
        told = json.loads(reshard(source, "--to", to, "--plan-only", "--json"))
        assert (told["reads"], told["reads_bound"]) == (sum(whole) + copies, sum(whole))
        assert json.loads(reshard(source, tmp_path / to, "--to", to, "--json"))["moved"] == told["reads"]


class BufferedGpt(Gpt):
    """Each layer has a buffer between its parameters, which the optimizer does not know."""

    def rank_file(self, rank, stage, tp, pp):
        file = super().rank_file(rank, stage, tp, pp)
        encoder = file["model"]["language_model"]["encoder"]
        with_buffers = OrderedDict()
        for name, tensor in encoder.items():
            with_buffers[name] = tensor
            if name.endswith("query_key_value.bias"):
                buffer = name.replace("query_key_value.bias", "rotary.inv_freq")
                with_buffers[buffer] = torch.arange(4).half()
        file["model"]["language_model"]["encoder"] = with_buffers
        return file


def test_a_buffer_has_no_optimizer_state(tmp_path):
    words = {"h": "whole", "qkv h": "rows", "qkv": "rows", "h h/t": "columns", "4h/t h": "rows",
             "4h/t": "rows", "h 4h/t": "columns"}
    rules = {f"layers.#.{name}": words[shape] for name, shape in LAYER.items()}
    rules |= {EMBEDDING: "first vocabulary tied", "final_layernorm.weight": "last whole",
              "final_layernorm.bias": "last whole",
              "embedding.position_embeddings.weight": "first whole",
              "layers.#.self_attention.rotary.inv_freq": "whole buffer"}
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"holdfast": "rules", "version": 1, "name": "r", "rules": rules}))
    source = BufferedGpt().save(tmp_path / "source", 2, 1)
    reshard(source, tmp_path / "out", "--to", "tp=1,pp=2", "--rules", file)
    expected = load(BufferedGpt().save(tmp_path / "expected", 1, 2))
    for name, made in load(tmp_path / "out").items():
        assert_equal(made, plain(expected[name]), name, ignored=("rng_state", "args"))


@pytest.mark.parametrize("version", [0, 1.0, 2.0])
def test_rows_of_old_versions_are_ordered_by_head(tmp_path, version):
    source = Gpt(version=version).save(tmp_path / "source", 2, 2)
    told = reshard(source, tmp_path / "out", "--to", "tp=4,pp=1")
    assert ("ordered by head" in told) == (version < 2)
    expected = Gpt(version=2.0).save(tmp_path / "expected", 4, 1)
    for name, file in load(tmp_path / "out").items():
        assert_equal(file, plain(load(expected)[name]), name, ignored=("rng_state",))


def test_pad_rows_are_kept_dropped_and_copied(tmp_path):
    words = 300  # 512 rows for 4 ranks, 384 for one
    source = Gpt(words=words, layers=1).save(tmp_path / "source", 4, 1)
    told = reshard(source, tmp_path / "one", "--to", "tp=1")
    assert "vocabulary: 128 of 211 pad rows are left out" in told
    one = load(tmp_path / "one")["mp_rank_00"]
    gpt = Gpt(words=words)
    weight = gpt.whole("embedding.word_embeddings.weight", "weight")
    made = one["model"]["language_model"]["embedding"]["word_embeddings"]["weight"]
    assert torch.equal(made, weight[:384]) and one["args"].padded_vocab_size == 384
    told = reshard(tmp_path / "one", tmp_path / "four", "--to", "tp=4")
    assert "128 pad rows are added, which are copies of the last one" in told
    files = load(tmp_path / "four").values()
    rows = torch.cat([f["model"]["language_model"]["embedding"]["word_embeddings"]["weight"]
                      for f in files])
    assert torch.equal(rows[:384], weight[:384])
    assert torch.equal(rows[384:], weight[383:384].expand(128, -1))
    moments = torch.cat([f["optimizer"]["optimizer"]["state"][0]["exp_avg"] for f in files])
    moment = gpt.whole("embedding.word_embeddings.weight", "exp_avg")
    assert torch.equal(moments[384:], moment[383:384].expand(128, -1))


def change(folder, function, file="mp_rank_01_001"):
    path = folder / "iter_0000050" / file / "model_optim_rng.pt"
    saved = torch.load(path, weights_only=False)
    function(saved)
    torch.save(saved, path)


def swap_masters(saved):
    group = saved["optimizer"]["fp32_from_fp16_params"][1]
    group[0], group[1] = group[1], group[0]


def drop_state(saved):
    saved["optimizer"]["optimizer"]["param_groups"][0]["params"].pop()


def other_head(saved):
    saved["model"]["word_embeddings_for_head"]["weight"][3] += 1
    saved["optimizer"]["fp32_from_fp16_params"][0][-1][3] = (
        saved["model"]["word_embeddings_for_head"]["weight"][3].float())


def other_dtype(saved):
    encoder = saved["model"]["language_model"]["encoder"]
    encoder["final_layernorm.bias"] = encoder["final_layernorm.bias"].bfloat16()
    saved["optimizer"]["fp32_from_fp16_params"][1][-1] = encoder["final_layernorm.bias"].float()


def drop_tensor(saved):
    del saved["model"]["language_model"]["encoder"]["layers.1.mlp.dense_4h_to_h.bias"]


REFUSED = {
    "does not round to": (swap_masters, ["tp=2"]),
    "expected the 9 weights": (drop_state, ["tp=2"]),
    "expected equal copies": (other_head, ["tp=2"]),
    "another dtype": (other_dtype, ["tp=2"]),
    "expected the 17 biases and norms": (drop_tensor, ["tp=2"]),
    "tp=3 does not divide": (None, ["tp=3"]),
    "does not divide the 4 layers": (None, ["tp=2,pp=3"]),
    "more than tp, pp and dp": (None, ["tp=2,dp=2,zero=1"]),
    "has no rule in hf-llama": (None, ["tp=2", "--rules", "hf-llama"]),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_leaves_a_doubt_is_refused(tmp_path, gpt, message):
    function, arguments = REFUSED[message]
    source = gpt.save(tmp_path / "source", 2, 2)
    if function:
        change(source, function)
    assert message in reshard(source, tmp_path / "out", "--to", *arguments, fails=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_a_newer_version_is_refused_and_a_vocabulary_that_nobody_uses(tmp_path, gpt):
    source = gpt.save(tmp_path / "source", 1, 1)
    told = reshard(source, tmp_path / "out", "--to", "tp=2", "--format", "native",
                   "--vocabulary", "300", fails=True)
    assert "--vocabulary 300: is for targets of Megatron" in told
    change(source, lambda saved: saved.update(checkpoint_version=4.0), "mp_rank_00")
    told = reshard(source, tmp_path / "out", "--to", "tp=1", fails=True)
    assert "checkpoint_version is not known; expected 0 to 3" in told


def test_a_missing_rank_is_named(tmp_path, gpt):
    source = gpt.save(tmp_path / "source", 2, 2)
    path = source / "iter_0000050" / "mp_rank_00_001" / "model_optim_rng.pt"
    path.unlink()
    assert "mp_rank_00_001" in reshard(source, tmp_path / "out", "--to", "tp=1", fails=True)
    for rank in (0, 1):  # the whole last stage
        folder = source / "iter_0000050" / f"mp_rank_0{rank}_001"
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    told = reshard(source, tmp_path / "out", "--to", "tp=1", fails=True)
    assert "args.pipeline_model_parallel_size is 2" in told


def test_args_are_never_executed(tmp_path, gpt):
    class Attack:
        def __reduce__(self):
            return (numpy.savetxt, (str(tmp_path / "attacked"), [1.0]))

    source = gpt.save(tmp_path / "source", 1, 1)
    change(source, lambda saved: setattr(saved["args"], "attack", Attack()), "mp_rank_00")
    reshard(source, tmp_path / "out", "--to", "tp=2")
    made = load(tmp_path / "out")
    assert not (tmp_path / "attacked").exists()
    assert isinstance(made["mp_rank_00"]["args"].attack, dict)


def test_the_fixtures_have_the_names_and_shapes_of_the_public_files():
    """GPT large on 12 stages of 2 ranks: kungfu-team/transformer-checkpoint,
    megatron-lm/gpt/large/pp12/mp02/dp01, ranks 01 and 22."""
    gpt = Gpt(hidden=8, layers=24, heads=2, sequence=12, words=50257)
    # The public numbers, and what they are for a smaller model.
    small = {1536: 8, 768: 4, 2304: 12, 3072: 16, 1024: 12, 25216: 25216}
    layer = {"input_layernorm.weight": [1536], "input_layernorm.bias": [1536],
             "self_attention.query_key_value.weight": [2304, 1536],
             "self_attention.query_key_value.bias": [2304],
             "self_attention.dense.weight": [1536, 768], "self_attention.dense.bias": [1536],
             "post_attention_layernorm.weight": [1536], "post_attention_layernorm.bias": [1536],
             "mlp.dense_h_to_4h.weight": [3072, 1536], "mlp.dense_h_to_4h.bias": [3072],
             "mlp.dense_4h_to_h.weight": [1536, 3072], "mlp.dense_4h_to_h.bias": [1536]}
    layers = {f"layers.{i}.{name}": shape for i in range(2) for name, shape in layer.items()}
    first, last = gpt.rank_file(1, 0, 2, 12), gpt.rank_file(0, 11, 2, 12)

    def shapes(tree):
        if isinstance(tree, torch.Tensor):
            return list(tree.shape)
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return {key: shapes(value) for key, value in items}

    def shrunken(tree):
        if isinstance(tree, list):
            return [small[size] for size in tree]
        return {key: shrunken(value) for key, value in tree.items()}

    assert shapes(first["model"]) == shrunken({"language_model": {
        "embedding": {"word_embeddings": {"weight": [25216, 1536]},
                      "position_embeddings": {"weight": [1024, 1536]}}, "encoder": layers}})
    assert shapes(last["model"]) == shrunken({
        "language_model": {"encoder": layers | {"final_layernorm.weight": [1536],
                                                "final_layernorm.bias": [1536]}},
        "word_embeddings_for_head": {"weight": [25216, 1536]}})
    weights = [layer[n] for n in layer if len(layer[n]) == 2] * 2 + [[25216, 1536]]
    others = [layer[n] for n in layer if len(layer[n]) == 1] * 2 + [[1536], [1536]]
    masters = last["optimizer"]["fp32_from_fp16_params"]
    assert [[list(t.shape) for t in group] for group in masters] == [
        [shrunken(s) for s in weights], [shrunken(s) for s in others]]
    state = last["optimizer"]["optimizer"]["state"]
    assert [list(state[i]["exp_avg"].shape) for i in range(27)] == [
        shrunken(s) for s in weights + others]
    assert [g["params"] for g in last["optimizer"]["optimizer"]["param_groups"]] == [
        list(range(9)), list(range(9, 27))]


def save_core(folder, tp, pp, whole):
    """The weights of Megatron Core with SwiGLU and a tied output layer: other names, and a gate
    that each rank has before the weight that it gates."""
    args = Namespace(num_layers=4, num_attention_heads=4, num_query_groups=2, vocab_size=250,
                     group_query_attention=True, swiglu=True, tensor_model_parallel_size=tp,
                     pipeline_model_parallel_size=pp, untie_embeddings_and_output_weights=False)

    def part(name, rank):
        tensor = whole[name]
        if "fc1" in name:
            return torch.cat([half.chunk(tp)[rank] for half in tensor.chunk(2)])
        if "norm" in name:
            return tensor.clone()
        return tensor.chunk(tp, 1 if "proj" in name or "fc2" in name else 0)[rank].clone()

    for stage in range(pp):
        for rank in range(tp):
            model = {}
            if stage == 0:
                model[EMBEDDING] = part(EMBEDDING, rank)
            for i in range(4 // pp):
                name = f"decoder.layers.{i + stage * (4 // pp)}."
                model |= {f"decoder.layers.{i}.{key[len(name):]}": part(key, rank)
                          for key in whole if key.startswith(name)}
                model[f"decoder.layers.{i}.self_attention.core_attention._extra_state"] = None
            if stage == pp - 1:
                model["decoder.final_layernorm.weight"] = whole["decoder.final_layernorm.weight"]
                if pp > 1:
                    model["output_layer.weight"] = part(EMBEDDING, rank)
            name = f"mp_rank_{rank:02}" + (f"_{stage:03}" if pp > 1 else "")
            path = folder / "iter_0000007" / name
            path.mkdir(parents=True)
            torch.save({"args": args, "checkpoint_version": 3.0, "iteration": 7, "model": model},
                       path / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("7")
    return folder


def test_names_of_megatron_core_and_gates_are_cut_too(tmp_path):
    whole = {EMBEDDING: torch.randn(256, 8)}
    for i in range(4):
        whole |= {f"decoder.layers.{i}.self_attention.linear_qkv.layer_norm_weight": torch.randn(8),
                  f"decoder.layers.{i}.self_attention.linear_qkv.weight": torch.randn(16, 8),
                  f"decoder.layers.{i}.self_attention.linear_proj.weight": torch.randn(8, 8),
                  f"decoder.layers.{i}.mlp.linear_fc1.weight": torch.randn(32, 8),
                  f"decoder.layers.{i}.mlp.linear_fc2.weight": torch.randn(8, 16)}
    whole["decoder.final_layernorm.weight"] = torch.randn(8)
    source = save_core(tmp_path / "source", 2, 2, whole)
    for tp, pp in ((1, 1), (1, 4), (2, 1)):
        target, expected = tmp_path / f"out-{tp}-{pp}", tmp_path / f"expected-{tp}-{pp}"
        reshard(source, target, "--to", f"tp={tp},pp={pp}")
        for name, file in load(save_core(expected, tp, pp, whole)).items():
            assert_equal(load(target)[name]["model"], file["model"], name)
    reshard(source, tmp_path / "step", "--to", "whole", "--format", "native")
    made = holdfast.load(tmp_path / "step")["model"]
    assert {name for name, value in made.items() if value is not None} == whole.keys()
    assert all(torch.equal(made[name], value) for name, value in whole.items())
    # Two query groups cannot be cut for four ranks.
    told = reshard(source, tmp_path / "four", "--to", "tp=4", fails=True)
    assert "args.num_query_groups: is 2, which tp=4 does not divide" in told
