"""A job that changes TP x PP x DP while it runs: `holdfast.Elastic`."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from holdfast.resize.parallel import Parallel
from holdfast.torch.elastic.building import Build
from holdfast.torch.elastic.member import Member


class Elastic:
    """Builds the model of a job for a parallel configuration, and again when that changes.

        def build(mesh):                      # a DeviceMesh with the axes "pp", "dp" and "tp"
            model = cut(GPT(args), mesh)
            return {"model": model, "schedule": pipeline(model, mesh)}

        job = holdfast.Elastic(build, "tp=2,pp=2,dp=1")
        optimizer = AdamW(job.model.parameters())
        loader = holdfast.data.loader(data, 24, elastic=job)
        ck = holdfast.Checkpointer("runs/gpt", model=job, optimizer=optimizer, data=loader)
        for step, batch in zip(range(ck.resume(), steps), loader):
            loss = ck.run(train, batch)       # uses job.model and job.schedule
            ck.step(step, loss=loss)          # the configuration changes in here

    Make it on all ranks in place of init_process_group() and init_device_mesh(). Under `holdfast launch`,
    `holdfast resize RUN --to tp=1,pp=2,dp=2` or `job.resize("tp=1,pp=2,dp=2")` changes the configuration:
    all processes live on, every tensor keeps its bits, and the loop goes on with the next batch. The
    optimizer, schedulers and the running `for` stay; `job.model` and what else `build` returned are new
    objects. Elsewhere it only builds.

    build     makes the model for a mesh, or a dict with "model" and more, such as "schedule"; those are
              attributes of the job. Later calls are made on torch's meta device: modules get their
              memory and all values afterwards.
    parallel  the configuration at first: "tp=2,pp=2,dp=1"; an axis that is not named is 1.
    sizes     the configuration for a number of workers, {3: "dp=3"}: what the job goes on with if
              workers are lost and no others take their places, or if more come. `parallel` is one of them.
    device    where the model lives; by default the GPU of LOCAL_RANK, or the CPU.
    backend   as for init_process_group().
    timeout   of collective calls, as for init_process_group().
    in_parts  whether the state moves in parts, with which a rank never has the old and the new state
              together in memory. If such a change fails, all ranks start again from the newest checkpoint.
              By default, the state does so only if memory does not suffice for both.
    """

    def __init__(self, build: Build, parallel: str, *, sizes: Mapping[int, str] | None = None,
                 device: torch.device | str | None = None, backend: str | None = None,
                 timeout: timedelta = timedelta(minutes=10), in_parts: bool | None = None) -> None:
        checked = {number: Parallel.parse(one) for number, one in (sizes or {}).items()}
        for number, one in checked.items():
            if one.workers != number:
                raise ValueError(f"sizes: {one} has {one.workers} workers; expected {number}")
        self._member = Member(build, Parallel.parse(parallel), checked, device, backend, timeout, in_parts)

    def __getattr__(self, name: str) -> Any:
        parts = {} if name.startswith("_") else self._member.parts
        if name not in parts:
            raise AttributeError(f"{name}: expected {', '.join(parts)}, which build() has returned")
        return parts[name]

    @property
    def parallel(self) -> str:
        """The configuration that the job has now."""
        return str(self._member.parallel)

    @property
    def mesh(self) -> Any:
        """The DeviceMesh of the configuration."""
        return self._member.mesh

    @property
    def rank(self) -> int:
        """The rank of this process now."""
        return dist.get_rank()

    @property
    def is_last_stage(self) -> bool:
        """True on the ranks that have the last stage of the pipeline, and with it the loss."""
        return self._member.coordinates[0] == self._member.parallel.pp - 1

    def follow(self, loader: Any) -> tuple[int, int]:
        """Has a loader of holdfast.data follow the configuration; holdfast.data.loader() calls it."""
        return self._member.follow(loader)

    def resize(self, to: str) -> None:
        """Asks for another configuration, soon. Only the call on rank 0 has an effect."""
        self._member.ask_for(Parallel.parse(to))
