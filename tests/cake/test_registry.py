from __future__ import annotations

import pytest

from cake.plan.planner import ProgramKey
from cake.program.registry import program, programs


def test_programs_have_distinct_names_and_fit_consumer_gpus():
    found = programs()
    assert len({p.name for p in found}) == len(found) == 24
    assert max(p.smem_bytes for p in found) <= 99 * 1024 - 1024


def test_unknown_tile_and_dtypes():
    with pytest.raises(LookupError, match="sm80 tiles are 64x64, 128x64"):
        program(ProgramKey("sm80", 32, 32, True, True, "f32", "f32"))
    with pytest.raises(LookupError, match="operand dtypes"):
        program(ProgramKey("sm80", 64, 64, True, True, "bf16", "bf16"))
