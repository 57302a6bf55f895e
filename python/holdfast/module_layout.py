"""Describes a user's model for `holdfast plan --module MODULE:NAME`, which starts this module.

    python -m holdfast.module_layout my_models:build

NAME is a function or class that needs no arguments, or a module. It is called with the meta device
as the default device, so that the model takes no memory. The description is printed as JSON, and a
failure as {"error": SENTENCE}. All that the user's code prints goes to stderr.
"""

import importlib
import json
import os
import sys
from typing import Any


class _WrongCallError(Exception):
    """What is wrong with the call, in one sentence."""


def _find(target: str) -> Any:
    """The object that MODULE:NAME names."""
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise _WrongCallError(f'"{target}"; expected MODULE:NAME such as my_models:build')
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise _WrongCallError(f"{target}: there is no module {module_name}; expected one in the "
                              "current folder or on PYTHONPATH") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise _WrongCallError(f"{target}: {module_name} has no {name}")
        found = getattr(found, part)
    return found


def _describe(target: str) -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        raise _WrongCallError(f"{sys.executable} has no torch; expected a Python with torch "
                              "(HOLDFAST_PYTHON names another)") from error
    from holdfast.torch.model_layout import layout_of

    found = _find(target)
    with torch.device("meta"):
        model = found if isinstance(found, torch.nn.Module) else found()
    if not isinstance(model, torch.nn.Module):
        raise _WrongCallError(f"{target}: gave a {type(model).__name__}; expected a "
                              "torch.nn.Module")
    return layout_of(model)


def answer_for(target: str) -> dict[str, Any]:
    """The description of the model, or {"error": SENTENCE}."""
    try:
        return _describe(target)
    except _WrongCallError as error:
        return {"error": str(error)}
    except Exception as error:  # of the user's code
        return {"error": f"{target}: {type(error).__name__}: {error}"}


def main(target: str) -> int:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that nothing but the answer goes to stdout
    answer = answer_for(target)
    with out:
        json.dump(answer, out)
    return 1 if "error" in answer else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
