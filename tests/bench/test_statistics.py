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
    Sampling,
    control_range,
    geomean,
    geomean_ratio,
    group_medians,
    median_us,
    paired_groups,
    paired_ratio,
    paired_ratios,
    slower_passes,
    verdict,
    wide,
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


def test_groups_are_paired_even_where_they_differ_by_half():
    """A host that is slow for some groups moves both arms: it must not widen the interval."""
    host = np.where(np.arange(20) % 3 == 0, 1.5, 1.0)[:, None]
    ratio = paired_ratio(samples(10.2) * host, samples(10.0, seed=1) * host, "key")
    assert 1.015 < ratio.lo and ratio.hi < 1.025


def test_a_throttled_visit_does_not_hide_a_slowdown():
    slow = samples(10.2)
    slow[3] *= 0.8  # here the other arm was the throttled one
    ratio = paired_ratio(slow, samples(10.0, seed=1), "key")
    assert verdict(ratio, 10.2, 10.0, 0.032) == "faster"


def test_levels_share_replicates():
    a, b = samples(10.1), samples(10.0, seed=1)
    wide, narrow = paired_ratios(a, b, "key", (0.99, 0.9))
    assert wide.lo < narrow.lo < narrow.hi < wide.hi
    assert paired_ratios(a, b, "key", (JUDGEMENT.level,)) == [paired_ratio(a, b, "key")]
    assert paired_ratios(np.full((4, 2), np.nan), b[:4], "key", (0.9,)) == []


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
        (1.0029, 1.006, 1.008, 0.032, "same"),
        (1.0031, 1.006, 1.008, 0.032, "faster"),
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
    e, sought = 1 + JUDGEMENT.min_effect, 1 + JUDGEMENT.sought_effect
    if min(abs(lo - e), abs(hi * e - 1), abs(lo * e - 1), abs(hi - e), abs(hi / lo - sought)) > 1e-9:
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
    assert JUDGEMENT.as_dict()["level"] == JUDGEMENT.level
    with pytest.raises(AttributeError):
        JUDGEMENT.level = 0.5
    wide = paired_ratio(samples(10), samples(10, seed=1), "k", Judgement(level=0.999))
    narrow = paired_ratio(samples(10), samples(10, seed=1), "k", Judgement(level=0.8))
    assert math.log(wide.hi / wide.lo) > math.log(narrow.hi / narrow.lo)


PASSES = Sampling("passes")


def test_passes_have_a_median_each_and_a_geometric_mean():
    s = np.array([[1.0, 2.0, 9.0], [8.0, 8.0, np.nan], [np.nan] * 3])
    assert median_us(s, PASSES) == pytest.approx(4.0)
    assert median_us(np.full((2, 2), np.nan), PASSES) is None


def test_the_interval_of_passes_is_students_over_their_logs():
    """16 passes whose ratios have a known mean and spread; t(15) of a 99 % interval is 2.9467."""
    logs = 0.01 + 0.002 * np.tile([1.0, -1.0], 8)
    a, b = np.exp(logs)[:, None] * np.full((16, 5), 10.0), np.full((16, 5), 10.0)
    ratio = paired_ratio(a, b, "key", Judgement(level=0.99), PASSES)
    reach = 2.9467 * logs.std(ddof=1) / 4
    assert ratio.value == pytest.approx(math.exp(0.01))
    assert (math.log(ratio.lo), math.log(ratio.hi)) == pytest.approx((0.01 - reach, 0.01 + reach), abs=1e-7)


def test_intervals_of_passes_hold_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(5)
    missed = 0
    for _ in range(400):
        a, b = (10 * np.exp(0.004 * rng.standard_normal((16, 1))) * np.ones((16, 3)) for _ in range(2))
        ratio = paired_ratio(a, b, "key", Judgement(level=0.95), PASSES)
        missed += not ratio.lo <= 1 <= ratio.hi
    assert 8 <= missed <= 34  # 20 expected


def test_slower_passes_are_counted_beyond_the_tick():
    before = np.array([[10.0], [10.0], [10.0], [np.nan]])
    now = np.array([[10.02], [10.5], [9.0], [99.0]])
    assert slower_passes(before, now, None) == 2
    assert slower_passes(before, now, 0.032) == 1
    assert slower_passes(now, before, 0.032) == 1
    assert paired_groups(before, now) == 3


def test_units_are_medians_and_are_resampled_too():
    """Three GPUs with 2 % more, the same and 2 % less: within each the noise is nothing."""
    b = np.repeat([10.0, 11.0, 12.0], 16)[:, None] * np.ones((48, 3))
    a = b * np.repeat([1.02, 1.0, 0.98], 16)[:, None]
    units = Sampling(units=(0,) * 16 + (1,) * 16 + (2,) * 16)
    assert median_us(b, units) == 11.0 and median_us(a, units) == 11.0
    plain, two_levels = paired_ratio(a, b, "key"), paired_ratio(a, b, "key", sampling=units)
    assert (two_levels.lo, two_levels.hi) == pytest.approx((0.98, 1.02))
    assert two_levels.value == 1.0 and plain.lo > 0.98


def test_units_that_ran_one_arm_alone_do_not_enter_the_interval():
    b = np.repeat([10.0, 20.0], 4)[:, None] * np.ones((8, 3))
    a = 1.5 * b
    a[4:] = np.nan
    units = Sampling(units=(0,) * 4 + (1,) * 4)
    ratio = paired_ratio(a, b, "key", sampling=units)
    assert ratio.value == 1.0  # 15 / 15: of the cells shown
    assert (ratio.lo, ratio.hi) == (1.0, pytest.approx(1.5))


def test_rows_of_a_merged_run_share_the_units_drawn():
    """A GPU that is faster is so on every row: more rows do not make that any surer."""
    b = np.ones((12, 2)) * 10.0
    a = b * np.repeat([1.05, 1.0, 0.95], 4)[:, None]
    units = Sampling(units=(0,) * 4 + (1,) * 4 + (2,) * 4)
    many = geomean_ratio([(a, b)] * 9, "key", samplings=[units] * 9)
    assert (many.lo, many.hi) == pytest.approx((0.95, 1.05), abs=0.001)


def test_wide_is_a_matter_of_width_alone():
    rng = np.random.default_rng(0)
    base = 20 * (1 + 0.01 * rng.standard_normal((15, 1))) * np.ones((15, 20))
    calm = {"cake": np.full((15, 20), 20.0), "control": np.full((15, 20), 20.0)}
    assert not wide(calm, "cake")
    assert len({wide({"cake": calm["cake"], "a": factor * base}, "cake") for factor in (0.5, 1, 2)}) == 1
    few = {"cake": np.full((2, 20), 20.0), "control": np.full((2, 20), 20.0)}
    assert wide(few, "cake")  # no interval yet
    assert not wide({"control": base}, "cake") and not wide({"cake": base}, "cake")


@pytest.mark.parametrize(
    "wrong",
    [
        {"level": 5},
        {"level": math.nan},
        {"trim": 0.5},
        {"min_effect": -0.1},
        {"sought_effect": 0},
        {"resamples": 0},
    ],
    ids=str,
)
def test_a_rule_that_cannot_be_is_refused(wrong):
    [(name, value)] = wrong.items()
    with pytest.raises(ValueError, match=rf"rule of judgement: {name} is {value:g}; needs "):
        Judgement(**wrong)
