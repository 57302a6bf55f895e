"""The less common options of a Checkpointer, grouped by purpose.

    ck = holdfast.Checkpointer("runs/gpt", model=model, optimizer=opt,
                               writing=holdfast.Writing(compress=3, incremental=True),
                               failures=holdfast.Failures(grace=110))

holdfast.Saver and holdfast.torch.dcp.Writer take `writing`, too.
"""

import difflib
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any, Literal, dataclass_transform

from holdfast import _native


@dataclass_transform(frozen_default=True, kw_only_default=True)
def _option_group(cls: type) -> Any:
    """A frozen dataclass of keywords whose error for an unknown keyword names the nearest."""
    made = dataclass(frozen=True, kw_only=True)(cls)
    make = made.__init__

    @functools.wraps(make)
    def make_checked(self: Any, **given: Any) -> None:
        known = [field.name for field in fields(made)]
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1) or [" or ".join(known)]
                raise TypeError(f"{made.__name__}: unknown keyword {name}=; expected {near[0]}")
        make(self, **given)

    made.__init__ = make_checked
    return made


@_option_group
class Writing:
    """How a save is made and written.

    ring           bytes of memory that saves pass through. 0 means as much as the state, but at
                   most a quarter of the free memory, which the ranks of a machine share.
    in_flight      how many saves may be under way at a time.
    backpressure   what happens to one save more than that: "wait" until an older one is done,
                   "skip" the new one, or, for "newest", drop those that have not begun yet.
    read_back      True: a checkpoint is read again and checked before it counts.
    incremental    True: tensors that did not change are linked to the last step, not written.
    full_every     with `incremental`, every so many saves all tensors are written.
    compress       a level of zstd, 1 to 22, for files that only Holdfast reads; 0 for none.
    seal           from which bytes the seal of a tensor is computed, which resume() compares:
                   "staged" (from the copy that is written) or "source" (from the tensor itself,
                   while it is copied: a bit that flips in the copy is then found and mended, but
                   copying takes longer). "auto": a GPU seals its own memory, which takes little
                   of its time, and all else is "staged".
    parity         a share, such as 0.01, of parity beside each checkpoint file, from which
                   `holdfast repair` computes parts that a disk has lost; 0 for none.
    space_reserve  bytes that stay free on the disk.
    direct         True: writes past the system's page cache where that is possible.
    guard          what notices that a tensor is written to before it is copied: "sample" (the
                   versions that torch counts, and the beginning, the end and other places of
                   every tensor, which find weights that are exchanged through .data), "full"
                   (every byte: for code that writes to a few elements through .data) or "off".
                   Such a save is made again; after a write that torch did not count, every save
                   copies all tensors before it returns. Only a Checkpointer has a guard.
    """

    ring: int = 0
    in_flight: int = 2
    backpressure: Literal["wait", "skip", "newest"] = "wait"
    read_back: bool = False
    incremental: bool = False
    full_every: int = 16
    compress: int = 0
    seal: Literal["auto", "staged", "source"] = "auto"
    parity: float = 0.0
    space_reserve: int = 64 << 20
    direct: bool = True
    guard: Literal["sample", "full", "off"] = "sample"


@_option_group
class Resuming:
    """What resume() accepts.

    strict   False: resume() leaves out what is missing in the checkpoint or unexpected, and the
             state of an optimizer or scheduler of another class.
    verify   "full": resume() reads and checks all of a checkpoint before it restores anything;
             "fast": it checks what it restores.
    allow_unreachable_tiers
             True: a run without a step may start although one of its tiers does not answer.
             That tier may hold the run, so by default the run does not start.
    """

    strict: bool = True
    verify: Literal["fast", "full"] = "fast"
    allow_unreachable_tiers: bool = False

    def __post_init__(self) -> None:
        if self.verify not in ("fast", "full"):
            raise ValueError(f"verify={self.verify!r}; expected 'fast' or 'full'")


