"""Which plan is chosen where no rule names one."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cake.candidates import problem
from cake.plan.estimate import estimate
from cake.plan.partition import GROUP
from cake.plan.planner import by_rule, plan
from cake.plan.rules import find, parse, shipped
from cake.plan.tiles import TILES

from .products import KINDS

#: What the rules before the estimate had for the router suite, BF16x3: op, T -> rows of a tile, and its
#: columns at H = 4096, 5120 and 6144.
MEASURED = {
    ("fwd", 64): (64, (32, 32, 32)),
    ("fwd", 256): (128, (64, 64, 64)),
    ("fwd", 1024): (128, (128, 128, 128)),
    ("dgrad", 64): (64, (32, 40, 48)),
    ("dgrad", 256): (128, (64, 80, 96)),
    ("dgrad", 1024): (128, (128, 80, 128)),
    ("wgrad", 64): (128, (64, 80, 96)),
    ("wgrad", 256): (128, (64, 80, 96)),
    ("wgrad", 1024): (128, (128, 80, 96)),
}


def test_the_estimate_is_near_what_was_measured():
    """On an H200 (driver 580.159.04, CUDA 13.0), graph mode, quick preset: medians of one run."""
    rows = list(csv.DictReader(Path(__file__).with_name("measured.csv").open()))
    assert len(rows) == 90
    for row in rows:
        t, h, n = (int(row[name]) for name in "THN")
        p = problem(row["op"], t, h, n)
        entry = {"op": row["op"], "tile": row["tile"], "hold": int(row["hold"]), "raster": 8, "why": "a test"}
        made = by_rule(p, "sm90", parse(entry, "sm90"), sms=132, emulation=row["emulation"])
        assert abs(math.log(estimate(made, 132) / float(row["us"]))) < math.log(1.2), row


def test_a_program_of_which_nothing_is_known_is_named():
    made = plan(problem("fwd", 64, 4096, 256), "sm90", sms=132)
    other = replace(made, program=replace(made.program, tile_m=192))
    with pytest.raises(LookupError, match="router_sm90_192x32.*name its tile in a rule, or add it to cake"):
        estimate(other, 132)


@pytest.mark.parametrize(("kind", "t"), MEASURED)
def test_the_suite_keeps_its_tiles(kind, t):
    rows, columns = MEASURED[kind, t]
    for h, n in zip((4096, 5120, 6144), columns, strict=True):
        key = plan(problem(kind, t, h, 256), "sm90", sms=132).program
        assert (key.tile_m, key.tile_n) == (rows, n), h


@given(
    kind=st.sampled_from(KINDS),
    shape=st.tuples(st.integers(1, 5000), st.integers(1, 8192), st.integers(1, 64).map(lambda i: 8 * i)),
    emulation=st.sampled_from(["bf16x3", "fp16x2"]),
    sms=st.integers(1, 200),
)
@settings(deadline=None, max_examples=100)
def test_no_other_tile_is_estimated_faster(kind, shape, emulation, sms):
    p = problem(kind, *shape)
    chosen = plan(p, "sm90", sms=sms, emulation=emulation)
    t, h, n = shape
    rule = find(shipped("sm90"), kind, t, n, h, "f32", emulation)
    for tile, hold in product(TILES["sm90", emulation], (1, GROUP["sm90"])):
        other = by_rule(p, "sm90", replace(rule, tile=tile, hold=hold), sms=sms, emulation=emulation)
        assert 0 < estimate(chosen, sms) <= estimate(other, sms)


@pytest.mark.parametrize("kind", KINDS)
def test_more_work_takes_longer(kind):
    small, large = (plan(problem(kind, t, 4096, 256), "sm90", sms=132) for t in (1024, 4096))
    assert estimate(small, 132) < estimate(large, 132)
    assert estimate(small, 132) <= estimate(plan(small.problem, "sm90", sms=66), 66)
