"""Programs built by g++, with their instructions emulated (tests/cake/emulated)."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import cake
from cake.launch.tensormap import TensorMap, matrix
from cake.operand import ITEMSIZE, View
from cake.program.registry import Box, Program

EMULATED = Path(__file__).parent / "emulated"
CSRC = Path(cake.__file__).parent / "csrc"

FLAGS = (
    "-std=c++20",
    "-O1",
    "-w",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",
    "-fno-gnu-unique",
)


def build(folder: Path, p: Program, main: str, csrc: Path = CSRC) -> Any:
    """``emulate`` of ``emulated/<main>``, compiled with a program's defines in ``folder``."""
    library = folder / f"{p.name}-{csrc.name}-{len(list(folder.iterdir()))}.so"
    defines = [f"-D{define}={value}" for define, value in p.defines.items()]
    includes = [f"-I{EMULATED}", f"-I{csrc}"]
    command = ["g++", *FLAGS, *includes, *defines, str(EMULATED / main), "-o", library]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    emulate = ctypes.CDLL(str(library)).emulate
    emulate.restype = ctypes.c_char_p
    return emulate


class Map(ctypes.Structure):
    """``TensorMap`` of emulated/common/hopper.cuh."""

    _fields_ = (
        ("base", ctypes.c_longlong),
        ("inner", ctypes.c_longlong),
        ("lines", ctypes.c_longlong),
        ("stride", ctypes.c_longlong),
        ("box_inner", ctypes.c_int),
        ("box_lines", ctypes.c_int),
        ("size", ctypes.c_int),
        ("swizzle", ctypes.c_int),
        ("planes", ctypes.c_longlong),
        ("plane", ctypes.c_longlong),
    )


def encode(at: TensorMap, view: View, box: Box, address: int, *, batched: bool = False) -> None:
    """What the driver does, and what it refuses; ``batched``: a map of three axes."""
    (inner, lines), stride = matrix(view)
    size = ITEMSIZE[view.dtype]
    planes = plane = 0
    if batched:
        plane = view.batch_stride * size
        planes = view.batch if plane else 1
    assert address % 16 == 0 and stride % 16 == 0 and plane % 16 == 0
    assert inner > 0 and lines > 0 and max(box.inner, box.lines) <= 256
    made = Map(address, inner, lines, stride, box.inner, box.lines, size, box.swizzle, planes, plane)
    ctypes.memmove(ctypes.addressof(at), ctypes.addressof(made), ctypes.sizeof(made))
