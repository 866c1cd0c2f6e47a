from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.statistics import (
    JUDGEMENT,
    Judgement,
    Ratio,
    control_range,
    geomean,
    geomean_ratio,
    group_medians,
    median_us,
    paired_ratio,
    verdict,
)


def samples(us, groups=20, steps=10, noise=0.002, seed=0):
    rng = np.random.default_rng(seed)
    return us * (1 + noise * rng.standard_normal((groups, steps)))


def test_medians_skip_voided_steps():
    s = np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan], [5.0, 7.0, np.nan]])
    assert median_us(s) == 4.0
    np.testing.assert_equal(group_medians(s), [2.0, np.nan, 6.0])
    assert median_us(np.full((2, 2), np.nan)) is None


def test_ratio_of_shifted_samples_is_found():
    ratio = paired_ratio(samples(10.3), samples(10.0, seed=1), "key")
    assert ratio.lo < 1.03 < ratio.hi and ratio.hi - ratio.lo < 0.01
    assert ratio.lo <= ratio.value <= ratio.hi


def test_what_moves_both_arms_of_a_group_cancels():
    drift = np.linspace(1, 1.5, 20)[:, None]
    ratio = paired_ratio(samples(10, noise=0) * drift * 1.02, samples(10, noise=0) * drift, "key")
    assert ratio.lo == pytest.approx(1.02) and ratio.hi == pytest.approx(1.02)


def test_same_key_same_interval_other_key_other_interval():
    a, b = samples(10), samples(10, seed=1)
    assert paired_ratio(a, b, "x") == paired_ratio(a, b, "x")
    assert paired_ratio(a, b, "x") != paired_ratio(a, b, "y")


def test_groups_without_a_time_are_left_out_in_pairs():
    a, b = samples(10.0), samples(10.0)
    a[3], b[7] = np.nan, np.nan
    ratio = paired_ratio(a, b, "key")
    assert ratio.lo is not None and ratio.lo <= ratio.value <= ratio.hi
    assert paired_ratio(np.full((4, 2), np.nan), b[:4], "key") is None


def test_too_few_groups_give_no_interval_and_no_verdict():
    ratio = paired_ratio(samples(11, groups=2), samples(10, groups=2), "key")
    assert ratio.lo is None and ratio.hi is None and ratio.value > 1.05
    assert verdict(ratio, 11, 10, None) == "unclear"


@pytest.mark.parametrize(
    ("lo", "value", "hi", "tick", "word"),
    [
        (1.010, 1.02, 1.03, 0.032, "faster"),
        (0.970, 0.98, 0.99, 0.032, "slower"),
        (1.004, 1.006, 1.008, 0.032, "same"),
        (0.998, 1.0, 1.002, 0.032, "same"),
        (0.990, 1.0, 1.010, 0.032, "unclear"),
        (1.010, 1.012, 1.014, 5.0, "same"),
        (1.010, 1.02, 1.03, 5.0, "unclear"),
        (1.010, 1.02, 1.03, None, "faster"),
        # One tick, with what binary fractions and stamps in whole ns add to it, is no difference.
        (1.010, 1.0200001, 1.0205, 2.0, "unclear"),
        (1.010, 1.02002, 1.0205, 2.0, "unclear"),
        (1.010, 1.0201, 1.0205, 2.0, "faster"),
    ],
)
def test_verdicts(lo, value, hi, tick, word):
    assert verdict(Ratio(value, lo, hi), 100 * value, 100.0, tick) == word


@given(st.floats(0.5, 2), st.floats(0, 0.2), st.floats(0, 0.2))
def test_a_verdict_turns_round_with_the_ratio(value, below, above):
    lo, hi = value / (1 + below), value * (1 + above)
    there = verdict(Ratio(value, lo, hi), value, 1.0, None)
    back = verdict(Ratio(1 / value, 1 / hi, 1 / lo), 1.0, value, None)
    opposite = {"faster": "slower", "slower": "faster"}
    # At the very edge of the limits rounding may decide either way.
    if (
        min(abs(lo - 1.005), abs(hi * 1.005 - 1), abs(lo * 1.005 - 1), abs(hi - 1.005), abs(hi / lo - 1.01))
        > 1e-9
    ):
        assert back == opposite.get(there, there)


def test_a_arm_against_itself_is_rarely_called_different():
    words = [
        verdict(paired_ratio(samples(20, seed=2 * i), samples(20, seed=2 * i + 1), str(i)), 20.0, 20.1, 0.032)
        for i in range(60)
    ]
    assert words.count("same") == 60


def test_geomean():
    assert geomean([2.0, 8.0]) == pytest.approx(4.0)
    assert geomean([]) is None


def test_geomean_ratio_has_an_interval_from_groups():
    pairs = [(samples(11, seed=i), samples(10, seed=100 + i)) for i in range(5)]
    mean = geomean_ratio(pairs, "all")
    assert mean.lo < 1.1 < mean.hi and mean.hi - mean.lo < 0.004
    single = paired_ratio(*pairs[0], "one")
    assert mean.hi - mean.lo < single.hi - single.lo
    assert geomean_ratio(pairs, "all") == mean
    assert geomean_ratio([], "none") is None
    short = geomean_ratio([(samples(11, groups=2), samples(10, groups=2))], "short")
    assert short.lo is None and short.value == pytest.approx(1.1, rel=0.01)


def test_control_range():
    assert control_range([1.01, None, 0.99]) == (0.99, 1.01)
    assert control_range([None]) is None


def test_judgement_is_one_frozen_config():
    assert JUDGEMENT.as_dict()["level"] == 0.99
    with pytest.raises(AttributeError):
        JUDGEMENT.level = 0.5
    wide = paired_ratio(samples(10), samples(10, seed=1), "k", Judgement(level=0.999))
    narrow = paired_ratio(samples(10), samples(10, seed=1), "k", Judgement(level=0.8))
    assert math.log(wide.hi / wide.lo) > math.log(narrow.hi / narrow.lo)
