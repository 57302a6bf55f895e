"""The command line of `holdfast launch`."""

import argparse
import os
import sys
from pathlib import Path

from holdfast.launch.launcher import Launcher, Options

_EXAMPLE = """example:
  holdfast launch -n 4 train.py --batch 32
"""


def parse(arguments: list[str]) -> Options:
    """The options, or an exit with a sentence about what is wrong."""
    parser = argparse.ArgumentParser(
        prog="holdfast launch", epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Starts the ranks of a training job on this machine. A rank that dies is "
                    "replaced, and gets its state from the others, which keep their processes.")
    parser.add_argument("-n", "--ranks", type=int, default=1, metavar="N",
                        help="how many ranks to start (default: 1)")
    parser.add_argument("-m", "--module", action="store_true",
                        help="the program is a module, as with python -m")
    parser.add_argument("program", help="the training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    given = parser.parse_args(arguments)
    if given.ranks < 1:
        parser.error(f"-n {given.ranks}; expected 1 or more")
    if not given.module and not Path(given.program).is_file():
        parser.error(f"{given.program}: no such file; expected a Python script")
    return Options(given.ranks, [given.program, *given.arguments], given.module)


def main() -> int:
    """Runs the job. Returns its exit code."""
    options = parse(sys.argv[1:])
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    # Imported here, once, so that no worker and no replacement has to.
    import torch  # noqa: F401
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel  # noqa: F401

    import holdfast.torch.checkpointer  # noqa: F401

    return Launcher(options).run()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # before the launcher has begun to watch for signals
        sys.exit(130)
