"""Where a run happens: what must not be there, and what is written down of it.

Some environment variables change a rival in silence, and other processes, MIG and MPS change the GPU. The
first, MIG and MPS are refused; other processes are a flag, since on a busy node there may be no choice.
"""

from __future__ import annotations

import fnmatch
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from baselines import provenance
from bench.clocks import full_uuid, nvml, nvml_handle
from bench.model import Device, Flag

#: They turn a library's FP32 into something else without a word: emulation of cuBLAS, TF32 of everything.
REFUSED = ("CUBLAS_EMULATE_*", "CUBLAS_EMULATION_*", "NVIDIA_TF32_OVERRIDE")
#: What may bear on a result and is written down.
RECORDED = (
    "CUDA_*",
    "CUBLAS_*",
    "CUBLASLT_*",
    "NVIDIA_TF32_OVERRIDE",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_*",
    "OPENBLAS_*",
    "MKL_*",
    "CAKE_*",
    "TORCH_*",
    "PYTORCH_*",
)
#: Never written down, whatever else the name matches.
SECRET = ("*KEY*", "*TOKEN*", "*SECRET*", "*PASSW*", "*CREDENTIAL*", "*AUTH*")

#: What is asked of the package index of this installation: name in the manifest -> distributions, the first
#: found wins.
_DISTRIBUTIONS = {
    "cake-bench": ("cake-bench",),
    "numpy": ("numpy",),
    "scipy": ("scipy",),
    "cuda-python": ("cuda-python", "cuda-bindings"),
    "cupti-python": ("cupti-python",),
    "cupti": ("nvidia-cuda-cupti", "nvidia-cuda-cupti-cu12"),
    "cublas-wheel": ("nvidia-cublas",),
    "nvmath": ("nvmath-python",),
}
_ROOT = Path(__file__).resolve().parent.parent


class EnvironmentRefused(Exception):
    """The environment would falsify the run; the message names what was found and what to do."""


def check_environment(
    device: torch.device | str | None = None, environ: Mapping[str, str] | None = None
) -> tuple[Flag, ...]:
    """The flags of a run on ``device`` (default: the GPU if there is one) with these variables (default: the
    process's).

    Call it before the process uses the GPU: in a container a process cannot tell its own entry from a
    stranger's. Raises :class:`EnvironmentRefused` for refused variables, MIG and MPS.
    """
    environ = os.environ if environ is None else environ
    refuse_variables(environ)
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.type != "cuda":
        return ()
    refuse_mps(environ, _commands())
    library, handle = nvml(), nvml_handle(chosen)
    if handle is None:
        return ()
    if _mig_enabled(library, handle):
        raise EnvironmentRefused(
            f"{chosen} is in MIG mode: a slice has its own, smaller L2 and SM count; "
            "measure a whole GPU (nvidia-smi -i <gpu> -mig 0)"
        )
    return ("shared-gpu",) if shared_gpu(chosen) else ()


def shared_gpu(device: torch.device) -> bool:
    """Whether another process is on the GPU now; false on a CPU, and where NVML cannot say."""
    handle = nvml_handle(device) if device.type == "cuda" else None
    if handle is None:
        return False
    own_context = _context_exists(device.index or 0)
    return bool(strangers(_compute_pids(nvml(), handle), os.getpid(), own_context))


def refuse_variables(environ: Mapping[str, str]) -> None:
    """Raise :class:`EnvironmentRefused` where a variable is set that changes a library's arithmetic in
    silence.
    """
    found = sorted(n for n in environ if any(fnmatch.fnmatchcase(n, p) for p in REFUSED))
    if found:
        raise EnvironmentRefused(
            f"{', '.join(f'{n}={environ[n]}' for n in found)} is set and would silently change "
            f"what a library computes; unset {' '.join(found)}"
        )


def refuse_mps(environ: Mapping[str, str], commands: Iterable[str]) -> None:
    """Raise :class:`EnvironmentRefused` where MPS is configured or one of the running ``commands`` is its
    daemon.
    """
    where = ""
    if environ.get("CUDA_MPS_PIPE_DIRECTORY"):
        where = f"CUDA_MPS_PIPE_DIRECTORY={environ['CUDA_MPS_PIPE_DIRECTORY']} is set"
    elif any(c.startswith("nvidia-cuda-mps") for c in commands):
        where = "nvidia-cuda-mps is running"
    if where:
        raise EnvironmentRefused(
            f"{where}: under MPS the GPU is shared and kernels of others may run beside ours; "
            "stop it (echo quit | nvidia-cuda-mps-control) and unset CUDA_MPS_PIPE_DIRECTORY"
        )


def strangers(pids: Iterable[int], own: int, own_context: bool) -> tuple[int, ...]:
    """The processes on the GPU that are not this one.

    With pid namespaces NVML may show this process under another number: where it has a context but its own
    pid is not listed, one entry is taken to be it.
    """
    listed = list(pids)
    others = sorted(p for p in listed if p != own)
    if own_context and own not in listed:
        others = others[1:]
    return tuple(others)


def arch_name(major: int, minor: int) -> str:
    """The architecture that kernels of a device are compiled for, e.g. ``sm_80``, ``sm_90a``."""
    number = major * 10 + minor
    return f"sm_{number}{'a' if number >= 90 else ''}"


