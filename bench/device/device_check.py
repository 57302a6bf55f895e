"""Checks and measures saves and restores of tensors on a GPU, with torch's tensors and streams.

    device_check.py LIBRARY [--gib N] [--ring-gib N] [--folder F]

Every check compares bits: the file of a save must equal copies that torch made before, although the
tensors are overwritten while the save is in progress. Exits with 1 if a check fails.
"""

import argparse
import ctypes
import os
import statistics
import threading
import time
from pathlib import Path

import torch

GIB = 1 << 30
HEADER = 4096


class Probe:
    """Calls the functions of device_probe.cpp."""

    def __init__(self, library):
        self.calls = ctypes.CDLL(library)
        self.calls.probe_open.restype = ctypes.c_void_p
        self.calls.probe_error.restype = ctypes.c_char_p
        for name in ("ring", "finish", "copy_through"):
            getattr(self.calls, f"probe_{name}").restype = ctypes.c_int64
        self.handle = self.calls.probe_open()
        if self.handle is None:
            raise SystemExit(f"no device: {self.error()}")

    def error(self):
        return self.calls.probe_error().decode()

    def call(self, name, *arguments):
        """Returns what the call returned. Raises if it failed."""
        status = self.try_call(name, *arguments)
        if status == -2:
            raise RuntimeError(f"{name}: {self.error()}")
        return status

    def try_call(self, name, *arguments):
        given = [ctypes.c_int64(a) if isinstance(a, int) else a for a in arguments]
        return getattr(self.calls, f"probe_{name}")(ctypes.c_void_p(self.handle), *given)

    def add(self, tensor):
        matrix = tensor if tensor.dim() == 2 else tensor.reshape(1, -1)
        assert matrix.data_ptr() == tensor.data_ptr()
        self.call("add", ctypes.c_void_p(matrix.data_ptr()), *matrix.shape, *matrix.stride(),
                  matrix.element_size())

    def add_all(self, tensors):
        self.call("clear")
        for tensor in tensors:
            self.add(tensor)


class Checks:
    def __init__(self):
        self.failed = 0

    def that(self, good, what):
        print(f"{'ok    ' if good else 'FAILED'} {what}", flush=True)
        self.failed += not good


def figure(what, value, unit):
    print(f"figure {what}: {value:.3f} {unit}", flush=True)


def stream_handle():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def make_state(total):
    """Tensors like those of a model: large and small ones, and some that are not contiguous."""
    generator = torch.Generator("cuda").manual_seed(1)
    tensors, size = [], 0

    def random(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, device="cuda", generator=generator, dtype=dtype)

    while size < total:
        tensors += [random(4096, 4096), random(4096), random(1000, 7, dtype=torch.float32),
                    random(2048, 11008, dtype=torch.float32), random(1)]
        size = sum(t.numel() * t.element_size() for t in tensors)
    strided = [random(512, 1024).t(), random(600, 700)[:, 100:300], random(64, 64)[::2, ::3],
               torch.randn(1, 33, device="cuda").expand(5, 33)]
    return tensors, strided


