"""The statistics of campaigns, studies and benchmarks: intervals that say what they cover, and exact tests.

    low, high = holdfast.statistics.wilson_interval(12, 385)

`holdfast campaign analyse` computes with the same functions. The names mean what they mean in textbooks;
each function says whose method it is.
"""

from holdfast._native import distance_margin as DISTANCE_MARGIN  # of the log10 of a ratio
from holdfast._native import (
    binomial_tail,
    fisher_p,
    holm,
    mcnemar_p,
    mean_interval,
    paired_difference,
    quantile_interval,
    rate_difference,
    trial_outcomes,
    wilson_interval,
)

# What can become of a campaign's trial, the worst first, and which of these outcomes are harm.
OUTCOMES = tuple(name for name, _ in trial_outcomes())
HARM = tuple(name for name, is_harm in trial_outcomes() if is_harm)

__all__ = [
    "DISTANCE_MARGIN",
    "HARM",
    "OUTCOMES",
    "binomial_tail",
    "fisher_p",
    "holm",
    "mcnemar_p",
    "mean_interval",
    "paired_difference",
    "quantile_interval",
    "rate_difference",
    "wilson_interval",
]