@_option_group
class Failures:
    """What happens when the job is stopped, when saves fail and when ranks are missing.

    grace       seconds for the save after SIGTERM or SIGUSR1, upon which all ranks save at the
                same step and exit with 143; and for the saves under way when an exception ends
                one rank of several. By default 60, and under torchrun 25, as torchrun kills its
                workers after 30 (or 5 less than TORCH_ELASTIC_SHUTDOWN_TIMEOUT says).
    signals     False: SIGTERM, SIGUSR1 and Ctrl-C are left alone. Otherwise the first Ctrl-C saves at
                the next step(), which then raises KeyboardInterrupt, and a second one raises at once.
    fail_after  "30m", or seconds: training ends once all saves have failed for so long; None
                lets it go on for ever.
    timeout     seconds that a rank waits for the other ranks before it gives up.
    """

    grace: float | None = None
    signals: bool = True
    fail_after: str | float | None = None
    timeout: float = 60.0


MOST_HELPERS = 64


@_option_group
class Recover:
    """How a rank that dies under `holdfast launch` is replaced, if no other rank has what it had.

    log     "messages": in each step, every rank keeps what it sends to others, such as the borders of
            pipeline stages, until a newer step is durable. A stage that dies is then made again alone,
            or together with the other ranks that it is cut over, behind the newest durable step, while
            the others wait (docs/recovery.md). "updates": before
            each update, every rank gives another one its local gradients. The replacement of a rank of
            FSDP2 or tensor parallelism makes the updates behind the newest durable step again, without
            computing. "auto": the kind with fewer bytes in a step, or nothing if other ranks have every
            parameter, too, or it costs more than 2 % of a step. None: all ranks start again from the
            newest checkpoint.
    memory  how much each rank keeps in memory: "1 GiB", or bytes. When that is nearly full, all ranks
            save soon.
    spill   a folder on a local disk for more.
    helpers how many processes share the steps that the replacement of a pipeline stage makes again: each
            makes some of the micro-batches of every step, and all make its update. 0 and 1: the
            replacement alone.
    undo    True: no gate. Replicas make updates without a word to each other, and after a death those
            that have made one more take it back, as SWIFT does. Not all bits come back: for
            comparisons (docs/recovery.md).
    """

    log: Literal["auto", "messages", "updates"] | None = "auto"
    memory: str | int = "1 GiB"
    spill: str | PathLike[str] | None = None
    helpers: int = 0
    undo: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.helpers, bool) or not isinstance(self.helpers, int) or not 0 <= self.helpers <= MOST_HELPERS:
            raise ValueError(f"helpers={self.helpers!r}; expected 0 to {MOST_HELPERS} processes")
        if self.helpers > 1 and (self.undo or self.log in ("updates", None)):
            with_what = "undo=True" if self.undo else f"log={self.log!r}"
            raise ValueError(f"helpers={self.helpers}, {with_what}: helpers share steps that are made again from "
                             "messages; expected log=\"messages\" or \"auto\"")
        if self.undo not in (True, False):
            raise ValueError(f"undo={self.undo!r}; expected True or False")
        if self.undo and self.log not in ("auto", None):
            raise ValueError(f"undo=True, log={self.log!r}: updates are taken back where all ranks are replicas, and "
                             "a log is kept where they are not; expected one of the two")
        if self.log not in ("auto", "messages", "updates", None):
            raise ValueError(f"log={self.log!r}; expected 'auto', 'messages', 'updates' or None")
        if self.memory_bytes < 1:
            raise ValueError(f"memory={self.memory!r}; expected a size such as \"1 GiB\"")
        if self.spill is not None and not os.path.isdir(self.spill):
            raise ValueError(f"spill={os.fspath(self.spill)!r}: no such folder; expected one on a local disk")

    @property
    def memory_bytes(self) -> int:
        """`memory` as a number."""
        if isinstance(self.memory, str):
            return _native.parse_byte_count(self.memory.replace(" ", ""))
        return self.memory

    @property
    def spill_folder(self) -> str:
        """`spill` as text; "" if there is none."""
        return "" if self.spill is None else os.path.abspath(self.spill)


@_option_group
class Schedule:
    """What the policies of `every=` know of the job; docs/policies.md explains them.

    objective      what "auto" optimises: "delay", "progress", "explore" or "priced".
    mtbf           seconds between failures of the whole job, as a first guess. Without it, and
                   until three failures were seen, "auto" bounds what can be lost: at most 5
                   minutes of work, as far as that costs at most 0.2 % of the time.
    budget         how many saves there may be in all; needs `total_steps`.
    total_steps    how many steps the training has. The last one is always saved.
    deadline       seconds after the start at which the job ends for good.
    slack          if failures are known, "auto" may cost this share of time more than the best
                   interval in order to write less: at most 20 % of the time. By default 0.001.
    stop_rate      how often per second something may stop the job.
    milestones     steps after which the learning rate drops.
    durable_steps  steps at which something is decided (a tuner may stop the job): a save is
                   made early enough before each of them to be durable by then.
    """

    objective: Literal["delay", "progress", "explore", "priced"] | None = None
    mtbf: float | None = None
    budget: int | None = None
    total_steps: int | None = None
    deadline: float | None = None
    slack: float | None = None
    stop_rate: float | None = None
    milestones: Sequence[int] | None = None
    durable_steps: Sequence[int] | None = None


