"""Serves the trials of `holdfast campaign run --serve`, so that a training is started only once, and counts
them.

    def trial(checkpoint, log, state):
        model, optimizer = load(checkpoint)
        ...  # trains, and writes lines such as {"step": 1, "loss": 0.5} to log

    holdfast.campaign.serve(trial)

Every trial must compute the same as in a new process: it makes its model anew and seeds its random
generators. The campaign checks that with a golden run after every 50 trials.
"""

import json
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

# The names under which launchers tell a process its rank and the number of ranks: torchrun and
# `holdfast launch`, horovodrun, Open MPI, MPICH, Slurm.
_RANKS = (("RANK", "WORLD_SIZE"), ("HOROVOD_RANK", "HOROVOD_SIZE"),
          ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
          ("SLURM_PROCID", "SLURM_NTASKS"))

Trial = Callable[[str, str, str | None], Any]


def serve(trial: Trial, *, rank: int | None = None, ranks: int | None = None) -> int:
    """Calls trial(checkpoint, log, state) for each trial, and returns how many there were.

    Every rank of a job calls it. The campaign tells all ranks the same files and waits for all of
    them, so the trial itself decides which rank writes log and state. `state` is None unless the
    campaign compares states. An exception that the trial raises is the trial's failure, and the
    next trial follows. The rank and the number of ranks come from the launcher's variables unless
    they are given.

    ValueError if the program was not started by a campaign.
    """
    path = os.environ.get("HOLDFAST_CAMPAIGN")
    if not path:
        raise ValueError("serve: HOLDFAST_CAMPAIGN is not set; expected a program that "
                         "`holdfast campaign run --serve` has started")
    known_rank, known_ranks = _place(os.environ)
    hello = {"rank": known_rank if rank is None else rank,
             "ranks": known_ranks if ranks is None else ranks}
    served = 0
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        _send(connection, hello)
        with connection.makefile(encoding="utf-8") as requests:
            for line in requests:
                try:
                    _send(connection, _answer(trial, json.loads(line)))
                except (BrokenPipeError, ConnectionResetError):  # the campaign has ended
                    break
                served += 1
    return served


def analyse(*folders: str | os.PathLike[str], **options: Any) -> Any:
    """Counts the trials of a campaign, or compares two: what `holdfast campaign analyse --json` prints,
    as a holdfast.VerbReport. The options are those of the command: analyse("a", against=["b"])."""
    # Imported here, because a training that serves trials may have this file alone.
    from holdfast.verbs import option_words, run_words

    paths = [os.path.join(".", folder) if os.fspath(folder).startswith("-") else os.fspath(folder)
             for folder in folders]
    return run_words("campaign", "analyse", *paths, *option_words(options))


def _place(variables: Mapping[str, str]) -> tuple[int, int]:
    """The rank of this process and the number of ranks."""
    for rank, ranks in _RANKS:
        # A batch script also has Slurm's numbers, but only srun starts one process for each.
        if rank == "SLURM_PROCID" and not variables.get("SLURM_STEP_ID", "").isdigit():
            continue
        if variables.get(rank, "").isdigit() and variables.get(ranks, "").isdigit():
            return int(variables[rank]), int(variables[ranks])
    return 0, 1


def _answer(trial: Trial, request: dict[str, Any]) -> dict[str, Any]:
    """Carries out one trial, and says how it went."""
    number = request["trial"]
    try:
        trial(request["checkpoint"], request["log"], request["state"])
    except SystemExit as error:
        if error.code in (None, 0):
            return {"done": number}
        code = error.code if isinstance(error.code, int) else 1
        return {"failed": number, "why": f"SystemExit: {error.code}", "code": code}
    except Exception as error:
        return {"failed": number, "why": f"{type(error).__name__}: {error}", "code": 1}
    return {"done": number}


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall((json.dumps(message) + "\n").encode())
