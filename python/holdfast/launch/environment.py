"""The environment variables of a worker: those that torchrun sets, and ours."""

import contextlib
import fcntl
import os
import socket
import struct
from typing import Any

from holdfast.launch.worker_identity import WorkerIdentity

_SIOCGIFADDR = 0x8915


def environment(identity: WorkerIdentity, job: dict[str, Any]) -> dict[str, str]:
    """`job` is what the deciding launcher says of the job: id, address, port, host."""
    # A worker that waits for a place has no rank yet; the number of its device never changes.
    rank, world = str(identity.slot if identity.rank < 0 else identity.rank), str(identity.world)
    local, locals_ = job["local"]
    made = {
        "RANK": rank, "LOCAL_RANK": str(local), "GROUP_RANK": str(identity.home),
        "ROLE_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": str(locals_),
        "ROLE_WORLD_SIZE": world, "GROUP_WORLD_SIZE": str(len(set(identity.hosts))),
        "MASTER_ADDR": job["address"], "MASTER_PORT": str(job["port"]),
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": job["id"],
        "TORCHELASTIC_RESTART_COUNT": str(identity.incarnation),
        "HOLDFAST_LAUNCH_ID": job["id"], "HOLDFAST_GENERATION": str(identity.generation),
    }
    if identity.helper > 0:
        made["HOLDFAST_HELPER"] = str(identity.helper)
    may_have_hosts = identity.can_change and not job["address"].startswith("127.")
    if (len(set(identity.hosts)) > 1 or may_have_hosts) and "GLOO_SOCKET_IFNAME" not in os.environ:
        # Gloo would take the address of the host's name, which often is not that of the network.
        if name := interface_to(job["address"]):
            made["GLOO_SOCKET_IFNAME"] = name
    return made


def share_cores(ranks: int) -> None:
    """Has each of several ranks compute in one thread, as torchrun does, unless the user has said
    otherwise. Called before torch is imported: its OpenMP reads the variable only once."""
    if ranks > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def own_address_to(address: str) -> str:
    """The address of this host that leads to that one; "" if none does."""
    with contextlib.suppress(OSError):
        family, kind, _, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # sends nothing
            return str(probe.getsockname()[0])
    return ""


def interface_to(address: str) -> str:
    """The name of the network interface that leads to the address; "" if it is not found."""
    own = own_address_to(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == own:
                    return name
    return "lo" if own.startswith("127.") or own == "::1" else ""
