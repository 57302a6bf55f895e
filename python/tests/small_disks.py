"""A small file system of its own (the fixture small_disk), filled or mounted anew."""

import os
import subprocess


def mount(folder, options):
    return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
                          capture_output=True, text=True, check=False)


def remount(folder, options):
    mount(folder, f"remount,{options}").check_returncode()


def fill(folder, leave):
    """Fills the disk except for `leave` bytes."""
    free = os.statvfs(folder)
    with open(folder / "filler", "wb") as file:
        file.write(bytes(free.f_bavail * free.f_frsize - leave))