def bytes_of(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def overwrite(tensors):
    for tensor in tensors:
        if 0 not in tensor.stride() or tensor.numel() == 1:
            tensor.fill_(-7.0)


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same_as_file(path, tensors):
    """True if the pieces in the file equal the tensors bit by bit. Compares on the device."""
    at = HEADER
    with open(path, "rb") as file:
        for tensor in tensors:
            size = tensor.numel() * tensor.element_size()
            file.seek(at)
            read = torch.frombuffer(bytearray(file.read(size)), dtype=torch.uint8)
            if not torch.equal(read.cuda(), raw(tensor)):
                return False
            at += size
    return at == os.path.getsize(path)


def work(times):
    """Keeps the device busy for milliseconds, like a training step that only reads the state."""
    a = torch.ones(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(times):
        a = a @ a * 1e-4
    return a


def check_addresses(probe, checks):
    on_device = torch.zeros(1000, device="cuda")
    pointer = ctypes.c_void_p
    checks.that(probe.call("device_of", pointer(on_device.data_ptr()), 4000) == 0,
                "(a) torch's device memory is known")
    checks.that(probe.call("device_of", pointer(on_device.data_ptr() + 100), 16) == 0,
                "(a) also in the middle")
    for what, tensor in (("pageable", torch.zeros(1000)),
                         ("pinned", torch.zeros(1000, pin_memory=True))):
        seen = probe.call("device_of", pointer(tensor.data_ptr()), 4000)
        checks.that(seen == -1, f"(a) {what} host memory is known as the host's")


def check_ring(probe, checks, ring_bytes):
    """Pins the memory of a ring while torch launches kernels, and measures both."""
    a = torch.zeros(1000, device="cuda")
    latencies, stop = [], threading.Event()

    def launch():
        while not stop.is_set():
            start = time.perf_counter()
            a.add_(1)
            latencies.append(time.perf_counter() - start)
            time.sleep(0.0005)

    thread = threading.Thread(target=launch)
    thread.start()
    micros = probe.call("ring", ring_bytes, 4 << 20, 1)
    stop.set()
    thread.join()
    figure("(d) pin and touch a ring", ring_bytes / GIB / (micros / 1e6), "GiB/s")
    figure("(d) launch while pinning, median", statistics.median(latencies) * 1e6, "us")
    figure("(d) launch while pinning, worst", max(latencies) * 1e6, "us")
    checks.that(micros > 0, "(d) a ring is pinned off the training thread")


def check_copies(probe, tensors, ring_bytes):
    probe.add_all(tensors)
    total = bytes_of(tensors)
    for kind in ("warm-up", "pinned"):
        start = time.perf_counter()
        probe.call("copy_through", total)
        seconds = time.perf_counter() - start
    figure(f"(c) device to {kind} ring", total / GIB / seconds, "GiB/s")
    probe.call("ring", ring_bytes, 4 << 20, 0)
    start = time.perf_counter()
    probe.call("copy_through", min(total, 2 * GIB))
    figure("(c) device to a ring that is not pinned",
           min(total, 2 * GIB) / GIB / (time.perf_counter() - start), "GiB/s")
    probe.call("ring", ring_bytes, 4 << 20, 1)
    big = max(tensors, key=torch.Tensor.numel)
    for what, host in (("pinned", torch.empty(big.shape, dtype=big.dtype, pin_memory=True)),
                       ("pageable", torch.empty(big.shape, dtype=big.dtype))):
        host.copy_(big)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            host.copy_(big, non_blocking=True)
        torch.cuda.synchronize()
        figure(f"    torch's own copy to {what} memory",
               10 * bytes_of([big]) / GIB / (time.perf_counter() - start), "GiB/s")


def check_snapshot(probe, checks, tensors, path):
    probe.add_all(tensors)
    before = [tensor.clone() for tensor in tensors]
    total = bytes_of(tensors)
    start = time.perf_counter()
    probe.call("prepare", GIB)
    figure("(b) taking memory for a snapshot", (time.perf_counter() - start) * 1e3, "ms")
    for run in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        probe.call("take", stream_handle())
        taken = time.perf_counter() - start
        probe.call("snapshot_wait")
        seconds = time.perf_counter() - start
        if run < 2:
            probe.call("write", os.fsencode(path), stream_handle())
            probe.call("finish")
    figure(f"(b) snapshot of {len(tensors)} tensors, host time", taken * 1e3, "ms")
    figure("(b) snapshot inside the device", total / GIB / seconds, "GiB/s")
    probe.call("snapshot_make_wait", stream_handle())
    overwrite(tensors)
    start = time.perf_counter()
    probe.call("write", os.fsencode(path), stream_handle())
    captured = probe.call("finish") / 1e6
    checks.that(same_as_file(path, before), "(b) a snapshot's file has the old bits")
    figure("(b) snapshot to file in memory, all", total / GIB / (time.perf_counter() - start),
           "GiB/s (with comparing)")
    figure("(b) snapshot to ring", total / GIB / captured, "GiB/s")
    for tensor, old in zip(tensors, before):
        if 0 not in tensor.stride() or tensor.numel() == 1:
            tensor.copy_(old)
    checks.that(probe.try_call("prepare", 1 << 50) == -2 and "reserve" in probe.error(),
                "(b) a reserve larger than the memory is refused")


def check_race(probe, checks, tensors, path):
    """The update is queued right after the save. Only the order of streams protects the save."""
    probe.add_all(tensors)
    probe.call("prepare", GIB)
    for kind in ("snapshot", "ring"):
        for tensor in tensors:
            tensor.normal_()
        before = [tensor.clone() for tensor in tensors]
        work(5)
        for tensor in tensors:
            tensor.mul_(2.0)  # has not run yet when the save begins; the save must contain it
        expected = [old * 2.0 for old in before]
        if kind == "snapshot":
            probe.call("take", stream_handle())
            probe.call("snapshot_make_wait", stream_handle())
        probe.call("write", os.fsencode(path), stream_handle())
        if kind == "ring":
            start = time.perf_counter()
            probe.call("make_wait", stream_handle())
            figure("(c) wait until all copies are begun", (time.perf_counter() - start) * 1e3,
                   "ms")
        overwrite(tensors)
        probe.call("finish")
        checks.that(same_as_file(path, expected),
                    f"({'b' if kind == 'snapshot' else 'c'}) an update that follows at once "
                    f"does not reach the {kind}")


def check_steps(probe, tensors, path):
    """Measures what a save adds to a step, if only the order of the streams makes the step wait."""
    probe.add_all(tensors)
    probe.call("prepare", GIB)

    def step(kind):
        torch.cuda.synchronize()
        start = time.perf_counter()
        if kind == "snapshot":
            probe.call("take", stream_handle())
            probe.call("snapshot_make_wait", stream_handle())
        if kind == "ring":
            probe.call("write", os.fsencode(path), stream_handle())
        work(60)
        if kind == "ring":
            probe.call("make_wait", stream_handle())
        overwrite(tensors)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        if kind == "snapshot":
            probe.call("write", os.fsencode(path), stream_handle())
        if kind != "plain":
            probe.call("finish")
        return seconds

    for kind in ("plain", "snapshot", "ring"):
        step(kind)
        times = [step(kind) for _ in range(5)]
        figure(f"a step, {kind}", statistics.median(times) * 1e3, "ms")


def check_restore(probe, checks, tensors, path):
    probe.add_all(tensors)
    total = bytes_of(tensors)
    probe.call("write", os.fsencode(path), stream_handle())
    probe.call("finish")
    before = [tensor.clone() for tensor in tensors]
    overwrite(tensors)
    torch.cuda.synchronize()
    start = time.perf_counter()
    probe.call("restore", os.fsencode(path))
    figure("(e) file in memory to device, one thread",
           total / GIB / (time.perf_counter() - start), "GiB/s")
    checks.that(all(torch.equal(raw(a), raw(b)) for a, b in zip(tensors, before)),
                "(e) what is restored has the old bits")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--ring-gib", type=float, default=2)
    parser.add_argument("--folder", default="/dev/shm")
    given = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    torch.zeros(1, device="cuda")
    probe, checks = Probe(given.library), Checks()
    path = Path(given.folder) / "holdfast-device-check"
    ring_bytes = int(given.ring_gib * GIB)
    check_addresses(probe, checks)
    tensors, strided = make_state(int(given.gib * GIB))
    figure("state", bytes_of(tensors) / GIB, "GiB")
    check_ring(probe, checks, ring_bytes)
    check_copies(probe, tensors, ring_bytes)
    try:
        check_snapshot(probe, checks, tensors, path)
        check_snapshot(probe, checks, strided, path)
        check_race(probe, checks, tensors, path)
        check_steps(probe, tensors, path)
        check_restore(probe, checks, tensors, path)
        check_restore(probe, checks, strided[:3], path)
    finally:
        path.unlink(missing_ok=True)
    print(f"{checks.failed} checks failed", flush=True)
    raise SystemExit(min(checks.failed, 1))


if __name__ == "__main__":
    main()
