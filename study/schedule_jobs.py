"""What the scripts of the schedule study share: COCI's range of parameters, and jobs."""

from typing import Any

MINUTE, HOUR = 60.0, 3600.0
# The range of parameters that COCI used: stalls in seconds, failures per minute, and how fast the
# loss falls per minute.
STALLS = (0.13, 0.3, 0.6, 1.0, 1.6)
RATES = (0.00024, 0.00104, 0.00208, 0.00417)
THETAS = (-0.01, -0.02, -0.05, -0.1, -0.2)
# The losses at which a training starts: normalised, ten classes and a hundred classes.
STARTS = (1, 2.3, 4.6)
# The reductions that the abstract states, for one worker and for data-parallel jobs.
SERIAL_FIGURE, PARALLEL_FIGURE = -0.4018, -0.6064

# The failures of each measurement, by the title of its column, as options of `holdfast simulate`.
INJECTED = "every:5.103m"
POISSON, STOPPED = "Poisson, mean", "Poisson, stop at 25 %"
SCENARIOS: dict[str, dict[str, Any]] = {
    POISSON: {"runs": 20000},
    "no failure": {"runs": 1, "failures": "never"},
    "one, anywhere": {"runs": 400, "failures": "once"},
    "one in the first 10 %": {"runs": 400, "failures": "once:0.1"},
    "one in the first 25 %": {"runs": 400, "failures": "once:0.25"},
    "every 5.103 min": {"runs": 200, "failures": INJECTED},
    STOPPED: {"runs": 20000, "stop_at": 15 * MINUTE},
}


def hour(stall: float, rate: float, theta1: float, first: float = 1) -> dict[str, Any]:
    """The options that describe one hour of training."""
    return {"length": HOUR, "stall": stall, "step": 0.25, "mtbf": MINUTE / rate,
            "curve": exponential(first, theta1)}  # fmt: skip


def exponential(first: float, theta1: float) -> str:
    """The loss first * exp(theta1 t), with t in minutes."""
    return f"exp:{first},{MINUTE / -theta1}"


def percent(share: float) -> str:
    return f"{100 * share:+.1f}"


Workers = list[tuple[float, float]]  # from which second on, and how many


def phases_text(workers: Workers) -> str:
    return ",".join(f"{start}:{count}" for start, count in workers)


def halving(workers: float, phases: int, length: float) -> Workers:
    return [(length * i / phases, workers / 2**i) for i in range(phases)]
