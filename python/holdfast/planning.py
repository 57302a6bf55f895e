"""Plans a change of layout: what it would move, before anything is moved."""

import json
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from holdfast import _native

_Path = str | PathLike[str]


def plan(
    source: _Path,
    target: _Path,
    *,
    model: _Path | Mapping[str, Any] | None = None,
    hosts: str | None = None,
    training: str | None = None,
    speeds: str | None = None,
    place: bool = False,
) -> _native.Plan:
    """Plans how the bytes of `source` become `target` with the least movement.

    With a `model` both are parallel configurations such as "tp=4,pp=2,dp=1". It is a built-in
    name, a Hugging Face config.json or its folder, or for any other model what
    `holdfast.layout_of(module)` returns. Without a model, both are layout files.
    `hosts` is hosts x devices, such as "4x8". With `place`, the plan also chooses the devices of
    the new positions so that as little as possible is moved. `training` says what is kept of a
    parameter: "mixed-adam" (14 bytes, the default), "adam" or "weights". With `speeds` of links in
    GB/s, such as "device=450,adapter=50,host=400", the plan's `json` has a "cost" in seconds. The
    figures are those of `holdfast plan`.

        >>> holdfast.plan("tp=4,pp=2", "tp=4,pp=4", model="gpt-6.7b", place=True).figures
    """
    if model is None:
        if hosts is not None or training is not None or speeds is not None or place:
            raise ValueError(
                "plan: hosts, training, speeds or place without a model; expected model=")
        return _native.plan_layouts(source, target)
    described = isinstance(model, Mapping)
    return _native.plan_model(str(model.get("name", "model")) if described else fspath(model),
                              fspath(source), fspath(target), hosts or "", training or "", speeds or "", place,
                              json.dumps(model) if described else "")
