"""Makes checkpoints as Megatron-LM saves them, with torch.save and without Megatron.

The names, their order and the shapes are those of the structure files in
kungfu-team/transformer-checkpoint, which list what Megatron-LM 23.06 has saved for GPT."""

import random
from argparse import Namespace
from collections import OrderedDict

import numpy
import torch

LAYER = {"input_layernorm.weight": "h", "input_layernorm.bias": "h",
         "self_attention.query_key_value.weight": "qkv h",
         "self_attention.query_key_value.bias": "qkv",
         "self_attention.dense.weight": "h h/t", "self_attention.dense.bias": "h",
         "post_attention_layernorm.weight": "h", "post_attention_layernorm.bias": "h",
         "mlp.dense_h_to_4h.weight": "4h/t h", "mlp.dense_h_to_4h.bias": "4h/t",
         "mlp.dense_4h_to_h.weight": "h 4h/t", "mlp.dense_4h_to_h.bias": "h"}


class Gpt:
    """A model with the optimizer's state of fp16 training. All values follow from the names."""

    def __init__(self, hidden=16, layers=4, heads=4, sequence=8, words=1000, version=3.0):
        self.hidden, self.layers, self.heads = hidden, layers, heads
        self.sequence, self.words, self.version = sequence, words, version
        self.values = {}

    def rows(self, tp):
        return -(-self.words // (128 * tp)) * 128 * tp

    def names(self, stage, pp):
        """The names that a stage has, with numbers of layers that count through all stages."""
        own = self.layers // pp
        names = [f"layers.{i}.{name}" for i in range(stage * own, (stage + 1) * own)
                 for name in LAYER]
        if stage == 0:
            names = ["embedding.word_embeddings.weight",
                     "embedding.position_embeddings.weight", *names]
        if stage == pp - 1:
            names += ["final_layernorm.weight", "final_layernorm.bias"]
            names += ["head"] * (pp > 1)
        return names

    def whole(self, name, slot):
        """A tensor of the whole model: its master, its weight or a moment."""
        if slot == "weight":
            return self.whole(name, "master").half()
        name = "embedding.word_embeddings.weight" if name == "head" else name
        if (name, slot) not in self.values:
            kind = name.split(".", 2)[2] if name.startswith("layers.") else name
            h = self.hidden
            # Enough pad rows for 4 ranks; others take the first ones.
            shape = {"embedding.word_embeddings.weight": (self.rows(4), h),
                     "embedding.position_embeddings.weight": (self.sequence, h),
                     "final_layernorm.weight": (h,), "final_layernorm.bias": (h,)}.get(kind)
            if shape is None:
                sizes = {"h": h, "qkv": 3 * h, "h/t": h, "4h/t": 4 * h}
                shape = tuple(sizes[part] for part in LAYER[kind].split())
            generator = torch.Generator().manual_seed(random.Random(name + slot).getrandbits(31))
            self.values[name, slot] = torch.randn(shape, generator=generator)
        return self.values[name, slot]

    def part(self, name, slot, rank, tp):
        """What a tensor rank has of it."""
        tensor = self.whole(name, slot)
        kind = name.split(".", 2)[2] if name.startswith("layers.") else name
        if kind in ("embedding.word_embeddings.weight", "head"):
            return tensor[:self.rows(tp)].chunk(tp, 0)[rank].clone()
        cut = LAYER.get(kind, "").split()
        if cut and cut[0] == "qkv":
            own = tensor.chunk(tp, 0)[rank]
            size = self.hidden // self.heads
            by_head = own.view(self.heads // tp, 3, size, *own.shape[1:])
            if self.version == 0:
                by_head = by_head.transpose(0, 1)
            elif self.version == 1.0:
                by_head = by_head.transpose(1, 2)
            return by_head.reshape(own.shape).clone()
        for axis, size in enumerate(cut):
            if size.endswith("/t"):
                return tensor.chunk(tp, axis)[rank].clone()
        return tensor.clone()

    def args(self, rank, tp, pp, stage):
        return Namespace(num_layers=self.layers, hidden_size=self.hidden,
                         num_attention_heads=self.heads, max_position_embeddings=self.sequence,
                         make_vocab_size_divisible_by=128, vocab_size=self.words,
                         padded_vocab_size=self.rows(tp), tensor_model_parallel_size=tp,
                         pipeline_model_parallel_size=pp, world_size=tp * pp, data_parallel_size=1,
                         rank=rank + tp * stage, params_dtype=torch.float16, lr=1e-4,
                         virtual_pipeline_model_parallel_size=None)

    def rank_file(self, rank, stage, tp, pp):
        names = self.names(stage, pp)
        first = stage * (self.layers // pp)
        model = {"language_model": {}}
        for name in names:
            tensor = self.part(name, "weight", rank, tp)
            if name == "head":
                model["word_embeddings_for_head"] = OrderedDict(weight=tensor)
            elif name.startswith("embedding."):
                place = model["language_model"].setdefault("embedding", {})
                place[name.split(".")[1]] = OrderedDict(weight=tensor)
            else:
                own = name
                if name.startswith("layers."):
                    _, number, rest = name.split(".", 2)
                    own = f"layers.{int(number) - first}.{rest}"
                model["language_model"].setdefault("encoder", OrderedDict())[own] = tensor
        decay = [n for n in names if self.whole(n, "master").dim() > 1]
        groups = [decay, [n for n in names if n not in decay]]
        numbers = {name: i for i, name in enumerate(groups[0] + groups[1])}
        shared = {"lr": 5.25e-05, "bias_correction": True, "betas": (0.9, 0.999), "eps": 1e-08,
                  "step": 35}
        optimizer = {
            "optimizer": {
                "state": {i: {slot: self.part(name, slot, rank, tp)
                              for slot in ("exp_avg", "exp_avg_sq")}
                          for name, i in numbers.items()},
                "param_groups": [{"wd_mult": float(g == 0), **shared,
                                  "params": [numbers[n] for n in group]}
                                 for g, group in enumerate(groups)]},
            "grad_scaler": {"scale": torch.tensor([65536.0]), "growth_tracker": 35},
            "fp32_from_fp16_params": [[self.part(n, "master", rank, tp) for n in group]
                                      for group in groups]}
        generator = torch.Generator().manual_seed(1000 + stage)
        own = torch.Generator().manual_seed(2000 + 10 * stage + rank)
        states = [{"random_rng_state": random.Random(stage).getstate(),
                   "np_rng_state": numpy.random.RandomState(stage).get_state(),
                   "torch_rng_state": generator.get_state(),
                   "cuda_rng_state": torch.arange(16, dtype=torch.uint8) + stage,
                   "rng_tracker_states": {"model-parallel-rng": own.get_state()[:32].clone()}}]
        return {"args": self.args(rank, tp, pp, stage), "checkpoint_version": self.version,
                "iteration": 50, "model": model, "optimizer": optimizer,
                "opt_param_scheduler": {"max_lr": 0.00015, "num_steps": 1120,
                                        "lr_decay_style": "cosine"},
                "rng_state": states}

    def save(self, folder, tp, pp):
        for stage in range(pp):
            for rank in range(tp):
                name = f"mp_rank_{rank:02}" + (f"_{stage:03}" if pp > 1 else "")
                path = folder / "iter_0000050" / name / "model_optim_rng.pt"
                path.parent.mkdir(parents=True)
                torch.save(self.rank_file(rank, stage, tp, pp), path)
        (folder / "latest_checkpointed_iteration.txt").write_text("50")
        return folder


def load(folder):
    """All rank files of a checkpoint, by the names of their folders."""
    return {path.parent.name: torch.load(path, weights_only=False)
            for path in sorted(folder.glob("iter_*/mp_rank_*/model_optim_rng.pt"))}
