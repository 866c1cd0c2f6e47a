"""CUDA C++ source -> cubin, by NVRTC, with a cache in the process and one on disk.

Nothing here needs a GPU or a driver. A cubin is keyed by everything that decides its bytes: the source, the
text of the headers it includes, the flags and the compiler's version; the name of the package that asks is in
the key too, so that two versions of it in one process never share a file.

The disk cache is ``$CAKE_CACHE_DIR``, else ``$XDG_CACHE_HOME/cake``, else ``~/.cache/cake``. Entries are
written under a temporary name and renamed, and carry a checksum: processes may compile the same kernel at
once, and a damaged entry is compiled again and replaced. Where the directory cannot be written, kernels are
compiled in memory (one warning).
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import threading
import uuid
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

_ROOT = (__package__ or "cake").split(".")[0]
_CSRC = Path(__file__).resolve().parent.parent / "csrc"
_MAGIC = b"CAKECUB1"
_MEMORY_LIMIT = 256
_ARCH = re.compile(r"sm_(\d+)[af]?")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">]', re.MULTILINE)
#: The first NVRTC that knows an architecture newer than the oldest one supported here (CUDA 13.0).
_FIRST_NVRTC = {107: "13.4"}


class CompileError(Exception):
    """A kernel did not compile. ``name`` and ``arch`` say which, ``log`` is the compiler's own text."""

    def __init__(self, name: str, arch: str, log: str) -> None:
        super().__init__(f"cannot compile {name} for {arch}: {log.strip() or 'the compiler left no log'}")
        self.name = name
        self.arch = arch
        self.log = log

    def __reduce__(self) -> tuple[type[CompileError], tuple[str, str, str]]:
        """So that one raised in a worker process reaches the one that waits for it."""
        return type(self), (self.name, self.arch, self.log)


class ArchUnsupported(CompileError):
    """The NVRTC found here does not know the architecture; the log says which version does."""


class CompilerUnavailable(RuntimeError):
    """NVRTC itself, or its Python binding, is not installed; the message says what to install."""


@dataclass(frozen=True)
class Compiled:
    """A cubin and the compiler's log: warnings and ptxas notes, empty where there were none."""

    cubin: bytes
    log: str


# --- NVRTC --------------------------------------------------------------------------------------------------


@cache
def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        (status, *_) = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as e:
        raise CompilerUnavailable(
            "compiling kernels needs cuda-python and NVRTC; install them with "
            f"pip install 'cuda-python>=13,<14' 'nvidia-cuda-nvrtc>=13,<14' ({e})"
        ) from e
    if int(status) != 0:
        raise CompilerUnavailable(f"NVRTC does not answer: nvrtcVersion returned {status!r}")
    return nvrtc


@cache
def nvrtc_version() -> tuple[int, int]:
    """The version of the NVRTC that compiles here, e.g. ``(13, 5)``."""
    _, major, minor = _nvrtc().nvrtcVersion()
    return major, minor


@cache
def supported_archs() -> tuple[int, ...]:
    """The architectures this NVRTC compiles for, as numbers in rising order, e.g. ``(75, 80, ..., 121)``."""
    status, archs = _nvrtc().nvrtcGetSupportedArchs()
    if int(status) != 0:
        raise CompilerUnavailable(f"NVRTC does not list its architectures: {status!r}")
    return tuple(sorted(archs))


def _check_arch(name: str, arch: str) -> None:
    match = _ARCH.fullmatch(arch)
    if match is None:
        raise ValueError(f"arch is {arch!r}; needs the form sm_90, sm_90a or sm_100f")
    number = int(match[1])
    if number in supported_archs():
        return
    have = ".".join(map(str, nvrtc_version()))
    if first := _FIRST_NVRTC.get(number):
        need = f"needs NVRTC >= {first}: pip install 'nvidia-cuda-nvrtc>={first},<14'"
    else:
        need = f"this one knows {', '.join(f'sm_{a}' for a in supported_archs())}"
    raise ArchUnsupported(name, arch, f"NVRTC {have} does not know {arch}; {need}")


def _nvrtc_compile(
    source: str,
    arch: str,
    name: str,
    headers: Mapping[str, str],
    options: tuple[str, ...],
    include_dirs: tuple[str, ...],
) -> Compiled:
    nvrtc = _nvrtc()
    names = list(headers)
    status, program = nvrtc.nvrtcCreateProgram(
        source.encode(),
        f"{name}.cu".encode(),
        len(names),
        [headers[n].encode() for n in names],
        [n.encode() for n in names],
    )
    if int(status) != 0:
        raise CompileError(name, arch, f"nvrtcCreateProgram returned {status!r}")
    try:
        flags = [o.encode() for o in options] + [f"-I{d}".encode() for d in include_dirs]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        log = (
            _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            .rstrip(b"\0")
            .decode(errors="replace")
        )
        if int(status) != 0:
            raise CompileError(name, arch, log or repr(status))
        cubin = _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        if not cubin:
            raise CompileError(name, arch, log + "\nNVRTC returned no cubin")
        return Compiled(cubin, log.strip())
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _text(size: Any, read: Any, program: Any) -> bytes:
    _, n = size(program)
    buffer = bytearray(n)
    read(program, buffer)
    return bytes(buffer)


# --- what a source includes ---------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _csrc_headers(root: Path) -> dict[str, str]:
    return {
        p.relative_to(root).as_posix(): p.read_text()
        for p in sorted(root.rglob("*"))
        if p.suffix in {".cuh", ".h", ".hpp", ".inc"}
    }


