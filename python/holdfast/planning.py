"""Plans a change of layout: what it would move, before anything is moved."""

from os import PathLike
from pathlib import Path

from holdfast import _native

_Path = str | PathLike[str]


def plan(
    source: _Path,
    target: _Path,
    *,
    model: _Path | None = None,
    hosts: str | None = None,
    training: str | None = None,
    place: bool = False,
) -> _native.Plan:
    """Plans how the bytes of `source` become `target` with the least movement.

    With a `model` (a built-in name, or a Hugging Face config.json or its folder) both are
    parallel configurations such as "tp=4,pp=2,dp=1". Without a model, both are layout files.
    `hosts` is hosts x devices, such as "4x8". With `place`, the plan also chooses the devices of
    the new positions so that as little as possible is moved. `training` says what is kept of a
    parameter: "mixed-adam" (14 bytes, the default), "adam" or "weights". The figures are those of
    `holdfast plan`.

        >>> holdfast.plan("tp=4,pp=2", "tp=4,pp=4", model="gpt-6.7b", place=True).figures
    """
    if model is None:
        if hosts is not None or training is not None or place:
            raise ValueError("plan: hosts, training or place without a model; expected model=")
        texts = [Path(path).read_text(encoding="utf-8") for path in (source, target)]
        return _native.plan_layouts(texts[0], str(source), texts[1], str(target))
    name, where = str(model), ""
    if name not in _native.model_names() and Path(model).exists():
        path = Path(model)
        if path.is_dir():
            path /= "config.json"
        name, where = path.read_text(encoding="utf-8"), str(path)
    return _native.plan_model(
        name, where, str(source), str(target), hosts or "", training or "", place
    )
