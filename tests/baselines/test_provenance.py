from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from baselines import provenance

MAPS = """\
7f10-7f20 r-xp 00000000 08:01 11 /opt/venv/lib/nvidia/cu13/lib/libcublasLt.so.13
7f20-7f30 r-xp 00000000 08:01 12 /opt/venv/lib/nvidia/cu13/lib/libcublas.so.13
7f30-7f40 rw-p 00100000 08:01 12 /opt/venv/lib/nvidia/cu13/lib/libcublas.so.13
7f40-7f50 r-xp 00000000 08:01 13 /opt/venv/lib/nvmath/bindings/cublas.cpython-312-x86_64-linux-gnu.so
7f50-7f60 r-xp 00000000 08:01 14 /opt/a folder/libcublas.so.13.1.0
7f60-7f70 rw-p 00000000 00:00 0
7f70-7f80 rw-p 00000000 00:00 0 [stack]
"""
LIBRARY = "int {name}GetProperty(int which, int* value) {{ *value = 90 + which; return 0; }}"


def run_python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(provenance.__file__).parents[1])} | env
    return subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True)


def build_pair(folder: Path, build_library) -> None:
    folder.mkdir()
    for name in ("cublasLt", "cublas"):
        build_library(folder / f"lib{name}.so.13", LIBRARY.format(name=name))


def test_mapped_libraries_by_name_once_each() -> None:
    assert provenance.mapped_in(MAPS, "libcublas.so") == (
        "/opt/venv/lib/nvidia/cu13/lib/libcublas.so.13",
        "/opt/a folder/libcublas.so.13.1.0",
    )
    assert provenance.mapped_in(MAPS, "libcublasLt.so") == (
        "/opt/venv/lib/nvidia/cu13/lib/libcublasLt.so.13",
    )
    assert provenance.mapped_in(MAPS, "libcusolver") == ()


def test_two_mapped_copies_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "mapped", lambda fragment: provenance.mapped_in(MAPS, fragment))
    assert provenance.only_mapped("libcublasLt.so").endswith("libcublasLt.so.13")
    assert provenance.only_mapped("libcusolver") == ""
    with pytest.raises(RuntimeError, match=r"2 libraries libcublas.so are mapped: .*keep one installed"):
        provenance.only_mapped("libcublas.so")


def test_preload_decides_which_cublas_nvmath_uses(stub_driver: Path, tmp_path: Path, build_library) -> None:
    pytest.importorskip("nvmath.bindings.cublas")
    build_pair(tmp_path / "mine", build_library)
    code = f"""
import sys
from baselines import provenance
paths = provenance.preload({str(tmp_path / "mine")!r})
assert "torch" not in sys.modules
from nvmath.bindings import cublas, cublasLt
print(provenance.dotted(cublas.get_property), provenance.dotted(cublasLt.get_property))
print(provenance.library_version(provenance.only_mapped("libcublas.so"), "cublasGetProperty"))
print(paths == (provenance.only_mapped("libcublasLt.so"), provenance.only_mapped("libcublas.so")))
"""
    done = run_python(code, LD_LIBRARY_PATH=str(stub_driver))
    assert done.stdout.split() == ["90.91.92", "90.91.92", "90.91.92", "True"], done.stderr


def test_preload_of_a_folder_without_cublas(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no libcublasLt.so.\* in .*give the folder"):
        provenance.preload(tmp_path)


def test_preload_twice_is_fine_but_not_of_two_copies(tmp_path: Path, build_library) -> None:
    for folder in ("one", "two"):
        build_pair(tmp_path / folder, build_library)
    code = """
from baselines.provenance import preload
for folder in ("one", "one", "two"):
    try:
        preload(f"ROOT/{folder}")
        print("loaded")
    except RuntimeError as e:
        print(e)
""".replace("ROOT", str(tmp_path))
    lines = run_python(code).stdout.splitlines()
    assert lines[:2] == ["loaded", "loaded"]
    assert lines[2].endswith("libcublasLt.so.13 is already mapped; preload before importing torch")
