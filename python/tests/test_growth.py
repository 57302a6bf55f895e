"""Many saves leave nothing behind in the process: no memory, threads or descriptors."""

import os
import subprocess
import sys
from pathlib import Path

import holdfast

SAVES = 200
WARM_UP = 50

# Runs in a process of its own, so that the memory of other tests is not in the figures.
PROGRAM = """
import os, sys, time, holdfast
sys.path.insert(0, sys.argv[2])
from job import SHAPES, Array, set_state

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def name_of(task):
    try:
        return open(f"/proc/self/task/{task}/comm").read()
    except OSError:  # the thread has just ended
        return "iou-"

def counts():  # without the worker threads of io_uring, which the kernel starts and ends
    tasks = [task for task in os.listdir("/proc/self/task") if "iou-" not in name_of(task)]
    return len(tasks), len(os.listdir("/proc/self/fd"))

def settled(most):  # waits for retention, which has files open after a save is durable
    until = time.monotonic() + 20
    while (seen := counts()) > most and time.monotonic() < until:
        pass
    return seen

state = {name: Array(shape) for name, shape in SHAPES.items()}
again = {name: Array(shape) for name, shape in SHAPES.items()}
objects = {"loader": list(range(200)), "text": "x" * 1000}
saver = holdfast.Saver(sys.argv[1], keep=2,
                       writing=holdfast.Writing(space_reserve=0, ring=1 << 20))
for step in range(int(sys.argv[3])):
    set_state(state, step)
    saver.save(step, state, objects).durable()
    if step % 10 == 0:
        holdfast.restore(sys.argv[1], again)
    if step == int(sys.argv[4]):
        before, warm = resident(), min(counts() for _ in range(100))
print(resident() - before, *settled(warm), *warm)
saver.close()
print(*counts())
"""


def test_two_hundred_saves_leave_nothing_behind(tmp_path):
    output = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM, str(tmp_path), str(Path(__file__).parent),
         str(SAVES), str(WARM_UP)],
        env=os.environ | {"PYTHONPATH": str(Path(holdfast.__file__).parent.parent)},
        capture_output=True, text=True, check=True,
    ).stdout
    later, closed = ([int(word) for word in line.split()] for line in output.splitlines())
    grown, threads, descriptors, warm_threads, warm_descriptors = later
    # If each save leaked a tenth of the state, that would be 5 MiB. Allocators keep some memory.
    assert grown < 2 << 20
    assert threads <= warm_threads and descriptors <= warm_descriptors
    assert closed[0] < threads and closed[1] <= descriptors