@_option_group
class Layout:
    """How tensors lie on ranks, where the tensors themselves do not show it.

    rules  by name pattern, for tensors that do not show how they are cut, or for what ranks hold
           of them: "equal", "own", "first", holdfast.torch.Sharded or holdfast.torch.Part. The
           words are for plain values of objects, too: {"tracker.best": "first"}.
    names  renames tensors of pipeline stages whose names begin anew on each stage: a function of
           the name, a map such as {"0": "layers.4"}, or a list with one of them for each stage.
    group  the process group of the ranks that save together; None means all ranks.
    """

    rules: Mapping[str, Any] | None = None
    names: Mapping[str, str] | Callable[[str], str] | Sequence[Any] | None = None
    group: Any = None


@_option_group
class Watch:
    """Looks for bits of the model and the optimizer that change between two updates.

    Between step() and the next update nothing writes to parameters and to the slots of the
    optimizer. In each step, another part of them is sealed in step() and sealed again before the
    update. A seal that differs is an alarm, unless torch has counted a write to the tensor.
    A CUDA device seals its own memory; what it cannot seal is read through host memory. step() and
    the update wait for it until the device has done its work; the parts are as small and as seldom
    as `share` demands.

    share     how much of the training time the seals may take: 0.005 is half a percent. The parts
              are as large as this allows, as measured while training runs.
    on_alarm  "mend": one word that changed is put back, as its seal says; if more has changed, the
              bytes come from most replicas; if that is not possible, training stops.
              "stop": training stops, on all ranks, with holdfast.CorruptError.
              "warn": there is a warning, and training goes on.
    replicas  True: ranks also compare the seals of what they hold alike, before each save and
              every `compare_every` seconds, and find a replica that differs from most others.
    compare_every
              seconds between two such comparisons, in which all ranks also learn of alarms.
    exclude   patterns of names of tensors that are not watched, such as "model.embed.*": those
              that your code writes to between two updates through .data or NumPy, which torch
              does not count.

    Three guards look for figures that a fault makes unusual. Each is a factor, 10 for example, and
    off if it is None. A guard sees no bits, and an unusual figure may have another cause: its alarm
    stops training only with on_alarm="stop", and is a warning otherwise.

    dispersion
              an alarm if the gradient of one rank, before ranks average it, has a norm of more than
              so many times the median of the other ranks. For models under DDP. Neither this guard
              nor the next tells of figures below a thousandth of the first ones.
    spike     an alarm if a loss given to step(), or the norm of the gradient at an update, is more
              than so many times the largest of the last 100, or is not finite.
    range     an alarm if an element of a parameter is more than so many times the largest that its
              tensor had when all of it was looked at before (or 1, if that is more), or if an
              element of a parameter or slot is not finite, or a second moment below 0.
    """

    share: float = 0.005
    on_alarm: Literal["mend", "stop", "warn"] = "mend"
    replicas: bool = True
    compare_every: float = 2.0
    exclude: Sequence[str] = ()
    dispersion: float | None = None
    spike: float | None = None
    range: float | None = None

    def __post_init__(self) -> None:
        if self.on_alarm not in ("mend", "stop", "warn"):
            raise ValueError(f"on_alarm={self.on_alarm!r}; expected 'mend', 'stop' or 'warn'")
        for name in ("share", "compare_every"):
            _check_number(name, getattr(self, name))
        for name in ("dispersion", "spike", "range"):
            factor = getattr(self, name)
            if factor is not None and not _check_number(name, factor) > 1:
                raise ValueError(f"{name}={factor!r}; expected a factor above 1, or None")
        if not self.compare_every > 0:
            raise ValueError(f"compare_every={self.compare_every!r}; expected more than 0 seconds")
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share!r}; expected more than 0 and at most 1")
        if not isinstance(self.replicas, bool):
            raise TypeError(f"replicas={self.replicas!r}; expected True or False")
        if isinstance(self.exclude, str) or not all(isinstance(one, str) for one in self.exclude):
            raise TypeError(f"exclude={self.exclude!r}; expected a list of patterns")


