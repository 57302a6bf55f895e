"""The statistics of campaigns, studies and benchmarks: intervals that say what they cover, and exact tests.

    low, high = holdfast.statistics.wilson_interval(12, 385)

`holdfast campaign analyse` computes with the same functions. The names mean what they mean in textbooks;
each function says whose method it is.
"""

from holdfast._native import binomial_tail as binomial_tail
from holdfast._native import distance_margin as DISTANCE_MARGIN  # of the log10 of a ratio
from holdfast._native import fisher_p as fisher_p
from holdfast._native import holm as holm
from holdfast._native import mcnemar_p as mcnemar_p
from holdfast._native import mean_interval as mean_interval
from holdfast._native import paired_difference as paired_difference
from holdfast._native import quantile_interval as quantile_interval
from holdfast._native import rate_difference as rate_difference
from holdfast._native import trial_outcomes
from holdfast._native import wilson_interval as wilson_interval

# What can become of a campaign's trial, the worst first, and which of these outcomes are harm.
OUTCOMES = tuple(name for name, _ in trial_outcomes())
HARM = tuple(name for name, is_harm in trial_outcomes() if is_harm)