def describe_device(device: torch.device | str) -> Device:
    """The device measured. Sizes are in binary units; what NVML would say is left empty where it is not to be
    had.
    """
    chosen = torch.device(device)
    if chosen.type != "cuda":
        return Device(
            name=cpu_name(_read("/proc/cpuinfo")) or platform.processor() or platform.machine(),
            arch="cpu",
            sms=torch.get_num_threads(),
            memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        )
    properties = torch.cuda.get_device_properties(chosen.index or 0)
    uuid = getattr(properties, "uuid", None)
    limit = _ask("nvmlDeviceGetEnforcedPowerLimit", nvml_handle(chosen))
    return Device(
        name=properties.name,
        arch=arch_name(properties.major, properties.minor),
        sms=properties.multi_processor_count,
        memory_gb=round(properties.total_memory / 2**30, 1),
        l2_mb=round(properties.L2_cache_size / 2**20, 1),
        driver=_text(_ask("nvmlSystemGetDriverVersion")),
        power_limit_w=None if limit is None else limit / 1e3,
        uuid=full_uuid(str(uuid)) if uuid is not None else "",
    )


def cpu_name(cpuinfo: str) -> str:
    """The model of a CPU from the text of ``/proc/cpuinfo``; empty where it does not say."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return ""


def versions() -> dict[str, str]:
    """Versions of what takes part in a run; parts that are not installed are left out.

    ``cublas-wheel`` is the installed wheel, ``cublas`` the one that this process has mapped.
    """
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name, distributions in _DISTRIBUTIONS.items():
        if version := next((v for d in distributions if (v := _distribution(d))), ""):
            found[name] = version
    if torch.version.cuda:
        found["cuda-runtime"] = torch.version.cuda
    if cublas := _mapped_cublas():
        found["cublas"] = cublas
    if nvrtc := _nvrtc():
        found["nvrtc"] = nvrtc
    if driver := _text(_ask("nvmlSystemGetDriverVersion")):
        found["driver"] = driver
    if number := _ask("nvmlSystemGetCudaDriverVersion_v2"):
        found["cuda-driver"] = f"{number // 1000}.{number % 1000 // 10}"
    return found


def environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that may bear on a result, sorted by name. Names that look like a secret's are never
    among them.
    """
    environ = os.environ if environ is None else environ
    return {
        name: environ[name]
        for name in sorted(environ)
        if any(fnmatch.fnmatchcase(name, p) for p in RECORDED)
        and not any(fnmatch.fnmatchcase(name.upper(), p) for p in SECRET)
    }


def git_state(root: Path = _ROOT) -> dict[str, str]:
    """``commit`` and ``dirty`` (``yes`` or ``no``) of the working tree at ``root``.

    Where ``root`` is no working tree of its own (installed, or copied to a node without git) it is the commit
    that ``CAKE_COMMIT`` tells, else empty.
    """
    top = _git(root, "rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != root.resolve():
        told = os.environ.get("CAKE_COMMIT", "")
        return {"commit": told} if told else {}
    commit = _git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    if not commit:
        return {}
    return {"commit": commit, "dirty": "yes" if _git(root, "status", "--porcelain") else "no"}


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or one that may not be read
        return ""
    return done.stdout.strip()


def _distribution(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _mapped_cublas() -> str:
    """The version of the cuBLAS that this process has loaded; empty where it has none, or more than one."""
    try:
        path = provenance.only_mapped("libcublas.so")
        return provenance.library_version(path, "cublasGetProperty") if path else ""
    except (OSError, RuntimeError, AttributeError):
        return ""


def _nvrtc() -> str:
    from cake.program.compiler import CompilerUnavailable, nvrtc_version

    try:
        return ".".join(map(str, nvrtc_version()))
    except CompilerUnavailable:
        return ""


def _ask(function: str, *arguments: Any) -> Any | None:
    """An answer of NVML; ``None`` where it has none, or where an argument is missing."""
    library = nvml()
    if library is None or None in arguments:
        return None
    try:
        return getattr(library, function)(*arguments)
    except library.NVMLError:
        return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def _mig_enabled(library: Any, handle: Any) -> bool:
    try:
        return bool(library.nvmlDeviceGetMigMode(handle)[0])
    except library.NVMLError:  # the board has no MIG
        return False


def _compute_pids(library: Any, handle: Any) -> tuple[int, ...]:
    try:
        return tuple(int(p.pid) for p in library.nvmlDeviceGetComputeRunningProcesses(handle))
    except library.NVMLError:
        return ()


def _context_exists(index: int) -> bool:
    """Whether this process already has the device's primary context. Makes none."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return torch.cuda.is_initialized()
    status, device = driver.cuDeviceGet(index)
    if int(status) != 0:
        return True
    status, _, active = driver.cuDevicePrimaryCtxGetState(device)
    return int(status) != 0 or bool(active)


def _commands() -> list[str]:
    """The names of the running processes that can be seen here, cut to 15 characters by the kernel."""
    return [_read(str(p)).strip() for p in Path("/proc").glob("[0-9]*/comm")]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
