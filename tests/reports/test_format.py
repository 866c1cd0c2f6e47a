from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import format as fmt

TIMES = st.floats(min_value=0.5, max_value=9e5)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (fmt.ratio(1.0005001), "1.001"),
        (fmt.spread([1.2, 0.997]), "0.997-1.200"),
        (fmt.spread([1.0001, 1.0002]), "1.000"),
        (fmt.interval(0.98, 1.0114), "[0.980, 1.011]"),
        (fmt.error(1.94e-7), "1.9e-7"),
        (fmt.error(0.0), "0"),
        (fmt.error(math.inf), "inf"),
        (fmt.error(math.nan), "nan"),
        (fmt.error_spread([3e-7, 1e-7]), "1.0e-7 to 3.0e-7"),
        (fmt.budget(2e-6), "2e-6"),
        (fmt.host_spread([7.12, 6.98]), "7.0-7.1"),
        (fmt.host_spread([5304.12, 99.4]), "99-5304"),
        (fmt.of(9, 9), "all 9"),
        (fmt.of(0, 9), "none of 9"),
        (fmt.of(1, 1), "1 of 1"),
        (fmt.of(3, 9), "3 of 9"),
        (fmt.counted(1, "row"), "1 row"),
        (fmt.counted(0, "row"), "0 rows"),
        (fmt.listed(["a", "b", "c"]), "a, b and c"),
        (fmt.listed(["a"]), "a"),
        (fmt.duration(425), "7 min 05 s"),
        (fmt.duration(4.2), "4 s"),
        (fmt.time(12345.6, 3, fmt.MS), "12.346"),
        (fmt.division(57.9, 57.1), "57.90 / 57.10 us = 1.014"),
    ],
)
def test_text(made, text):
    assert made == text


@pytest.mark.parametrize(("largest", "unit"), [(9999.9, fmt.US), (10_000.0, fmt.MS)])
def test_one_unit_for_a_table(largest, unit):
    assert fmt.unit_for([3.0, largest]) is unit


def test_each_row_has_the_fewest_decimals_that_its_ratios_need():
    rows = [[(104.2725, 137.472)], [(6.506, 7.552)], [(7.552, 7.552)], []]
    assert fmt.decimals_by_row(rows) == [2, 3, 2, 2]


@given(st.lists(st.lists(st.tuples(TIMES, TIMES), max_size=3), max_size=6), st.sampled_from([fmt.US, fmt.MS]))
def test_printed_times_reproduce_the_printed_ratio(rows, unit):
    rows = [[(round(a, 3), round(b, 3)) for a, b in pairs] for pairs in rows]
    for pairs, decimals in zip(rows, fmt.decimals_by_row(rows, unit), strict=True):
        for a, b in pairs:
            printed = float(fmt.time(a, decimals, unit)) / float(fmt.time(b, decimals, unit))
            # On a rounding boundary, to the last bit, the quotient may round to either side.
            assert fmt.ratio(printed) == fmt.ratio(a / b) or decimals == fmt.MAX_DECIMALS


def test_times_far_apart_have_a_unit_each():
    assert fmt.division(4.1, 119_080.0) == "4.10 us / 119.08 ms = 0.000"
    assert fmt.division(119_080.0, 4.1) == "119.08 ms / 4.10 us = 29043.902"
    assert fmt.division(900.0, 119_080.0) == "0.90 / 119.08 ms = 0.008"
