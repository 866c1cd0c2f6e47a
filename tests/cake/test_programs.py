"""Every program compiled for every architecture, without a GPU: tensor cores used, no spills, no warnings."""

from __future__ import annotations

import pytest

from cake.program import aot, compiler
from cake.program.registry import programs

ARCHS = ("sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_107a")


@pytest.mark.parametrize("arch", ARCHS)
def test_programs_compile_clean(arch):
    if int(arch[3:].rstrip("a")) not in compiler.supported_archs():
        have = ".".join(map(str, compiler.nvrtc_version()))
        pytest.skip(f"NVRTC {have} does not know {arch} (sm_107a needs NVRTC >= 13.4)")
    reports = aot.compile_all([arch], programs)
    assert len(reports) == len(programs(arch))
    assert [str(r) for r in reports if r.status != "ok"] == []
