"""The names and shapes of a module's tensors, for plans of models that Holdfast does not know."""

from typing import Any

import torch
from torch import nn

from holdfast.torch.state.module_names import Entry, entries_of


def layout_of(model: nn.Module) -> dict[str, Any]:
    """Describes a model for `holdfast.plan(model=)`: its tensors, without their values.

    The model may be on the meta device, where it takes no memory. Names are those of the unwrapped
    module; tied tensors have one name and the others as `ties`. Every parameter counts as trained.
    How tensor parallelism cuts a parameter follows from its name (docs/models.md). The result is
    plain JSON: written to a file, it is a model for `holdfast plan --model FILE`.

        >>> with torch.device("meta"):
        ...     layout = holdfast.layout_of(MyModel())
        >>> holdfast.plan("dp=8,zero=3", "tp=2,dp=2", model=layout).figures
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: {type(model).__name__}; expected a torch.nn.Module")
    return {
        "holdfast": "model",
        "version": 1,
        "name": type(model).__name__,
        **_heads_of(model),
        "tensors": [_tensor(entry) for entry in entries_of(model) if not entry.is_transient],
    }


def _tensor(entry: Entry) -> dict[str, Any]:
    kept = entry.kept
    described: dict[str, Any] = {"name": entry.name, "dtype": str(kept.dtype).split(".")[-1],
                                 "shape": list(kept.shape), "role": _role_of(entry)}
    if entry.aliases:
        described["ties"] = entry.aliases
    if type(entry.module).__name__ == "Conv1D" and entry.attribute == "weight":
        described["transposed"] = True  # transformers' Conv1D keeps [inputs, outputs]
    return described


def _role_of(entry: Entry) -> str:
    if entry.is_parameter:
        return "parameter"
    is_count = entry.kept.dim() == 0 and not entry.kept.dtype.is_floating_point
    return "counter" if is_count else "buffer"


def _heads_of(model: nn.Module) -> dict[str, int]:
    """The heads of all attention layers, if they have the same number."""
    config = getattr(model, "config", None)
    heads = getattr(config, "num_attention_heads", None)
    if isinstance(heads, int) and heads > 0:
        keys = getattr(config, "num_key_value_heads", None)
        latent = getattr(config, "kv_lora_rank", None) is not None
        grouped = isinstance(keys, int) and keys > 0 and heads % keys == 0 and not latent
        return {"heads": heads, "kv_heads": keys if grouped else heads}
    counts = {module.num_heads for module in model.modules()
              if isinstance(module, torch.nn.MultiheadAttention)}
    return {"heads": counts.pop()} if len(counts) == 1 else {}
