from __future__ import annotations

import pytest

from bench.presets import CPU_PRESETS, GPU_PRESETS, left_out, preset_for


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
