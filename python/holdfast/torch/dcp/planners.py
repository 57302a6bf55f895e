"""Planners for torch.distributed.checkpoint that use no pickles.

A planner says which parts of a state each rank saves and loads. A state is tensors, in parts, and
other values. Those values travel with the plan to the first rank, which saves them as the objects
of the step.
"""

import copyreg
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    LoadPlan,
    ReadItem,
    SavePlan,
)
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.tensor import DTensor

from holdfast import Box, TensorName
from holdfast.torch.values.boxes import check_plain, local_of, part_of
from holdfast.torch.values.trees import pack

# DCP itself sends plans from rank to rank as pickles, in memory.
copyreg.pickle(TensorName, lambda name: (TensorName, (name.name,)))


class Values(NamedTuple):
    """The values that are no tensors: packed trees by key, and the path of each key."""

    trees: dict[str, Any]
    paths: dict[str, tuple[Any, ...]]


class SavePlanner(DefaultSavePlanner):
    """Plans a save without pickles: a value that is no tensor becomes a tree of typed values.

    A DTensor is saved in the parts that its ranks hold. TypeError or ValueError, on all ranks and
    before anything is written, names the key of a value that cannot be stored.
    """

    def __init__(self) -> None:
        super().__init__()

    def create_local_plan(self) -> SavePlan:
        """The plan for what this rank has."""
        state, trees = self.state_dict, {}
        self.state_dict = {k: v for k, v in state.items() if isinstance(v, torch.Tensor)}
        for key, value in state.items():
            if not isinstance(value, torch.Tensor):
                trees[key] = self._set_aside(key, value)
        items = [item for key, value in self.state_dict.items()
                 for item in _write_items(key, value)]
        self.plan = SavePlan(items, planner_data=Values(trees, dict(self.mappings)))
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Chooses one rank for each tensor; the values of all ranks go to the first."""
        values = Values({}, {})
        for plan in reversed(all_plans):  # the first rank comes last, so that its values stay
            values.trees.update(plan.planner_data.trees)
            values.paths.update(plan.planner_data.paths)
        paths = [replace(plan, planner_data=plan.planner_data.paths) for plan in all_plans]
        plans, metadata = super().create_global_plan(paths)
        for key in values.trees:
            metadata.state_dict_metadata[key] = BytesStorageMetadata()
        first, *others = [replace(plan, planner_data=None) for plan in plans]
        return [replace(first, planner_data=values), *others], metadata

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        """The part of the tensor that this rank holds."""
        return local_of(self.state_dict[write_item.index.fqn])

    def _set_aside(self, key: str, value: Any) -> Any:
        """The value as a tree; tensors inside it (in a tuple, say) are saved as tensors."""
        packed = pack(value, key)
        for name, tensor in packed.tensors.items():
            if name in self.state_dict:
                raise ValueError(f"{name}: a tensor inside {key}, and a key of the state, too; "
                                 "expected another key")
            self.state_dict[name] = tensor
        return packed.tree


class LoadPlanner(DefaultLoadPlanner):
    """Plans a load into the tensors of a state, in place. Runs no code that was stored.

    With `allow_partial_load`, values that the checkpoint does not have stay as they are. Without
    it, they are a ValueError. A tensor of another shape always is.
    """

    def __init__(self, *, allow_partial_load: bool = False) -> None:
        super().__init__(allow_partial_load=allow_partial_load)

    def create_local_plan(self) -> LoadPlan:
        """The plan for what this rank loads."""
        assert self.metadata is not None
        known = self.metadata.state_dict_metadata
        missing = [key for key in self.state_dict if key not in known]
        if missing and not self.allow_partial_load:
            more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
            raise ValueError(f"{', '.join(missing[:8])}{more}: not in the checkpoint; expected "
                             "allow_partial_load=True to leave them as they are")
        return LoadPlan([item for key, value in self.state_dict.items() if key in known
                         for item in _read_items(key, value, known[key])])

    def load_value(self, item: ReadItem, value: Any) -> None:
        """Puts a value that is no tensor into the state."""
        path = self.mappings[item.dest_index.fqn]
        container: Any = self.original_state_dict
        for key in path[:-1]:
            container = container[_live_key(container, key)]
        container[_live_key(container, path[-1])] = value

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        """Refuses bytes: those of another storage would be a pickle."""
        raise TypeError(f"{read_item.dest_index.fqn}: bytes of {type(value).__name__}; expected "
                        "holdfast.torch.dcp.Reader")

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """The part of the tensor that this rank holds."""
        return local_of(self.state_dict[index.fqn])


def _write_items(key: str, tensor: torch.Tensor) -> list[WriteItem]:
    """The item for the part that this rank holds of a tensor; none for an empty part."""
    check_plain(tensor, key)
    part = part_of(tensor, key)
    if part is None or (0 in part.box.shape and 0 not in part.shape):
        return []
    chunk = _chunk(part.box)
    kind = WriteItemType.SHARD if isinstance(tensor, DTensor) else WriteItemType.TENSOR
    properties = TensorProperties.create_from_tensor(local_of(tensor))
    return [WriteItem(MetadataIndex(key, chunk.offsets), kind,
                      tensor_data=TensorWriteData(chunk, properties, torch.Size(part.shape)))]


def _read_items(key: str, value: Any, saved: Any) -> list[ReadItem]:
    if isinstance(saved, BytesStorageMetadata):
        whole = torch.Size((0,))
        index = MetadataIndex(key)
        return [ReadItem(LoadItemType.BYTE_IO, index, whole, index, whole, whole)]
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{key}: saved as a tensor, and there is a {type(value).__name__}; "
                         "expected a tensor to fill")
    if tuple(value.shape) != tuple(saved.size):
        raise ValueError(f"{key}: saved with shape {tuple(saved.size)}; expected "
                         f"{tuple(value.shape)}")
    check_plain(value, key)
    part = part_of(value, key)
    if part is None or 0 in part.box.shape:
        return []
    return create_read_items_for_chunk_list(key, saved, [_chunk(part.box)])


def _chunk(box: Box) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size([lo for lo, _ in box.extents]), torch.Size(box.shape))


def _live_key(container: Any, key: Any) -> Any:
    """The key in the live state: DCP turns keys into text, and the state may have a number."""
    if not isinstance(container, dict) or key in container:
        return key
    return next((live for live in container if str(live) == key), key)
