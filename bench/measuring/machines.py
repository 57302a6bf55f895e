"""On which machine figures were measured, and whether it was quiet.

This imports neither Holdfast nor torch, so that scripts without them can use it.
"""

import contextlib
import hashlib
import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

BUSY = 0.5  # the share of the cores at work above which a machine is not quiet
SAME = ("machine", "processor", "cores")  # what two machines have in common if they are alike
BOOT = Path("/proc/sys/kernel/random/boot_id")
STOLEN = 7  # the place of "steal" among the times of /proc/stat


def this_machine() -> dict[str, Any]:
    return {"machine": platform.machine(), "processor": processor(), "cores": os.cpu_count()}


def this_run() -> dict[str, Any]:
    """What must stand beside figures so that they can be compared later: machine, versions and date."""
    return this_machine() | {"identity": identity(), "gpu": gpu(), "torch": _version("torch"),
                             "python": platform.python_version(),
                             "date": time.strftime("%Y-%m-%d", time.gmtime())}  # fmt: skip


def identity() -> str:
    """Tells two machines of the same kind apart: a digest of what its GPUs or, without one, its boot are named."""
    name = _of_gpus("uuid")
    with contextlib.suppress(OSError):
        name = name or BOOT.read_text().strip()
    return hashlib.sha256(name.encode()).hexdigest()[:12] if name else ""


def gpu() -> str:
    """The name of the GPU and the version of its driver; "" if there is none."""
    return _of_gpus("name,driver_version")


def _of_gpus(words: str) -> str:
    try:
        return subprocess.run(["nvidia-smi", f"--query-gpu={words}", "--format=csv,noheader"],
                              capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return ""


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def processor() -> str:
    """The name of the processor; "" where the system does not tell it, as on ARM."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return ""


def are_alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[key] == other[key] for key in SAME)


def name_of(machine: dict[str, Any]) -> str:
    kind = f"{machine['machine']} ({machine['processor']})" if machine["processor"] else machine["machine"]
    return f"{kind} with {machine['cores']} cores"


def is_busy(machine: dict[str, Any]) -> bool:
    """True if other work took so many of its cores ("load") that times are too long."""
    return machine["load"] > BUSY * machine["cores"]


def busy_cores(seconds: float = 2.0) -> float:
    """How many cores are at work, so long as this process waits. The load average would count what
    has ended a minute ago."""
    before = _times()
    time.sleep(seconds)
    spent = [after - start for after, start in zip(_times(), before, strict=True)]
    idle = spent[3] + spent[4]
    return (1 - idle / max(sum(spent), 1)) * (os.cpu_count() or 1)


def stolen() -> int:
    """The clock ticks that the host has taken from this machine; 0 if the kernel does not say."""
    with contextlib.suppress(OSError, IndexError):
        return _times()[STOLEN]
    return 0


def _times() -> list[int]:
    """The clock ticks that all cores have spent, by kind."""
    return [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