def included(source: str, headers: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """What a source includes, directly and through its headers.

    Returns the headers found in ``headers`` (name -> text, sorted by name) and the names included that are
    not among them: those are the CUDA toolkit's. Includes are named from the root of csrc, e.g. ``#include
    "common/mma.cuh"``.
    """
    found: dict[str, str] = {}
    foreign: set[str] = set()
    todo = [source]
    while todo:
        for _, name in _INCLUDE.findall(todo.pop()):
            if name not in headers:
                foreign.add(name)
            elif name not in found:
                found[name] = headers[name]
                todo.append(headers[name])
    return dict(sorted(found.items())), tuple(sorted(foreign))


@cache
def _toolkit_include_dirs() -> tuple[str, ...]:
    """The folder of ``cuda_bf16.h`` and its like: in the nvidia-cuda-runtime wheel, or in a toolkit."""
    from cuda.pathfinder import find_nvidia_header_directory

    runtime = find_nvidia_header_directory("cudart")
    return (str(runtime),) if runtime else ()


@lru_cache(maxsize=64)
def _toolkit_texts(names: tuple[str, ...]) -> tuple[str, ...]:
    """The text of the toolkit headers named directly: a stand-in for the toolkit's version in a key."""
    paths = (Path(d, name) for d in _toolkit_include_dirs() for name in names)
    return tuple(p.read_text() for p in paths if p.is_file())


# --- the caches ---------------------------------------------------------------------------------------------

_memory: OrderedDict[str, Compiled] = OrderedDict()
_memory_lock = threading.Lock()
_warned: set[str] = set()


def cache_dir() -> Path:
    """The directory of the disk cache; it may not exist yet."""
    if explicit := os.environ.get("CAKE_CACHE_DIR"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "cake"


def clear_memory_cache() -> None:
    """Forget the cubins kept in this process; the disk keeps its own."""
    with _memory_lock:
        _memory.clear()


def _pack(compiled: Compiled) -> bytes:
    log = compiled.log.encode()
    payload = struct.pack("<Q", len(log)) + log + compiled.cubin
    return _MAGIC + hashlib.sha256(payload).digest() + payload


def _unpack(data: bytes) -> Compiled | None:
    """The entry, or None where a byte of it is missing or wrong."""
    payload = data[40:]
    if data[:8] != _MAGIC or hashlib.sha256(payload).digest() != data[8:40]:
        return None
    (n,) = struct.unpack_from("<Q", payload)
    return Compiled(payload[8 + n :], payload[8 : 8 + n].decode())


def _read(path: Path) -> Compiled | None:
    try:
        return _unpack(path.read_bytes())
    except OSError:
        return None


def _write(path: Path, compiled: Compiled) -> None:
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")  # unique on a shared disk too
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(_pack(compiled))
        os.replace(temporary, path)
    except OSError as e:
        with suppress(OSError):
            temporary.unlink()
        if str(path.parent) not in _warned:
            _warned.add(str(path.parent))
            warnings.warn(
                f"cannot keep compiled kernels in {path.parent} ({e}); compiling in memory. "
                "Set CAKE_CACHE_DIR to a directory that can be written",
                RuntimeWarning,
                stacklevel=4,
            )


def _key(parts: tuple[str, ...]) -> str:
    """A hash of the parts; each is preceded by its length, so that no two lists of parts read the same."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(struct.pack("<Q", len(data)))
        digest.update(data)
    return digest.hexdigest()


# --- compiling ----------------------------------------------------------------------------------------------


def compile_source(
    source: str,
    arch: str,
    *,
    name: str,
    defines: Mapping[str, str | int] | None = None,
    lineinfo: bool = False,
) -> Compiled:
    """Compile CUDA C++ for one architecture, or fetch the result from a cache.

    ``arch`` is e.g. ``sm_90a``; ``name`` names the kernel in errors and logs; ``defines`` become ``-D``
    flags; ``lineinfo`` keeps source lines for profilers. Headers of csrc are included by their path from its
    root, CUDA's own as usual. Raises :class:`CompileError`, :class:`ArchUnsupported`,
    :class:`CompilerUnavailable`, and ``ValueError`` for an ``arch`` that is not one.
    """
    _check_arch(name, arch)
    headers, foreign = included(source, _csrc_headers(_CSRC))
    include_dirs = _toolkit_include_dirs() if foreign else ()
    options = (
        f"--gpu-architecture={arch}",
        "-std=c++17",
        *(("-lineinfo",) if lineinfo else ()),
        *(f"-D{k}={v}" for k, v in sorted((defines or {}).items())),
    )
    version = ".".join(map(str, nvrtc_version()))
    texts = (text for pair in headers.items() for text in pair)
    key = _key((_ROOT, version, name, *options, source, *texts, *_toolkit_texts(foreign)))
    with _memory_lock:
        if (hit := _memory.get(key)) is not None:
            _memory.move_to_end(key)
            return hit
    path = cache_dir() / f"{key}.cubin"
    compiled = _read(path)
    if compiled is None:
        compiled = _nvrtc_compile(source, arch, name, headers, options, include_dirs)
        _write(path, compiled)
    with _memory_lock:
        _memory[key] = compiled
        while len(_memory) > _MEMORY_LIMIT:
            _memory.popitem(last=False)
    return compiled


def compile_cubin(
    source: str, arch: str, *, name: str, defines: Mapping[str, str | int] | None = None
) -> bytes:
    """The cubin of :func:`compile_source` alone."""
    return compile_source(source, arch, name=name, defines=defines).cubin
