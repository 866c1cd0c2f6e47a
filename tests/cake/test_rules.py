from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import pytest

from cake.plan import rules
from cake.plan.planner import ProgramKey
from cake.plan.rules import Rule, find, parse, shipped
from cake.program.registry import program

SHIPPED = shipped("sm80")
BASE = {"op": "fwd", "tile": "64x64", "hold": 1, "raster": 8, "why": "a test"}


def covers(a: Rule, b: Rule) -> bool:
    """Whether every GEMM that rule b matches is taken by rule a first."""
    keys = all(x is None or x == y for x, y in ((a.n, b.n), (a.k, b.k), (a.out, b.out)))
    if b.first is None or b.last is None:
        return a.op == b.op and keys and a.first is None and a.rank <= b.rank
    inside = a.first is None or (a.last is not None and a.first <= b.first and b.last <= a.last)
    return a.op == b.op and keys and inside and a.rank <= b.rank


def test_every_op_has_a_default():
    for op in ("fwd", "dgrad", "wgrad"):
        assert find(SHIPPED, op, 1, 8, 1, "f32").op == op


@pytest.mark.parametrize("rule", SHIPPED, ids=lambda r: f"{r.op}-{r.first}")
def test_program_of_a_rule_exists(rule):
    for a_k, b_k in product((True, False), repeat=2):
        assert program(ProgramKey("sm80", *rule.tile, a_k, b_k, "f32", "f32")).threads % 32 == 0
    assert rule.why


def test_no_rule_shadows_another():
    for a, b in combinations(SHIPPED, 2):
        assert not covers(a, b) and not covers(b, a)


def test_exact_before_range_before_default():
    table = [
        parse({**BASE, "T": [1, 100], "why": "range"}),
        parse(BASE),
        parse({**BASE, "T": 64, "why": "exact"}),
    ]
    found = [find(table, "fwd", t, 256, 4096, "f32") for t in (63, 64, 65, 101)]
    assert [r.why for r in found] == ["range", "exact", "range", "a test"]


def test_the_rule_that_names_more_wins():
    table = [parse(BASE), parse({**BASE, "n": 128, "why": "narrow"})]
    assert find(table, "fwd", 64, 128, 4096, "f32").why == "narrow"
    assert find(table, "fwd", 64, 256, 4096, "f32").why == "a test"


def test_shadowing_would_be_seen():
    assert covers(parse(BASE), replace(parse(BASE), n=128)) is False  # it names more, so it wins
    assert covers(parse(BASE), parse(BASE))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({**BASE, "hold": 2}, "hold is 2, needs 1 or 4"),
        ({**BASE, "tiles": "64x64"}, "may have"),
        ({**BASE, "n": "256"}, "n is '256', needs a positive integer"),
        ({**BASE, "T": "64"}, r"T is '64', needs a positive integer or \[first, last\]"),
        ({**BASE, "T": [64, 1]}, r"T is \[64, 1\], needs a positive integer or"),
        ({**BASE, "raster": 0}, "raster is 0, needs a positive integer"),
        ({**BASE, "out": "fp32"}, "out is 'fp32', needs f32 or bf16"),
        ({**BASE, "op": "forward"}, "op is 'forward', needs fwd, dgrad or wgrad"),
        ({**BASE, "tile": "64"}, "tile is '64', needs rows x columns"),
        ({"op": "fwd"}, "needs op, hold, raster, tile, why"),
    ],
)
def test_a_bad_rule_says_why(entry, message):
    with pytest.raises(ValueError, match=message):
        parse(entry)


def test_no_match_is_an_error():
    with pytest.raises(LookupError, match="no rule for fwd T=1 N=8 H=1 out=f32"):
        rules.find([], "fwd", 1, 8, 1, "f32")
