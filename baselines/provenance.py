"""Which library file really answers in this process, and which version it is.

All cuBLAS 13.x share the SONAME ``libcublas.so.13``, so a process has one of them, whoever loads it first: an
installed wheel beats ``LD_LIBRARY_PATH``. :func:`preload` decides it before torch does. This module imports
neither torch nor CUDA.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path


def mapped_in(maps: str, fragment: str) -> tuple[str, ...]:
    """Paths in a ``/proc/<pid>/maps`` text whose file name contains ``fragment``, in order, once each."""
    fields = (line.split(maxsplit=5) for line in maps.splitlines() if fragment in line)
    paths = (f[5] for f in fields if len(f) == 6 and f[5].startswith("/"))
    return tuple(dict.fromkeys(p for p in paths if fragment in os.path.basename(p)))


def mapped(fragment: str) -> tuple[str, ...]:
    """Paths of the files mapped into this process whose name contains ``fragment`` (none without a /proc)."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return ()
    return mapped_in(maps, fragment)


def only_mapped(fragment: str) -> str:
    """The one mapped library whose name contains ``fragment``, or an empty string.

    Raises ``RuntimeError`` where two different files are mapped, since then no call says which one it used.
    """
    paths = mapped(fragment)
    if len({os.path.realpath(p) for p in paths}) > 1:
        raise RuntimeError(
            f"{len(paths)} libraries {fragment} are mapped: {', '.join(paths)}; a process needs one: keep "
            f"one installed, or preload it before torch is imported"
        )
    return paths[0] if paths else ""


def dotted(get_property: Callable[[int], int]) -> str:
    """A version such as ``13.1.0`` from a library's ``GetProperty`` (0 major, 1 minor, 2 patch)."""
    return ".".join(str(get_property(i)) for i in range(3))


def library_version(path: str, symbol: str) -> str:
    """The version of the library at ``path`` by its ``symbol`` (``cublasGetProperty``); needs no GPU."""
    function = getattr(ctypes.CDLL(path), symbol)

    def get_property(which: int) -> int:
        value = ctypes.c_int()
        status = function(ctypes.c_int(which), ctypes.byref(value))
        if status:
            raise RuntimeError(f"{symbol}({which}) of {path} returned status {status}")
        return value.value

    return dotted(get_property)


def preload(cublas_dir: Path | str) -> tuple[str, str]:
    """Load cuBLASLt, then cuBLAS, from ``cublas_dir``, so that torch and nvmath use these; gives the paths.

    Call it before torch is imported. Raises ``FileNotFoundError`` where a library is missing and
    ``RuntimeError`` where another one is already mapped.
    """
    files = []
    for stem in ("libcublasLt.so", "libcublas.so"):
        found = sorted(Path(cublas_dir).glob(f"{stem}.*"), key=lambda p: (len(p.name), p.name))
        if not found:
            raise FileNotFoundError(
                f"no {stem}.* in {cublas_dir}; give the folder that holds both cuBLAS libraries"
            )
        path = os.path.realpath(found[0])
        others = [p for p in mapped(stem) if os.path.realpath(p) != path]
        if others:
            raise RuntimeError(
                f"cannot preload {path}: {others[0]} is already mapped; preload before importing torch"
            )
        files.append(path)
    for path in files:  # cuBLASLt first: cuBLAS needs it, and would look for another
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    return files[0], files[1]
