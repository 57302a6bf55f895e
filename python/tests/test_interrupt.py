"""Ctrl-C ends every wait for a save, at once and with KeyboardInterrupt."""

import subprocess
import sys

import pytest

# Makes a save that takes long, by compressing random bytes with zstd's highest level. A second
# thread sends SIGINT as soon as the main thread waits in the call.
SCRIPT = """
import os, signal, sys, threading
import numpy as np
import holdfast

# Needed if the parent process ignores SIGINT, as nohup does.
signal.signal(signal.SIGINT, signal.default_int_handler)
path, kind, what = sys.argv[1:]
SIZE = 32 << 20
noise = {"w": np.random.default_rng(1).integers(0, 256, SIZE, "u1")}
RING = (4 << 20) if what == "settle" else 0
options = dict(ring=RING, backpressure="wait", in_flight=1, read_back=False, incremental=False,
               compress=22, space_reserve=0, direct=False)
if kind == "saver":
    saver = holdfast.Saver(path, writing=holdfast.Writing(**options))
    save, close = (lambda step: saver.save(step, noise)), saver.close
else:
    from holdfast import _native
    from holdfast.arrays import describe_one
    box = holdfast.Box([(0, SIZE)])
    piece = _native.Piece(describe_one("w", noise["w"]), [SIZE], box)
    job = _native.Job(path, None, {**options, "every": "1 steps", "grace": 1, "guard": "sample"})
    def save(step):
        return job.save(step, [piece], noise, {}, "", lambda: (None, None))
    close = job.close
handle = save(1)
if kind == "saver":
    handle.captured()
elif what != "settle":
    job.settle([])
main = threading.main_thread().ident

def interrupt():
    names = []
    while "held_up" not in names:
        frame, names = sys._current_frames()[main], []
        while frame is not None:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
    os.kill(os.getpid(), signal.SIGINT)

def held_up():
    {"save": lambda: save(2), "durable": handle.durable, "close": close,
     "settle": lambda: job.settle([])}[what]()

threading.Thread(target=interrupt).start()
try:
    held_up()
except KeyboardInterrupt:
    print("interrupted", handle.is_done, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(("kind", "what"), [("saver", "save"), ("saver", "close"),
                                            ("job", "save"), ("job", "settle")])
def test_ctrl_c_ends_a_wait(tmp_path, kind, what):
    ran = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "run"), kind, what],
                         capture_output=True, text=True, timeout=60, check=False)
    assert (ran.stdout, ran.returncode) == ("interrupted False\n", 0), ran.stderr
