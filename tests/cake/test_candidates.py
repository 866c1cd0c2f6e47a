from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cake
from cake.candidates import MOST, WITHIN, base, candidates, prepare, problem
from cake.launch import routes
from cake.plan import CPU, DeviceSpec, Routes, plan
from cake.plan.device import EMULATIONS
from cake.plan.estimate import estimate
from cake.plan.partition import MIN_SEGMENT
from cake.plan.planner import default_partition
from cake.plan.tiles import TILES
from tests.cake.products import KINDS, error, inputs, reference

SPECS = (CPU, DeviceSpec("sm_90a", 132), DeviceSpec("sm_90a", 78))
shapes = st.tuples(st.integers(1, 3000), st.integers(1, 8192), st.integers(1, 64).map(lambda i: 8 * i))


@given(
    kind=st.sampled_from(KINDS),
    shape=shapes,
    spec=st.sampled_from(SPECS),
    emulation=st.sampled_from([*EMULATIONS]),
)
@settings(deadline=None, max_examples=60)
def test_candidates_are_few_different_and_worth_a_try(kind, shape, spec, emulation):
    p = problem(kind, *shape)
    ours, found = base(p, spec, emulation=emulation), candidates(p, spec, emulation=emulation)
    plans = [ours.plan, *(c.plan for c in found)]
    assert len(found) <= MOST and len(set(plans)) == len(plans)
    assert len({str(c) for c in found}) == len(found)
    least = min(estimate(c.plan, spec.sms) for c in found) if found else 0
    for c in found:
        cut = c.plan.partition
        assert estimate(c.plan, spec.sms) <= WITHIN * max(least, estimate(ours.plan, spec.sms))
        assert cut == default_partition(p) or cut.segments == 1 or cut.segment >= MIN_SEGMENT
        assert c.keeps_bits == (cut == default_partition(p) and c.plan.reduction != "atomic")
        assert (c.rule.tile) in TILES[spec.family_of(emulation), emulation] and c.rule.raster == c.plan.raster
        assert c.plan.program.emulation == c.rule.emulation == emulation


@given(
    kind=st.sampled_from(KINDS),
    shape=shapes,
    spec=st.sampled_from(SPECS),
    emulation=st.sampled_from([*EMULATIONS]),
)
@settings(deadline=None, max_examples=60)
def test_as_a_route_a_candidate_gives_its_plan(kind, shape, spec, emulation):
    p, family = problem(kind, *shape), spec.family_of(emulation)
    for c in candidates(p, spec, emulation=emulation):
        made = plan(
            p,
            family,
            sms=spec.sms,
            deterministic=c.deterministic,
            emulation=emulation,
            routes=Routes(family, (c.rule,)),
        )
        assert c.deterministic or made == c.plan


def test_the_suite_has_some_for_every_gemm():
    for spec in SPECS:
        for kind in KINDS:
            assert candidates(problem(kind, 256, 4096, 256), spec)


@pytest.mark.parametrize("kind", KINDS)
def test_a_launch_is_planned_as_the_candidate_is_whatever_the_routes(device, emulation, kind):
    t, n, h = 300, 64, 1024
    tensors = inputs(t, n, h, device)
    spec = routes.target_of(device).spec
    p = problem(kind, t, h, n)
    needed = {name: tensors[name] for name in {"fwd": "XW", "dgrad": "GW", "wgrad": "GX"}[kind]}
    # Another raster than any candidate's: a launch that followed it would be seen.
    tile = TILES[spec.family, "bf16x3"][-1]
    route = {"op": kind, "tile": f"{tile[0]}x{tile[1]}", "hold": 1, "raster": 77, "why": "a test"}
    cake.set_routes([route], device=device)
    try:
        ours = [base(p, spec, deterministic=det, emulation=emulation) for det in (False, True)]
        for c in (*ours, *candidates(p, spec, 4, emulation=emulation)):
            launch = prepare(kind, c, **needed)
            launch()
            assert launch.plans == (c.plan,)
            [out] = launch.outputs.values()
            assert error(out, reference(kind, tensors)) <= 4e-7
        assert len(cake.router._entries) == 0
        assert cake.prepare_router(kind, **needed, deterministic=False).plans[0].raster.height == 77
    finally:
        cake.set_routes(None, device=device)
