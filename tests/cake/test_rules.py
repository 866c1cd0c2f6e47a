from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import pytest

from cake.plan import rules
from cake.plan.device import FAMILIES, emulations
from cake.plan.planner import ProgramKey
from cake.plan.rules import Rule, find, parse, shipped
from cake.plan.tiles import TILES
from cake.program.registry import program

SHIPPED = {family: shipped(family) for family in FAMILIES}
EVERY = [(family, rule) for family, rules in SHIPPED.items() for rule in rules]
BASE = {"op": "fwd", "tile": "64x64", "hold": 1, "raster": 8, "why": "a test"}


def covers(a: Rule, b: Rule) -> bool:
    """Whether every GEMM that rule b matches is taken by rule a first."""
    pairs = ((a.n, b.n), (a.k, b.k), (a.out, b.out), (a.emulation, b.emulation))
    keys = all(x is None or x == y for x, y in pairs)
    if b.first is None or b.last is None:
        return a.op == b.op and keys and a.first is None and a.rank <= b.rank
    inside = a.first is None or (a.last is not None and a.first <= b.first and b.last <= a.last)
    return a.op == b.op and keys and inside and a.rank <= b.rank


@pytest.mark.parametrize("family", FAMILIES)
def test_every_op_has_a_default(family):
    for op in ("fwd", "dgrad", "wgrad"):
        assert find(SHIPPED[family], op, 1, 8, 1, "f32").op == op
        assert any(r.op == op and r.first is None for r in SHIPPED[family])


@pytest.mark.parametrize(("family", "rule"), EVERY)
def test_program_of_a_rule_exists(family, rule):
    names = [rule.emulation] if rule.emulation else emulations(family)
    for a_k, b_k, emulation in product((True, False), (True, False), names):
        for tile in [rule.tile] if rule.tile else TILES[family, emulation]:
            key = ProgramKey(family, *tile, a_k, b_k, "f32", "f32", emulation)
            assert program(key).threads % 32 == 0
    assert rule.why


@pytest.mark.parametrize("family", FAMILIES)
def test_no_rule_shadows_another(family):
    for a, b in combinations(SHIPPED[family], 2):
        assert not covers(a, b) and not covers(b, a)


def test_exact_before_range_before_default():
    table = [
        parse({**BASE, "T": [1, 100], "why": "range"}, "sm80"),
        parse(BASE, "sm80"),
        parse({**BASE, "T": 64, "why": "exact"}, "sm80"),
    ]
    found = [find(table, "fwd", t, 256, 4096, "f32") for t in (63, 64, 65, 101)]
    assert [r.why for r in found] == ["range", "exact", "range", "a test"]


def test_the_rule_that_names_more_wins():
    table = [parse(BASE, "sm80"), parse({**BASE, "n": 128, "why": "narrow"}, "sm80")]
    assert find(table, "fwd", 64, 128, 4096, "f32").why == "narrow"
    assert find(table, "fwd", 64, 256, 4096, "f32").why == "a test"


def test_a_rule_may_be_of_one_emulation():
    table = [parse(BASE, "sm90"), parse({**BASE, "emulation": "fp16x2", "why": "half"}, "sm90")]
    found = [find(table, "fwd", 64, 256, 4096, "f32", *e) for e in ((), ("bf16x3",), ("fp16x2",))]
    assert [r.why for r in found] == ["a test", "a test", "half"]
    with pytest.raises(LookupError, match="no rule for fwd T=1 N=8 H=1 out=f32 bf16x3; every op needs"):
        find(table[1:], "fwd", 1, 8, 1, "f32")


def test_shadowing_would_be_seen():
    assert (
        covers(parse(BASE, "sm80"), replace(parse(BASE, "sm80"), n=128)) is False
    )  # it names more, so it wins
    assert covers(parse(BASE, "sm80"), parse(BASE, "sm80"))


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
        ({**BASE, "emulation": "fp16x2"}, "emulation is 'fp16x2', needs bf16x3"),
        ({**BASE, "emulation": 3}, "emulation is 3, needs bf16x3"),
        ({**BASE, "tile": "64"}, "tile is '64', needs rows x columns"),
        ({"op": "fwd"}, "needs op, raster, why; may have T, emulation, k, n, out, hold and tile"),
        ({**BASE, "hold": None}, "hold is None, needs 1 or 4"),
        ({**BASE, "hold": 4.0}, "hold is 4.0, needs 1 or 4"),
        ({**BASE, "T": True}, "T is True, needs a positive integer"),
        ({**BASE, "T": [True, 5]}, "needs a positive integer or .first, last."),
        ({"op": "fwd", "tile": "64x64", "raster": 8, "why": "x"}, "needs hold, op, raster, tile, why"),
        ({**BASE, "hold": True}, "hold is True, needs 1 or 4"),
    ],
)
def test_a_bad_rule_says_why(entry, message):
    with pytest.raises(ValueError, match=message):
        parse(entry, "sm80")


def test_no_match_is_an_error():
    with pytest.raises(LookupError, match="no rule for fwd T=1 N=8 H=1 out=f32"):
        rules.find([], "fwd", 1, 8, 1, "f32")