def _check_number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r}; expected a number")
    return value


GROUPS: dict[str, type] = {"writing": Writing, "resuming": Resuming, "failures": Failures,
                           "schedule": Schedule, "layout": Layout, "watch": Watch}


def check_known(where: str, unknown: Iterable[str], known: Iterable[str]) -> None:
    """TypeError if there is an unknown keyword. It suggests the nearest one."""
    for name in unknown:
        raise _unknown_keyword(where, name, known)


def check_every(every: Any) -> None:
    """TypeError for what is no text and no function."""
    if not (isinstance(every, str) or callable(every)):
        raise TypeError(f'every={every!r}; expected "500 steps", "10m", a policy or a function')


# What other libraries call these options.
_OTHER_WORDS = {
    "every": ("save_every", "save_interval", "save_freq", "save_steps", "interval", "frequency",
              "every_n_steps", "every_n_train_steps", "checkpoint_every", "checkpoint_interval",
              "checkpoint_freq", "save_interval_steps", "save_strategy"),
    "run": ("path", "dir", "directory", "folder", "root", "dirpath", "run_dir", "save_dir",
            "output_dir", "checkpoint_dir", "ckpt_dir", "save_path", "log_dir"),
    "keep": ("keep_last", "max_to_keep", "save_top_k", "save_total_limit", "keep_last_n", "num_kept",
             "max_checkpoints", "keep_checkpoints", "num_to_keep"),
    "model": ("module", "net", "network", "models"),
    "optimizer": ("opt", "optim", "optimiser"),
    "scheduler": ("lr_scheduler", "sched", "lr_sched"),
    "scaler": ("grad_scaler", "amp_scaler"),
    "ema": ("ema_model", "averaged_model"),
    "data": ("loader", "dataloader", "data_loader", "train_loader", "train_dataloader", "sampler",
             "dataset"),
    "objects": ("extra", "extras", "state", "extra_state", "app_state"),
    "tiers": ("remote", "s3", "mirror", "backup", "upload_to"),
    "total_steps": ("max_steps", "num_steps", "num_train_steps"),
    "strict": ("load_strict",),
    "compress": ("compression",),
}


def _unknown_keyword(where: str, name: str, known: Iterable[str]) -> TypeError:
    spellings = {keyword: f"{keyword}=" for keyword in known}
    for keyword, group in GROUPS.items():
        for field in fields(group):
            spelling = f"{keyword}=holdfast.{group.__name__}({field.name}=...)"
            spellings.setdefault(field.name, spelling)
    spellings["run"] = "the folder as the first argument"
    same = [ours for ours, others in _OTHER_WORDS.items() if name.lower() in others]
    near = same or difflib.get_close_matches(name, spellings, n=1, cutoff=0.7)
    expected = spellings[near[0]] if near else f'objects={{"{name}": ...}} for an object to save'
    return TypeError(f"{where}: unknown keyword {name}=; expected {expected}")


def check_unused(where: str, writing: Writing, *names: str) -> None:
    """ValueError if options are set that have no meaning here."""
    for name in names:
        if getattr(writing, name) != getattr(Writing(), name):
            raise ValueError(f"{where}: writing has {name}={getattr(writing, name)!r}, which only "
                             "a Checkpointer uses; expected it left out")


def check_groups(**given: Any) -> None:
    """TypeError if a group of options is not of its class, as writing={...} is not."""
    for name, group in given.items():
        if not isinstance(group, GROUPS[name]):
            raise TypeError(f"{name}={group!r}; expected holdfast.{GROUPS[name].__name__}(...)")


def check_object_names(objects: Mapping[str, Any], taken: Iterable[str]) -> None:
    """ValueError for a name that the checkpoint itself uses, or that is no plain word."""
    if not isinstance(objects, Mapping):
        raise TypeError(f"objects={objects!r}; expected a dict of objects by name")
    for name in objects:
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"objects: the name {name!r}; expected a word such as 'tracker'")
        if name in taken:
            raise ValueError(f"objects: the name {name!r} belongs to the Checkpointer; "
                             "expected another name")
