"""Every shipped rule of projections: its program exists, it is found, it leaves its neighbours alone, and it
says where bits change.
"""

from __future__ import annotations

from itertools import combinations, product

import pytest

from cake.operand import Problem, View
from cake.plan.dense import default_partition, plan_projection, program_key, tokens
from cake.plan.dense_rules import RAGGED, DenseRule, line, match, parse, shipped
from cake.plan.device import PROJECTIONS, DeviceSpec
from cake.plan.partition import Partition
from cake.program.registry import keys_of, program
from cake.projection_candidates import own_partition

SPECS = {"sm80": DeviceSpec("sm_80", 108), "sm90": DeviceSpec("sm_90a", 132)}
EVERY = [pytest.param(family, rule, id=line(rule)) for family in PROJECTIONS for rule in shipped(family)]
EXACT = [p for p in EVERY if p.values[1].first is not None and p.values[1].first == p.values[1].last]
BASE = {"op": "fwd", "form": "64x64", "raster": 8, "why": "a test"}


def problem(rule: DenseRule, t: int) -> Problem:
    """A projection of ``t`` tokens with what the rule's key names, in row-major order."""
    n, k, batch, out = rule.n or 256, rule.k or 512, rule.heads or 1, rule.out or "bf16"
    rows, columns, depth = {"dgrad": (t, k, n), "wgrad": (n, k, t)}.get(rule.op, (t, n, k))

    def view(r: int, c: int, dtype: str) -> View:
        ld = -(-c // 8) * 8
        return View(r, c, ld, 1, dtype, batch, r * ld)

    return Problem(rule.op, view(rows, depth, "bf16"), view(depth, columns, "bf16"), view(rows, columns, out))


def matched(family: str, p: Problem) -> DenseRule | None:
    return match(shipped(family), p.kind, *tokens(p), p.batch, p.out.dtype)


def reach(rule: DenseRule) -> list[int]:
    """Numbers of tokens that the rule's key holds: its ends, or one of its class."""
    if rule.ragged:
        return [RAGGED + 1]
    if rule.first is None or rule.last is None:
        return [RAGGED]
    return sorted({rule.first, (rule.first + rule.last) // 2, rule.last})


def shares_keys(a: DenseRule, b: DenseRule) -> bool:
    """Whether two rules of equal rank apply to one projection: which of them wins is then by their order."""
    keys = ((a.n, b.n), (a.k, b.k), (a.out, b.out), (a.heads, b.heads))
    if a.op != b.op or a.rank != b.rank or not all(None in pair or len({*pair}) == 1 for pair in keys):
        return False
    if a.first is None or a.last is None or b.first is None or b.last is None:
        return True
    return a.first <= b.last and b.first <= a.last


def unsaid(rule: DenseRule, cut: Partition, own: Partition) -> bool:
    """Whether the rule cuts K otherwise than the shape's is, and does not say so."""
    return cut != own and "bits change" not in rule.why


@pytest.mark.parametrize(("family", "rule"), EVERY)
def test_the_programs_of_a_rule_exist(family, rule):
    spec = SPECS[family]
    every = set(keys_of(spec.arch))
    for t in reach(rule):
        plan = plan_projection(problem(rule, t), spec, rule=rule)
        key = program_key(plan.problem, family, rule.program)
        assert plan.program == key and key in every
        assert program(key).threads % 32 == 0
    assert rule.why


@pytest.mark.parametrize(("family", "rule"), EVERY)
def test_a_rule_is_the_one_that_is_found(family, rule):
    for t in reach(rule):
        p = problem(rule, t)
        found = matched(family, p)
        assert found is not None and found.rank <= rule.rank
        if rule.first == rule.last and rule.first is not None:
            assert found == rule
            assert plan_projection(p, SPECS[family]) == plan_projection(p, SPECS[family], rule=rule)
    assert any(matched(family, problem(rule, t)) == rule for t in reach(rule))


@pytest.mark.parametrize("family", PROJECTIONS)
def test_no_rule_shadows_another_of_equal_rank(family):
    both = [(line(a), line(b)) for a, b in combinations(shipped(family), 2) if shares_keys(a, b)]
    assert both == []


@pytest.mark.parametrize(("family", "rule"), EXACT)
def test_the_neighbours_of_an_exact_key_are_as_without_it(family, rule, monkeypatch):
    beside = [problem(rule, t) for t in (rule.first - 1, rule.first + 1) if t]
    plans = [plan_projection(p, SPECS[family]) for p in beside]
    assert all(matched(family, p) != rule for p in beside)
    rest = tuple(other for other in shipped(family) if other != rule)
    monkeypatch.setattr("cake.plan.dense_rules.shipped", lambda _: rest)
    assert [plan_projection(p, SPECS[family]) for p in beside] == plans


@pytest.mark.parametrize(("family", "rule"), EVERY)
def test_a_rule_keeps_the_partition_or_says_that_bits_change(family, rule):
    spec = SPECS[family]
    for t in reach(rule):
        p = problem(rule, t)
        assert not unsaid(rule, plan_projection(p, spec, rule=rule).partition, own_partition(p, spec))


def test_the_own_partition_is_that_of_plans_without_a_rule(monkeypatch):
    monkeypatch.setattr("cake.plan.dense_rules.shipped", lambda _: ())
    for family, t in product(PROJECTIONS, (1, 64, 1000, 16384)):
        for op in ("fwd", "dgrad", "wgrad"):
            p = problem(parse({**BASE, "op": op, "n": 576, "k": 6144}), t)
            assert plan_projection(p, SPECS[family]).partition == own_partition(p, SPECS[family])


def test_what_is_tested_of_rules_would_be_seen():
    exact, wide = parse({**BASE, "T": 64}), parse({**BASE, "T": [1, 100]})
    assert shares_keys(exact, exact) and not shares_keys(exact, wide)
    assert shares_keys(wide, parse({**BASE, "T": [100, 200]}))
    assert not shares_keys(wide, parse({**BASE, "T": [101, 200]}))
    assert shares_keys(parse({**BASE, "n": 8}), parse({**BASE, "k": 64}))  # one that names both has two
    assert not shares_keys(parse({**BASE, "n": 8}), parse({**BASE, "n": 16}))
    own = default_partition(problem(exact, 64))
    cut = Partition(own.k, own.segment * 2) if own.segments > 1 else Partition(own.k, 64)
    assert unsaid(exact, cut, own) and not unsaid(exact, own, own)
    assert not unsaid(parse({**BASE, "why": "a test; bits change"}), cut, own)
