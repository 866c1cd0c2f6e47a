"""The CUDA driver, reached through cuda-python: load a cubin, launch a kernel. Contexts are torch's own."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch

#: What the driver says where a thread has no context.
INVALID_CONTEXT = 201


class DriverUnavailable(RuntimeError):
    """No NVIDIA driver, or no cuda-python to reach it; the message says which and what to do."""


class DriverError(RuntimeError):
    """A driver call failed; the message names the call and CUDA's own error."""


@cache
def driver() -> Any:
    """The initialised driver API. Raises :class:`DriverUnavailable`."""
    try:
        from cuda.bindings import driver as api
    except ImportError as e:
        raise DriverUnavailable(
            f"launching kernels needs cuda-python: pip install 'cake-bench[cuda]' ({e})"
        ) from e
    try:
        status = api.cuInit(0)[0]
    except RuntimeError as e:  # the library itself is not there
        raise DriverUnavailable(f"no NVIDIA driver on this machine ({e}); use tensors on the CPU") from e
    if int(status) != 0:
        raise DriverUnavailable(f"the NVIDIA driver does not start: {status!r}; use tensors on the CPU")
    return api


def check(call: str, result: tuple[Any, ...]) -> Any:
    """The value of a driver call's result tuple. Raises :class:`DriverError` naming the call."""
    status, *values = result
    if int(status) != 0:
        raise DriverError(f"{call} failed: {status.name} ({int(status)})")
    return values[0] if values else None


def bind_thread(device: int) -> bool:
    """Give this thread torch's (primary) context if it has none: a thread that torch never used has none.

    Whether it had none. Raises :class:`DriverError`.
    """
    api = driver()
    if int(check("cuCtxGetCurrent", api.cuCtxGetCurrent())) != 0:
        return False
    handle = check("cuDeviceGet", api.cuDeviceGet(device))
    context = check("cuDevicePrimaryCtxRetain", api.cuDevicePrimaryCtxRetain(handle))
    check("cuCtxSetCurrent", api.cuCtxSetCurrent(context))
    return True


@contextmanager
def relaxed_capture(api: Any) -> Iterator[None]:
    """Let this thread make calls that a capture under way, its own or another's, would forbid or break on.

    Loading a module is one: it allocates, but is no part of the stream's work.
    """
    relaxed = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    exchange = api.cuThreadExchangeStreamCaptureMode
    before = check("cuThreadExchangeStreamCaptureMode", exchange(relaxed))
    try:
        yield
    finally:
        check("cuThreadExchangeStreamCaptureMode", exchange(before))


def load_kernel(cubin: bytes, name: str, *, device: int, smem_bytes: int = 0) -> Any:
    """Load a cubin into a device's context and return its kernel, allowed ``smem_bytes`` of dynamic shared
    memory.

    ``device`` is torch's index. The module stays loaded for the life of the process. Raises
    :class:`DriverError`.
    """
    api = driver()
    with torch.cuda.device(device), relaxed_capture(api):
        bind_thread(device)
        module = check(f"cuModuleLoadData({name})", api.cuModuleLoadData(cubin))
        function = check(f"cuModuleGetFunction({name})", api.cuModuleGetFunction(module, name.encode()))
        if (
            smem_bytes
        ):  # beyond 48 KiB, of which the kernel's own static memory is a part, it has to be asked for
            attribute = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(
                f"cuFuncSetAttribute({name}, {smem_bytes} bytes of shared memory)",
                api.cuFuncSetAttribute(function, attribute, smem_bytes),
            )
    return function


class Launcher:
    """A kernel of a device with its grid and its parameter block, ready to be enqueued again and again.

    ``parameters`` is a ctypes structure, the kernel's single by-value parameter; the caller may change its
    fields between launches. ``pdl`` asks for programmatic dependent launch, which needs compute capability
    9.0; ``cooperative`` that all CTAs run at once, or none.
    """

    def __init__(
        self,
        kernel: Any,
        device: int,
        grid: tuple[int, int, int],
        threads: int,
        smem_bytes: int,
        parameters: ctypes.Structure,
        *,
        pdl: bool = False,
        cooperative: bool = False,
    ) -> None:
        api = driver()
        self._device = device
        self._parameters = parameters
        self._arguments = (ctypes.c_void_p * 1)(ctypes.addressof(parameters))
        self._config = config = api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = smem_bytes
        config.hStream = 0
        #: The raw stream of the next launch.
        self.stream = 0
        attributes = []
        if pdl:
            attribute = api.CUlaunchAttribute()
            attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        if cooperative:
            attribute = api.CUlaunchAttribute()
            attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            attributes.append(attribute)
        if attributes:
            config.attrs = attributes
        config.numAttrs = len(attributes)
        #: One launch: a tuple of its status.
        self.enqueue = partial(api.cuLaunchKernelEx, config, kernel, ctypes.addressof(self._arguments), 0)

    def launch(self, stream: int) -> None:
        """Enqueue on a raw stream of the device, the current one. Raises :class:`DriverError`."""
        if stream != self.stream:
            self.move(stream)
        (status,) = self.enqueue()
        if status:
            self.retry(status)

    def move(self, stream: int) -> None:
        """Let the next launch be on another stream."""
        self._config.hStream = stream
        self.stream = stream

    def retry(self, status: Any) -> None:
        """What follows a failed launch: another one, if the thread had no context. Raises
        :class:`DriverError`.
        """
        # To ask before every launch would take 0.3 us.
        if int(status) == INVALID_CONTEXT and bind_thread(self._device):
            (status,) = self.enqueue()
        check("cuLaunchKernelEx", (status,))
