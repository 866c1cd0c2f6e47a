from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from cake.program import aot, compiler
from cake.program.aot import Resources, compile_all, log_problems, parse_sass, parse_usage, resource_problems

USAGE = """
Resource usage:
 Common:
  GLOBAL:0
 Function other:
  REG:8 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function k:
  REG:255 STACK:40 SHARED:1024 LOCAL:16 CONSTANT[0]:548 CONSTANT[2]:8 TEXTURE:0 SURFACE:0 SAMPLER:0
"""

SASS = """
\tcode for sm_90a
\t.target\tsm_90a

\t\tFunction : other
\t.headerflags\t@"EF_CUDA_ACCELERATORS EF_CUDA_SM90 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM90)"
        /*0000*/                   LDC R1, c[0x0][0x28] ;             /* 0x00000a00ff017b82 */
                                                                      /* 0x000ff00000000800 */
        /*0030*/                   HFMA2.MMA R5, -RZ, RZ, 1.875, 0 ;  /* 0x3f800000ff057435 */
\t\t..........


\t\tFunction : k
        /*0000*/                   LDC.64 R2, c[0x0][0x210] ;         /* 0x00008400ff027b82 */
        /*0010*/              @!P0 HGMMA.64x8x16.F32.BF16 R24, gdesc[UR4], R24 ;  /* 0x00600000041879f0 */
        /*0020*/               @P1 HGMMA.64x8x16.F32.BF16 R24, gdesc[UR4], R24, gsb0 ;
        /*1030*/             @!UP0 UTMALDG.2D [UR8], [UR6] ;          /* 0x00000008060075b4 */
        /*1040*/                   BRA 0x60;                          /* 0xfffffffc00fc7947 */
"""

SERIALISED = (
    "ptxas info    : (C7517) wgmma.wait_group is injected in around line 60 by compiler in function 'k'\n"
    "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
    "insufficient register resources for the wgmma pipeline in the function 'k'\n"
)

MMA = r"""
extern "C" __global__ void k(float* c, const unsigned* a) {
    float d[4] = {0.f, 0.f, 0.f, 0.f};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]));
    for (int i = 0; i < 4; ++i) c[4 * threadIdx.x + i] = d[i];
}
"""
SPILLING = """
extern "C" __global__ void k(float* c, int i) {
    float x[99];
    for (int j = 0; j < 99; ++j) x[j * i % 99] = c[j];
    c[0] = x[i];
}
"""


@dataclass(frozen=True)
class Tiny:
    name: str
    source: str
    kernel: str = "k"
    defines: dict = field(default_factory=dict)
    tensor_core_ops: tuple[str, ...] = ()
    smem_bytes: int = 0


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CAKE_CACHE_DIR", str(tmp_path / "cache"))
    compiler.clear_memory_cache()


@pytest.fixture
def tools():
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC not installed")
    try:
        aot._cuobjdump()
    except aot.InspectorUnavailable as e:
        pytest.skip(str(e))


def test_parse_usage():
    assert parse_usage(USAGE) == {"other": Resources(8, 0, 0, 0), "k": Resources(255, 40, 16, 1024)}


def test_parse_sass_counts_by_mnemonic_past_predicates():
    assert parse_sass(SASS) == {
        "other": {"LDC": 1, "HFMA2": 1},
        "k": {"LDC": 1, "HGMMA": 2, "UTMALDG": 1, "BRA": 1},
    }


def test_log_problems_are_the_serialised_wgmma_alone():
    (problem,) = log_problems(SERIALISED)
    assert problem.startswith("wgmma serialised: ptxas info    : (C7511) Potential Performance Loss")
    assert log_problems("ptxas info : (C7517) wgmma.wait_group is injected") == ()


def test_resource_problems():
    good = Resources(168, 0, 0, 1024, {"HGMMA": 12})
    assert resource_problems(good, "sm_90a", ("HGMMA",), 200_000) == ()
    assert resource_problems(good, "sm_90a", ("UTCHMMA", "HGMMA"), 0) == (
        "no UTCHMMA instruction: the tensor cores are not used as meant",
    )
    assert resource_problems(Resources(255, 40, 16, 0), "sm_80", (), 0) == (
        "spills: 40 bytes of stack and 16 of local memory a thread at 255 registers",
    )
    assert resource_problems(good, "sm_120", ("HGMMA",), 101_376) == (
        "needs 102400 bytes of shared memory; a block of sm_120 has 101376",
    )


def test_compile_all_finds_what_is_wrong(tools, tmp_path):
    programs = [
        Tiny("mma", MMA, tensor_core_ops=("HMMA",)),
        Tiny("plain", 'extern "C" __global__ void k(float* c) { *c = 1; }', tensor_core_ops=("HMMA",)),
        Tiny("spilling", SPILLING),
        Tiny("misnamed", MMA, kernel="other"),
        Tiny("broken", "nonsense"),
    ]
    seen = []
    reports = compile_all(
        ["sm_80"], lambda arch: programs, lambda *progress: seen.append(progress), out_dir=tmp_path / "cubins"
    )
    assert seen == [(i, 5, report) for i, report in enumerate(reports, 1)]
    assert [r.status for r in reports] == ["ok", "problem", "problem", "problem", "problem"]
    mma, plain, spilling, misnamed, broken = reports
    assert mma.resources.instructions["HMMA"] > 0
    assert mma.path.read_bytes()[:4] == b"\x7fELF"
    assert plain.problems == ("no HMMA instruction: the tensor cores are not used as meant",)
    assert spilling.problems[0].startswith("spills: ")
    assert misnamed.problems == ("the cubin has no kernel other; it has k",)
    assert broken.problems[0].startswith("cannot compile broken for sm_80: broken.cu(1): error")


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_mma_sync_stays_on_the_tensor_cores(arch, tools):
    (report,) = compile_all([arch], lambda arch: [Tiny("mma", MMA, tensor_core_ops=("HMMA",))])
    assert (report.status, report.problems) == ("ok", ())


def test_unsupported_arch_is_one_report(monkeypatch, tools):
    monkeypatch.setattr(compiler, "supported_archs", lambda: (80,))
    monkeypatch.setattr(compiler, "nvrtc_version", lambda: (13, 0))
    reports = compile_all(["sm_107a", "sm_80"], lambda arch: [Tiny("a", MMA), Tiny("b", MMA)])
    assert [(r.arch, r.program, r.status) for r in reports] == [
        ("sm_107a", "", "unsupported"),
        ("sm_80", "a", "ok"),
        ("sm_80", "b", "ok"),
    ]
    assert reports[0].note.startswith("NVRTC 13.0 does not know sm_107a; needs NVRTC >= 13.4")


def test_without_cuobjdump_it_compiles_and_says_so(monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC not installed")

    def missing():
        raise aot.InspectorUnavailable("cuobjdump not found")

    monkeypatch.setattr(aot, "_cuobjdump", missing)
    (report,) = compile_all(["sm_80"], lambda arch: [Tiny("mma", MMA, tensor_core_ops=("HMMA",))])
    assert (report.status, report.resources, report.note) == (
        "ok",
        None,
        "not inspected: cuobjdump not found",
    )


def test_report_reads_as_one_line():
    resources = Resources(168, 0, 0, 0, {"HMMA": 4})
    assert str(aot.Report("a", "sm_80", "ok", (), resources, 0.5)) == "sm_80 a: ok, 168 registers; 0.50 s"
    assert str(aot.Report("", "sm_107a", "unsupported", note="NVRTC 13.0 does not know it")) == (
        "sm_107a all programs: unsupported, NVRTC 13.0 does not know it"
    )
