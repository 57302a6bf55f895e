"""Runs on file systems that can do less than those of Linux, or that are nearly full."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from s3_server import find_rclone
from torch import nn
from training import Toy

import holdfast

MIB = 1 << 20

# rclone calls the program fusermount3 to mount. That program is in a package of FUSE, which may be
# missing. So this script, which needs root, takes its place.
FUSERMOUNT = f"""#!{sys.executable}
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
folder = sys.argv[-1].encode()
if sys.argv[1] == "-u":
    sys.exit(libc.umount2(folder, 2) != 0)
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={{device}},rootmode=40000,user_id=0,group_id=0"
if libc.mount(b"rclone", folder, b"fuse", 0, options.encode()) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
with socket.socket(fileno=int(os.environ["_FUSE_COMMFD"])) as asker:
    socket.send_fds(asker, [b" "], [device])
"""


@pytest.fixture
def mounted(tmp_path):
    """A folder under `rclone mount`,
    which has no hard links and no rename that replaces nothing."""
    rclone = find_rclone()
    if rclone is None or os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("needs root, /dev/fuse and rclone")
    for name in ("bin", "below", "cache", "mounted"):
        (tmp_path / name).mkdir()
    for name in ("fusermount", "fusermount3"):
        (tmp_path / "bin" / name).write_text(FUSERMOUNT)
        (tmp_path / "bin" / name).chmod(0o755)
    folder = tmp_path / "mounted"
    process = subprocess.Popen(
        [rclone, "mount", tmp_path / "below", folder, "--config", "", "--vfs-cache-mode", "writes",
         "--cache-dir", tmp_path / "cache"], stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})
    try:
        end = time.monotonic() + 20
        while not folder.is_mount():
            if process.poll() is not None or time.monotonic() > end:
                process.kill()
                pytest.skip(f"rclone cannot mount here: {process.communicate()[1]}")
            time.sleep(0.05)
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=False, capture_output=True)
        process.kill()
        process.communicate()


def toy():
    torch.manual_seed(0)
    return Toy(nn.Linear(64, 64))


@pytest.mark.parametrize("incremental", [False, True])
def test_a_run_without_hard_links_and_exclusive_renames(mounted, incremental):
    (mounted / "a").touch()
    with pytest.raises(OSError):
        os.link(mounted / "a", mounted / "b")  # the file system has no hard links
    run, training = mounted / "run", toy()
    with training.checkpointer(run, keep=2, incremental=incremental) as checkpointer:
        checkpointer.resume()
        for step in range(3):
            training.step()
            # The first save that would make a hard link fails.
            with contextlib.suppress(holdfast.UnavailableError):
                checkpointer.save(step).durable()
    again = toy()
    with again.checkpointer(run, keep=2) as checkpointer:
        assert checkpointer.resume() == 3
    for ours, theirs in zip(again.model.parameters(), training.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    holdfast.convert(run, mounted / "out.safetensors")
    assert holdfast.open(mounted / "out.safetensors")


def test_an_incremental_save_needs_room_only_for_what_it_writes(small_disk):
    model = nn.Sequential(nn.Linear(800, 800).requires_grad_(False), nn.Linear(800, 4))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    writing = holdfast.Writing(incremental=True, space_reserve=MIB // 4)
    with holdfast.Checkpointer(small_disk / "run", model=model, optimizer=optimizer,
                               writing=writing) as checkpointer:
        checkpointer.resume()
        for step in range(4):
            model(torch.ones(2, 800)).sum().backward()
            optimizer.step()
            checkpointer.save(step).durable()  # writes 2.6 MB the first time, then less than 0.1 MB
            if step == 0:
                disk = os.statvfs(small_disk)
                (small_disk / "filler").write_bytes(bytes(disk.f_bavail * disk.f_frsize - MIB))
    assert holdfast.open(small_disk / "run")
