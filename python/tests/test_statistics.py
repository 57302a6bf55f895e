"""holdfast.statistics: the functions of campaign analyse for Python, which refuse wrong calls in words.
Their figures are tested beside them, in holdfast/statistics."""

import math

import pytest

from holdfast import statistics


def test_the_figures_are_those_of_the_textbooks():
    assert statistics.wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert statistics.rate_difference(56, 70, 48, 80) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert statistics.paired_difference(1, 1, 7, 12) == pytest.approx((-0.507, -0.026), abs=5e-4)
    assert statistics.fisher_p(3, 4, 1, 4) == pytest.approx(34 / 70)
    assert statistics.mcnemar_p(5, 15) == pytest.approx(0.04138947)
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.quantile_interval(range(1, 11)) == (5.5, 2, 9, pytest.approx(1002 / 1024))
    assert statistics.mean_interval([3.0]) == (3.0, math.inf)
    assert statistics.HARM == statistics.OUTCOMES[:5] and statistics.HARM[-1] == "degraded"


@pytest.mark.parametrize("call, sentence", [
    (lambda: statistics.wilson_interval(3, 2), "counts: 3; expected a number from 0 to 2"),
    (lambda: statistics.fisher_p(1, 2, -1, 2), "counts: -1; expected"),
    (lambda: statistics.binomial_tail(10**12, 3), "counts: 1000000000000; expected"),
    (lambda: statistics.wilson_interval(1, 2, 1.0), "confidence: is 1; expected"),
    (lambda: statistics.quantile_interval([]), "values: are none; expected at least one"),
    (lambda: statistics.mean_interval([math.nan]), "values: one is NaN; expected numbers"),
    (lambda: statistics.holm([0.5, math.nan]), "p_values: one is nan; expected chances"),
])
def test_wrong_calls_are_one_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
