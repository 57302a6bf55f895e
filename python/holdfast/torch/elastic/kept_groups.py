"""The process groups of a configuration, set aside while another one is made.

Only one set of groups can be torch's at a time. Those that are set aside are not destroyed: the old model
holds them, and if the change fails, they are connected again and are torch's once more.
"""

import gc
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from holdfast.torch.recover.group import Groups

_MAPS = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg",
         "pg_coalesce_state")


class KeptGroups:
    """The groups that torch has now, until put_back() or let_go()."""

    def __init__(self, groups: Groups) -> None:
        world = c10d._world
        self._groups = groups
        self._default, self._count = world.default_pg, world.group_count
        self._maps = {name: dict(getattr(world, name)) for name in _MAPS}
        self._own = groups.set_aside()
        for name in _MAPS:
            getattr(world, name).clear()
        c10d._update_default_pg(None)
        c10d._unregister_all_process_groups()
        world.group_count = 0
        forget_meshes()

    def put_back(self, prefix: str, is_stale: Callable[[], bool]) -> None:
        """Connects them again, together with all their members, in place of those that torch has now."""
        forget_groups()
        world = c10d._world
        for name, kept in self._maps.items():
            getattr(world, name).update(kept)
        for group, name in self._maps["pg_names"].items():
            c10d._register_process_group(name, group)
        c10d._update_default_pg(self._default)
        world.group_count = self._count
        self._groups.put_back(self._own)
        self._groups.replace(prefix, is_stale)

    def let_go(self) -> None:
        """The old configuration is not needed any more."""
        for group in self._maps["pg_names"]:
            group.shutdown()
        self._maps = {name: {} for name in _MAPS}
        self._default, self._own = None, None


def forget_groups() -> None:
    """Destroys all process groups that torch has now, and what it keeps for meshes."""
    if dist.is_initialized():
        dist.destroy_process_group()
    c10d._world.group_count = 0  # also if the first group was begun and not made: names are counted
    forget_meshes()
    gc.collect()


def forget_meshes() -> None:
    """Forgets what torch keeps about meshes: it would take the groups of an older one that looks alike."""
    from torch.distributed.tensor import _collective_utils, _redistribute
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    _clear_sharding_prop_cache()
    _collective_utils.MeshTopoInfo.build_from_mesh.cache_clear()
    for name in dir(_redistribute):
        kept: Any = getattr(_redistribute, name)
        if hasattr(kept, "cache_clear"):
            kept.cache_clear()
        elif isinstance(kept, dict) and "cache" in name.lower():
            kept.clear()
