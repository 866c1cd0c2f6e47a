"""The candidates of projections: few, different, the likeliest first, and launched as they are planned."""

from __future__ import annotations

import tomllib
from itertools import product

import pytest

from bench.layers import LAYERS, DenseShape
from bench.suites import Row
from bench.tensors import dense_tensors, dense_views
from cake import prepare_projection
from cake.operand import OPERANDS
from cake.plan import CPU, DeviceSpec, ways
from cake.plan.dense import plan_projection
from cake.plan.dense_rules import line, parse
from cake.plan.partition import pinned
from cake.projection_candidates import MOST, base, candidates, own_partition, prepare, problem

from .projections import KINDS, inputs

H200 = DeviceSpec("sm_90a", 132)
SPECS = (CPU, DeviceSpec("sm_80", 108), H200)


def of(kind, layer="kv_a", t=64):
    views = dense_views(Row("dense", kind, "graph", DenseShape(LAYERS[layer], t), "bf16"))
    name1, name2, _ = OPERANDS[kind]
    return problem(kind, getattr(views, name1), getattr(views, name2), views.output(kind))


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_candidates_are_few_different_and_give_their_plans_by_their_rules(kind, spec):
    for layer, t in product(("kv_a", "mla_k", "mla_v", "q_b"), (64, 301, 16231)):
        p = of(kind, layer, t)
        ours, found = base(p, spec), candidates(p, spec)
        assert ours.plan == plan_projection(p, spec)
        assert 0 < len(found) <= MOST and len({str(c) for c in found}) == len(found)
        plans = [ours.plan, *(c.plan for c in found)]
        assert len(set(plans)) == len(plans)
        for c in (ours, *found):
            assert plan_projection(p, spec, rule=c.rule) == c.plan
            read = parse(tomllib.loads(f"r = {line(c.rule)}")["r"])
            assert read == c.rule and (read.first, read.last) == (t, t) and read.heads == p.batch


def test_the_likeliest_come_first_and_most_is_most():
    p = of("fwd")
    every = candidates(p, H200, 10_000)
    us = {
        (w.form, pinned(p.k, w.splits), w.tail, w.swapped): t
        for t, w in sorted(ways.ways(p.m, p.n, p.k, 1, "bf16", 132), key=lambda x: -x[0])
    }
    times = [us[c.rule.program, c.plan.partition, c.rule.tail, c.rule.swapped] for c in every]
    assert times == sorted(times) and len(every) > 30
    assert candidates(p, H200, 3) == every[:3]
    assert any(c.plan.partition != own_partition(p, H200) for c in every)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [0, 3])
def test_a_launch_is_planned_as_the_candidate_is(kind, heads):
    tensors = inputs(72, 64, 1536, heads=heads)
    given = {name: tensors[name] for name in OPERANDS[kind][:2]}
    shipped = prepare_projection(kind, **given)
    shipped()
    [want] = shipped.outputs.values()
    p = problem(kind, *given.values(), want)
    found = candidates(p, CPU)
    assert len(found) == 2
    for c in found:
        launch = prepare(kind, c, **given)
        launch()
        [out] = launch.outputs.values()
        assert launch.plans == (c.plan,) and c.plan != shipped.plans[0]
        assert out.equal(want)  # the partition is the same


def test_views_are_those_of_the_tensors():
    for kind, layer in product(KINDS, ("indexer_hw", "mla_k")):
        row = Row("dense", kind, "graph", DenseShape(LAYERS[layer], 9), "bf16")
        t, v = dense_tensors(row, "cpu"), dense_views(row)
        for name in ("X", "W", "G", "out", "dX", "dW"):
            real, seen = getattr(t, name), getattr(v, name)
            assert (real.shape, real.stride(), real.dtype) == (seen.shape, seen.stride(), seen.dtype)
