"""What a forked worker does: it becomes a rank of the job and runs the program."""

import atexit
import contextlib
import os
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path

from holdfast.launch.worker_identity import FAILED, WorkerIdentity

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # the launcher blocks these while it forks, and run() ends that


def run(identity: WorkerIdentity, program: list[str], is_module: bool) -> int:
    """Runs the program and returns its exit code. Called once in a new process."""
    from holdfast.torch.recover import worker_side

    signal.set_wakeup_fd(-1)
    for number in (*STOP_SIGNALS, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT
                      else signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    worker_side.start(identity)
    code = FAILED
    try:
        _run_program(program, is_module)
        code = 0
    except SystemExit as error:
        code = _code_of(error)
    except BaseException as error:
        sys.last_value = error
        worker_side.tell_why(error)
        _explain(error)
    with contextlib.suppress(BaseException):
        threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _run_program(program: list[str], is_module: bool) -> None:
    sys.argv = list(program)
    if is_module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(program[0]).resolve().parent))
        runpy.run_path(program[0], run_name="__main__")


def _explain(error: BaseException) -> None:
    trace = error.__traceback__
    here = ("holdfast/launch/worker.py", "runpy")
    while trace is not None and any(part in trace.tb_frame.f_code.co_filename for part in here):
        trace = trace.tb_next  # frames of the launcher tell the user nothing
    traceback.print_exception(type(error), error, trace)


def _code_of(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    print(error.code, file=sys.stderr)
    return FAILED
