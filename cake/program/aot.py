"""Ahead-of-time compilation: every program of an architecture, with what can be checked of its cubin without
a GPU.

A program that spills registers, lacks its tensor-core instructions, serialises its wgmma or asks for more
shared memory than the architecture has is a defect that tests find here, long before a GPU does.
``cuobjdump`` (wheels nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm, or a toolkit) reads the cubins; where it
is missing they are still compiled and the report says that they were not inspected.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

from .compiler import ArchUnsupported, CompileError, compile_source

#: ptxas notes that say a kernel's wgmma run one after another: an accumulator indexed at run time, a call in
#: between, ...
_SERIALISED = re.compile(r"^.*\((C7510|C7511|C7514)\).*$", re.MULTILINE)
_FUNCTION_USAGE = re.compile(r"^\s*Function (\S+):\s*\n\s*(.*)$", re.MULTILINE)
_USAGE_ITEM = re.compile(r"(\w+)(?:\[\d+\])?:(\d+)")
_SASS_FUNCTION = re.compile(r"^\s*Function : (\S+)\s*$", re.MULTILINE)
_SASS_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", re.MULTILINE)
#: KiB of shared memory a block may have, by architecture (CUDA programming guide, compute capabilities), 99
#: elsewhere; from sm_90 on with the one that the system keeps, which ``cuobjdump`` counts there.
_SHARED_KIB = {80: 163, 87: 163, 90: 228, 100: 228, 103: 228, 107: 228, 110: 228}


class Program(Protocol):
    """What is needed of a program: see ``registry.Program``."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def source(self) -> str: ...  # noqa: D102
    @property
    def defines(self) -> Mapping[str, str | int]: ...  # noqa: D102
    @property
    def kernel(self) -> str: ...  # noqa: D102
    @property
    def tensor_core_ops(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def smem_bytes(self) -> int: ...  # noqa: D102


class InspectorUnavailable(RuntimeError):
    """No ``cuobjdump`` here; the message says what to install."""


@dataclass(frozen=True)
class Resources:
    """One kernel of a cubin: registers a thread; stack, local and static shared memory in bytes; instructions
    by mnemonic.

    Mnemonics have no suffix: ``HMMA`` counts every ``HMMA.16816.F32.BF16``. Counts depend on unrolling: ask
    for presence and ratios only.
    """

    registers: int
    stack_bytes: int
    local_bytes: int
    shared_bytes: int
    instructions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """One program compiled for one architecture.

    ``problem``: compiled, but ``problems`` lists what is wrong with it, or it did not compile;
    ``unsupported``: this NVRTC does not know the architecture (then one report stands for all its programs,
    with an empty ``program``). ``note`` says why ``resources`` is missing.
    """

    program: str
    arch: str
    status: Literal["ok", "problem", "unsupported"]
    problems: tuple[str, ...] = ()
    resources: Resources | None = None
    seconds: float = 0.0
    log: str = ""
    note: str = ""
    path: Path | None = None

    def __str__(self) -> str:
        what = [*self.problems]
        if self.resources is not None:
            what += [f"{self.resources.registers} registers"]
        what += [note for note in (self.note, f"{self.seconds:.2f} s" if self.seconds else "") if note]
        return f"{self.arch} {self.program or 'all programs'}: {self.status}, {'; '.join(what)}"


# --- pure: from the tools' text to problems -----------------------------------------------------------------


def parse_usage(text: str) -> dict[str, Resources]:
    """The functions of ``cuobjdump -res-usage``, without instruction counts."""
    functions = {}
    for name, line in _FUNCTION_USAGE.findall(text):
        usage = dict(_USAGE_ITEM.findall(line))
        registers, stack, local, shared = (int(usage[k]) for k in ("REG", "STACK", "LOCAL", "SHARED"))
        functions[name] = Resources(registers, stack, local, shared)
    return functions


def parse_sass(text: str) -> dict[str, dict[str, int]]:
    """Instruction counts by mnemonic of each function in ``cuobjdump -sass``."""
    names_and_bodies = _SASS_FUNCTION.split(text)[1:]
    pairs = zip(names_and_bodies[::2], names_and_bodies[1::2], strict=True)
    return {name: dict(Counter(_SASS_LINE.findall(body))) for name, body in pairs}


def log_problems(log: str) -> tuple[str, ...]:
    """What the compiler's log says against a kernel: serialised wgmma."""
    return tuple(f"wgmma serialised: {m[0].strip()}" for m in _SERIALISED.finditer(log))


def resource_problems(
    resources: Resources, arch: str, tensor_core_ops: Sequence[str], dynamic_shared_bytes: int
) -> tuple[str, ...]:
    """What a cubin's resources say against a kernel: spills, missing tensor-core instructions, too much
    shared memory.
    """
    problems = []
    if resources.stack_bytes or resources.local_bytes:
        problems.append(
            f"spills: {resources.stack_bytes} bytes of stack and {resources.local_bytes} of local memory "
            f"a thread at {resources.registers} registers"
        )
    for op in tensor_core_ops:
        if not resources.instructions.get(op):
            problems.append(f"no {op} instruction: the tensor cores are not used as meant")
    shared = resources.shared_bytes + dynamic_shared_bytes
    limit = _SHARED_KIB.get(int(re.sub(r"\D", "", arch)), 99) * 1024
    if shared > limit:
        problems.append(f"needs {shared} bytes of shared memory; a block of {arch} has {limit}")
    return tuple(problems)


# --- cuobjdump ----------------------------------------------------------------------------------------------


@cache
def _cuobjdump() -> str:
    spec = importlib.util.find_spec("nvidia")
    wheels = [
        p
        for root in (spec.submodule_search_locations or () if spec else ())
        for p in Path(root).glob("*/bin")
    ]
    search = os.pathsep.join([*map(str, wheels), os.environ.get("PATH", ""), "/usr/local/cuda/bin"])
    found = shutil.which("cuobjdump", path=search)
    if found is None:
        raise InspectorUnavailable(
            "cuobjdump not found; install it with pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
        )
    return found


def _run_cuobjdump(flag: str, path: str) -> str:
    tool = _cuobjdump()
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(tool).parent), os.environ.get("PATH", "")]),
    }
    done = subprocess.run([tool, flag, path], capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise InspectorUnavailable(f"{tool} {flag} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def inspect(cubin: bytes, kernel: str) -> Resources:
    """What ``cuobjdump`` says of one kernel of a cubin.

    Raises ``ValueError`` naming the kernels the cubin has where ``kernel`` is none of them, and
    :class:`InspectorUnavailable`.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = parse_usage(_run_cuobjdump("-res-usage", file.name))
        if kernel not in usage:
            raise ValueError(f"the cubin has no kernel {kernel}; it has {', '.join(sorted(usage)) or 'none'}")
        counts = parse_sass(_run_cuobjdump("-sass", file.name))
    found = usage[kernel]
    return Resources(
        found.registers, found.stack_bytes, found.local_bytes, found.shared_bytes, counts.get(kernel, {})
    )


# --- the build ----------------------------------------------------------------------------------------------


def compile_program(program: Program, arch: str, out_dir: Path | None = None) -> Report:
    """Compile and check one program; with ``out_dir`` also write ``<out_dir>/<arch>/<name>.cubin``."""
    start = time.perf_counter()
    try:
        compiled = compile_source(program.source, arch, name=program.name, defines=program.defines)
    except ArchUnsupported as e:
        return Report(program.name, arch, "unsupported", note=e.log)
    except CompileError as e:
        return Report(program.name, arch, "problem", (str(e),), None, time.perf_counter() - start, e.log)
    problems, resources, note = log_problems(compiled.log), None, ""
    try:
        resources = inspect(compiled.cubin, program.kernel)
        problems += resource_problems(resources, arch, program.tensor_core_ops, program.smem_bytes)
    except InspectorUnavailable as e:
        note = f"not inspected: {e}"
    except ValueError as e:
        problems += (str(e),)
    path = None
    if out_dir is not None:
        path = out_dir / arch / f"{program.name}.cubin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(compiled.cubin)
    status: Literal["ok", "problem"] = "problem" if problems else "ok"
    return Report(
        program.name, arch, status, problems, resources, time.perf_counter() - start, compiled.log, note, path
    )


def compile_all(
    archs: Sequence[str],
    programs: Callable[[str], Sequence[Program]],
    on_progress: Callable[[int, int, Report], None] = lambda done, total, report: None,
    *,
    out_dir: Path | None = None,
) -> list[Report]:
    """Compile every program that ``programs(arch)`` names, for every architecture, on all cores.

    ``on_progress(done, total, report)`` is called after each, in the order of the result. An architecture
    that this NVRTC does not know gives one ``unsupported`` report. Raises ``compiler.CompilerUnavailable``
    where there is no NVRTC, and ``OSError`` where ``out_dir`` cannot be written.
    """
    todo = [(program, arch) for arch in archs for program in programs(arch)]
    reports: list[Report] = []
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        done = pool.map(lambda item: compile_program(item[0], item[1], out_dir), todo)
        for i, report in enumerate(done, 1):
            on_progress(i, len(todo), report)
            if report.status != "unsupported":
                reports.append(report)
            elif all(r.arch != report.arch for r in reports):
                reports.append(Report("", report.arch, "unsupported", note=report.note))
    return reports
