"""Refuses models and optimizers of another kind, when a Checkpointer is made."""

from typing import Any

import torch
from torch import nn

from holdfast.torch.state.module_names import by_key
from holdfast.torch.state.object_groups import class_name
from holdfast.torch.values.dotted_names import join


def check_given(model: Any, optimizer: Any) -> None:
    """TypeError names a model that is no module, or an optimizer that is none."""
    for _, one in by_key(model):
        if not isinstance(one, nn.Module):
            raise TypeError(f"model: a {class_name(one)}; expected a torch module, or a list or dict "
                            "of modules (not a state_dict)")
        if isinstance(one, torch.jit.ScriptModule):
            raise TypeError("model: a TorchScript module; expected the module that it was made of")
    for key, one in [] if optimizer is None else by_key(optimizer):
        if not (hasattr(one, "param_groups") and hasattr(one, "state")):
            raise TypeError(f"{join('optimizer', key)}: a {class_name(one)}; expected a torch "
                            "optimizer, or a list or dict of optimizers")
