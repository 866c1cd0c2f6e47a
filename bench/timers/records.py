"""CUPTI's activity buffers, read in place: a record becomes an :class:`Activity`, and nothing else is made.

cupti-python makes numpy records of every activity and looks up each field by name: on an H200's host that was
49 of 63 s of a profiled run. So the buffers are handed to CUPTI here; the layout of the records is still
cupti-python's, whose version goes with the library's.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, NamedTuple

from bench.timers.attribution import Activity, normalise

#: One buffer holds some 30,000 records; a visit of 22 steps makes 100 to 300.
BUFFER_BYTES = 8 << 20
SUCCESS, MAX_LIMIT_REACHED = 0, 12
#: The fields that are read, in the order of :class:`Activity`; a kernel's name is a pointer.
_FIELDS = ("start", "end", "correlation_id", "graph_id")
_FORMATS = {"u": {4: "I", 8: "Q"}, "i": {4: "i", 8: "q"}}

_Requested = ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.POINTER(ctypes.c_size_t),
)
_Completed = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


class Layout(NamedTuple):
    """Where a record's fields lie: a format of all of them by address, and how to put them in order."""

    format: struct.Struct
    pick: Callable[[tuple[Any, ...]], tuple[Any, ...]]

    @classmethod
    def of(cls, dtype: Any, fields: tuple[str, ...]) -> Layout:
        """The layout of ``fields`` in a numpy structure; ``KeyError`` if it lacks one."""
        by_address = sorted(fields, key=lambda name: int(dtype.fields[name][1]))
        text, at = "=", 0
        for name in by_address:
            kind, offset = dtype.fields[name][:2]
            text += f"{offset - at}x{_FORMATS[kind.kind][kind.itemsize]}"
            at = offset + kind.itemsize
        return cls(struct.Struct(text), itemgetter(*map(by_address.index, fields)))


def layouts(cupti: Any) -> dict[int, tuple[Layout, str | None]]:
    """By activity kind: the layout of its records in this cupti-python, and the name they all have (``None``
    for kernels, which have their own).
    """
    kernel = Layout.of(newest_dtype(cupti, "kernel"), (*_FIELDS, "name"))
    kinds = cupti.ActivityKind
    return {
        int(kinds.CONCURRENT_KERNEL): (kernel, None),
        int(kinds.KERNEL): (kernel, None),
        int(kinds.MEMCPY): (Layout.of(newest_dtype(cupti, "memcpy"), _FIELDS), "memcpy"),
        int(kinds.MEMSET): (Layout.of(newest_dtype(cupti, "memset"), _FIELDS), "memset"),
    }


def newest_dtype(cupti: Any, record: str) -> Any:
    """The layout that the library uses: of ``activity_kernel10_dtype`` and older ones, the newest."""
    versions = {
        int(found[1]): name
        for name in dir(cupti)
        if (found := re.fullmatch(rf"activity_{record}(\d+)_dtype", name))
    }
    if not versions:
        raise RuntimeError(f"this cupti-python has no activity_{record}<version>_dtype")
    return getattr(cupti, versions[max(versions)])


class Buffers:
    """The buffers of a process, lent to CUPTI and read when it gives them back.

    ``library`` is the CUPTI that is traced with. Every record of a known kind goes to ``deliver``, in
    whichever thread CUPTI likes; what goes wrong there goes to ``fail``, since CUPTI must not see it.
    """

    def __init__(
        self,
        library: Any,
        known: dict[int, tuple[Layout, str | None]],
        deliver: Callable[[Activity], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._library, self._known = library, known
        self._deliver, self._fail = deliver, fail
        self._free: list[Any] = []
        self._lent: dict[int, Any] = {}
        self._callbacks = _Requested(self._requested), _Completed(self._completed)

    def register(self) -> None:
        """Make CUPTI use these buffers; once a process. ``RuntimeError`` if it refuses."""
        status = self._library.cuptiActivityRegisterCallbacks(*self._callbacks)
        if status != SUCCESS:
            raise RuntimeError(f"cuptiActivityRegisterCallbacks returned status {status}")

    def _requested(self, buffer: Any, size: Any, most: Any) -> None:
        memory = self._free.pop() if self._free else ctypes.create_string_buffer(BUFFER_BYTES)
        address = ctypes.addressof(memory)
        self._lent[address] = memory
        buffer[0], size[0], most[0] = address, BUFFER_BYTES, 0

    def _completed(self, context: object, stream: int, address: int, size: int, valid: int) -> None:
        try:
            for activity in self._read(address, valid):
                self._deliver(activity)
        except BaseException as e:
            self._fail(e)
        finally:
            self._free.append(self._lent.pop(address))

    def _read(self, address: int, valid: int) -> Iterator[Activity]:
        memory, record = self._lent[address], ctypes.c_void_p()
        following, here = self._library.cuptiActivityGetNextRecord, ctypes.byref(record)
        buffer, valid_size = ctypes.c_void_p(address), ctypes.c_size_t(valid)
        while valid:
            status = following(buffer, valid_size, here)
            if status == MAX_LIMIT_REACHED:
                return
            if status != SUCCESS or record.value is None:
                raise RuntimeError(f"cuptiActivityGetNextRecord returned status {status}")
            offset = record.value - address
            known = self._known.get(int.from_bytes(memory[offset : offset + 4], "little"))
            if known is None:
                continue
            layout, name = known
            start, end, correlation, graph, *pointer = layout.pick(layout.format.unpack_from(memory, offset))
            if name is None:
                own = normalise(ctypes.string_at(pointer[0]).decode(errors="replace")) if pointer[0] else ""
                yield Activity(own, start, end, correlation, graph)
            else:
                yield Activity(name, start, end, correlation, graph)
