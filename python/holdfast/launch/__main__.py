"""The program behind `holdfast launch`."""

import gc
import os
import sys

from holdfast.launch.environment import share_cores
from holdfast.launch.listener import Refused, open_listener
from holdfast.launch.options import parse
from holdfast.launch.orphans import Register

REFUSED = 1


def main() -> int:
    """Runs the job, or says why not. Returns the exit code."""
    try:
        return _run()
    except Refused as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:  # before the launcher has begun to watch for signals
        return 130


def _run() -> int:
    options = parse(sys.argv[1:])
    listener = open_listener(options)
    Register(options).end_orphans()
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    share_cores(options.ranks * options.hosts)
    # Imported here, once, so that no worker and no replacement has to.
    import torch  # noqa: F401
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.debug
    import torch.distributed.tensor.parallel  # noqa: F401

    import holdfast.torch.checkpointer  # noqa: F401
    import holdfast.torch.elastic.elastic  # noqa: F401
    from holdfast.launch.launcher import launch

    gc.freeze()  # what is imported is never garbage, and ranks look for garbage in a change of layout
    return launch(options, listener)


if __name__ == "__main__":
    sys.exit(main())
