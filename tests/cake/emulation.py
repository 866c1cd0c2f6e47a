"""Programs built by g++, with their instructions emulated (tests/cake/emulated)."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import cake
from cake.program.registry import Program

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
