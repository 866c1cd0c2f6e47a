from __future__ import annotations

import pytest

from bench.presets import (
    CPU_PRESETS,
    DENSE_CPU_PRESETS,
    DENSE_GPU_PRESETS,
    GPU_PRESETS,
    PASSES,
    left_out,
    preset_for,
)
from bench.suites import Row


def test_full_is_the_whole_router_suite():
    full = preset_for("full", "cuda")
    assert len(full.rows()) == 90
    assert (full.groups, full.steps, full.untimed) == (15, 20, 2)
    assert left_out(full.rows()) == []


def test_cpu_presets_have_no_graph_rows_and_quick_is_small():
    assert all(preset.modes == ("eager",) for preset in CPU_PRESETS.values())
    assert len(preset_for("quick", "cpu").rows()) <= 45
    assert CPU_PRESETS.keys() == GPU_PRESETS.keys()


def test_what_quick_leaves_out_is_said():
    assert left_out(preset_for("quick", "cpu").rows()) == [
        "70 of the 90 rows of the full suite are left out",
        "left out modes: graph",
        "left out shapes: T1024-H4096-N256, T256-H5120-N256, T1024-H5120-N256, T256-H6144-N256, "
        "T1024-H6144-N256",
    ]


def test_a_suite_of_other_shapes_says_so_in_a_line():
    assert left_out(preset_for("smoke", "cpu").rows()) == [
        "90 of the 90 rows of the full suite are left out",
        "left out modes: graph",
        "left out ops: dgrad, wgrad",
        "left out shapes: all 9",
    ]


def test_unknown_preset():
    with pytest.raises(ValueError, match="preset 'huge' is unknown; presets are full, quick, smoke"):
        preset_for("huge", "cpu")


def test_full_is_the_whole_dense_suite_in_passes():
    full = preset_for("full", "cuda", "dense")
    rows = full.rows()
    assert len(rows) == 294 and left_out(rows) == []
    assert (full.form, full.groups, full.steps, full.untimed) == ("passes", PASSES, 3, 1)


def test_dense_presets_of_a_cpu_are_eager_and_small():
    assert DENSE_CPU_PRESETS.keys() == DENSE_GPU_PRESETS.keys() == GPU_PRESETS.keys()
    assert all(preset.modes == ("eager",) for preset in DENSE_CPU_PRESETS.values())
    assert len(preset_for("smoke", "cpu", "dense").rows()) == 6
    assert len(preset_for("quick", "cuda", "dense").rows()) == 45


@pytest.mark.parametrize(
    ("us", "steps"), [(None, 3), (10.0, 3), (1000.0, 3), (1001.0, 2), (1501.0, 1), (5e3, 1)]
)
def test_long_rows_have_fewer_steps_a_visit(us, steps):
    assert preset_for("full", "cuda", "dense").within(us).steps == steps
    assert preset_for("full", "cuda").within(us).steps == 20


def seconds(row: Row, arms: int = 7) -> float:
    """About what a row takes on an H200: 0.3 ms and its time for a step, 5 ms for an instance, the checks at
    3 TB/s, and the search of ten calls. A row of 10 us in 4 passes of 2 steps came to 0.24 s; measured, 0.27.
    """
    preset, layer, tokens = preset_for("full", "cuda", "dense"), row.dense.layer, row.dense.T
    x, y, w = (layer.heads * size for size in (tokens * layer.K, tokens * layer.N, layer.K * layer.N))
    out = {"fwd": y, "dgrad": x, "wgrad": w}[row.op]
    work = 2 * layer.heads * tokens * layer.K * layer.N
    t = max(work / 680e12, 2 * (x + y + w) / 3.6e12) + 6e-6
    step, instance = 3e-4 + t, 5e-3 + 2 * t
    assert preset.instances is not None
    timed = arms * preset.groups * 2 * (preset.within(1e6 * t).steps + preset.untimed) * step
    made = arms * (preset.instances + 1) * instance + 4 * arms * step
    checked = arms * ((preset.instances + 1) * (t + 1e-4 + 6 * out / 2.5e12) + 2 * 90 * out / 3e12)
    searched = 10 * (5e-3 + 11 * t + 60 * out / 3e12) + 4 * (instance + 6 * step)
    return timed + made + checked + searched + work / 45e12


def test_a_full_dense_run_takes_8_minutes_at_most():
    assert 6 * 60 < 1.12 * sum(map(seconds, preset_for("full", "cuda", "dense").rows())) < 8 * 60
