from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from cake.program import compiler
from cake.program.compiler import ArchUnsupported, CompileError, compile_cubin, compile_source, included

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC not installed")

TINY = 'extern "C" __global__ void tiny(float* x) { x[threadIdx.x] *= FACTOR; }\n'


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CAKE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "_warned", set())
    compiler.clear_memory_cache()
    yield tmp_path / "cache"
    compiler.clear_memory_cache()


@pytest.fixture
def compilations(monkeypatch):
    seen = []
    real = compiler._nvrtc_compile

    def spy(source, arch, name, *rest):
        seen.append((name, arch))
        return real(source, arch, name, *rest)

    monkeypatch.setattr(compiler, "_nvrtc_compile", spy)
    return seen


def tiny(arch="sm_90a", factor=2):
    return compile_cubin(TINY, arch, name="tiny", defines={"FACTOR": factor})


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_compiles_without_a_gpu(arch):
    assert tiny(arch)[:4] == b"\x7fELF"


def test_memory_then_disk_then_compiler(compilations):
    first = tiny()
    assert tiny() is first
    compiler.clear_memory_cache()
    assert tiny() == first
    assert compilations == [("tiny", "sm_90a")]


def test_what_decides_the_cubin_decides_the_key(compilations, monkeypatch, fresh_cache):
    tiny()
    tiny(factor=3)
    tiny(arch="sm_80")
    compile_cubin(TINY + "//", "sm_90a", name="tiny", defines={"FACTOR": 2})
    compile_source(TINY, "sm_90a", name="tiny", defines={"FACTOR": 2}, lineinfo=True)
    monkeypatch.setattr(compiler, "_ROOT", "cake_prev")
    tiny()
    assert len(compilations) == 6
    assert len(list(fresh_cache.iterdir())) == 6


def test_a_changed_header_is_compiled_again(compilations, monkeypatch, tmp_path):
    source = '#include "common/f.cuh"\nextern "C" __global__ void k(float* x) { x[0] = f(); }'
    for version in ("1.f", "2.f"):
        root = tmp_path / version / "common"
        root.mkdir(parents=True)
        (root / "f.cuh").write_text('#include "common/g.cuh"\n__device__ float f() { return g(); }')
        (root / "g.cuh").write_text(f"__device__ float g() {{ return {version}; }}")
        monkeypatch.setattr(compiler, "_CSRC", root.parent)
        compile_cubin(source, "sm_80", name="k")
    assert len(compilations) == 2


def test_included_follows_headers_and_names_the_foreign_ones():
    headers = {"a.cuh": '#include "b.cuh"', "b.cuh": '#include <cuda_bf16.h>\n#include "a.cuh"', "c.cuh": ""}
    found, foreign = included('  #  include "a.cuh"\n// #include "c.cuh"', headers)
    assert list(found) == ["a.cuh", "b.cuh"]
    assert foreign == ("cuda_bf16.h",)


def test_toolkit_headers_are_found():
    assert compile_cubin(
        "#include <cuda_bf16.h>\n"
        'extern "C" __global__ void k(__nv_bfloat16* x) { *x = __float2bfloat16(1.f); }',
        "sm_90a",
        name="bf16",
    )


def test_error_carries_name_arch_and_log():
    with pytest.raises(CompileError) as caught:
        compile_cubin("__global__ void k() { nonsense; }", "sm_90a", name="broken")
    assert (caught.value.name, caught.value.arch) == ("broken", "sm_90a")
    assert 'broken.cu(1): error: identifier "nonsense" is undefined' in caught.value.log
    assert str(caught.value).startswith("cannot compile broken for sm_90a: broken.cu(1)")


def test_old_nvrtc_says_which_is_needed(monkeypatch):
    monkeypatch.setattr(compiler, "supported_archs", lambda: (80, 90, 100))
    monkeypatch.setattr(compiler, "nvrtc_version", lambda: (13, 0))
    with pytest.raises(ArchUnsupported) as caught:
        tiny("sm_107a")
    assert str(caught.value) == (
        "cannot compile tiny for sm_107a: NVRTC 13.0 does not know sm_107a; needs NVRTC >= 13.4: "
        "pip install 'nvidia-cuda-nvrtc>=13.4,<14'"
    )
    with pytest.raises(ArchUnsupported, match=r"does not know sm_999; this one knows sm_80, sm_90, sm_100$"):
        tiny("sm_999")


def test_arch_of_the_wrong_form():
    with pytest.raises(ValueError, match=r"^arch is '90a'; needs the form sm_90, sm_90a or sm_100f$"):
        tiny("90a")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:20],
        lambda data: data[:-1],
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
        lambda data: b"something else",
    ],
    ids=["empty", "header cut", "one byte short", "one bit wrong", "foreign"],
)
def test_damaged_file_is_compiled_again_and_replaced(damage, compilations, fresh_cache):
    cubin = tiny()
    (entry,) = fresh_cache.iterdir()
    good = entry.read_bytes()
    entry.write_bytes(damage(good))
    compiler.clear_memory_cache()
    assert tiny() == cubin
    assert entry.read_bytes() == good
    assert len(compilations) == 2


def test_unwritable_directory_compiles_in_memory_with_one_warning(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CAKE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(
        RuntimeWarning, match=r"cannot keep compiled kernels in .*/file/cache .*compiling in memory"
    ):
        tiny()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny(factor=3)


def test_memory_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(compiler, "_MEMORY_LIMIT", 2)
    for factor in range(4):
        tiny("sm_80", factor)
    assert len(compiler._memory) == 2


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"CAKE_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/cake"),
        ({"HOME": "/c"}, "/c/.cache/cake"),
    ],
)
def test_cache_dir(environment, expected, monkeypatch):
    for name in ("CAKE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert compiler.cache_dir() == Path(expected)


def test_processes_compile_at_once(fresh_cache):
    script = (
        "import hashlib\nfrom cake.program.compiler import compile_cubin\n"
        "for i in range(4):\n"
        f"    c = compile_cubin({TINY!r}, 'sm_80', name='tiny', defines={{'FACTOR': i % 2}})\n"
        "    print(hashlib.sha256(c).hexdigest())\n"
    )
    root = Path(__file__).resolve().parents[2]
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", script], cwd=root, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    outputs = {child.communicate(timeout=60)[0] for child in children}
    assert [child.returncode for child in children] == [0, 0, 0]
    assert len(outputs) == 1
    assert sorted(p.suffix for p in fresh_cache.iterdir()) == [".cubin", ".cubin"]
