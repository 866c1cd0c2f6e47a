"""The sm90 family's projection programs: defines, shared memory and boxes of csrc/sm90/projection.cu."""

from __future__ import annotations

from itertools import product

from ..operand import ITEMSIZE
from ..plan.dense import ProjectionKey
from ..plan.forms import BLOCK, FORMS, STEP, Form
from ..plan.planner import COUNTERS
from .template import Box, Program, source

#: Bytes of shared memory a CTA may have, and of them for barriers.
SMEM, BARRIERS = 227 * 1024, 1024
#: Bytes of a line in shared memory, whose 16-byte units trade places; elements of BF16 in it.
LINE = 128
WIDTH = LINE // 2
#: More stages have not made a difference.
MAX_STAGES = 10
#: The producer's warpgroup and the two that multiply.
THREADS = 3 * 128


def columns_of(form: Form, out_dtype: str) -> int:
    """Columns of a piece of output: 64 rows of it go through shared memory at a time."""
    return min(form.columns, 32 if out_dtype == "f32" else 64)


def stage_bytes(form: Form, b_unit_k: bool) -> int:
    """Of one stage of A and B."""
    lines = form.columns if b_unit_k else -(-form.columns // WIDTH) * STEP
    return form.rows * LINE + -(-lines * LINE // 1024) * 1024


def stages_and_buffers(form: Form, b_unit_k: bool, out_dtype: str) -> tuple[int, int]:
    """Stages of the ring, and pieces of output a warpgroup may have under way: all of its tile's where five
    stages are left, else two, unless they cost a stage of a short ring.
    """
    piece = BLOCK * columns_of(form, out_dtype) * ITEMSIZE[out_dtype]
    stage = stage_bytes(form, b_unit_k)

    def stages(buffers: int) -> int:
        return min(MAX_STAGES, (SMEM - BARRIERS - 2 * buffers * piece) // stage)

    pieces = form.height * -(-form.columns // columns_of(form, out_dtype))
    if stages(pieces) >= 5:
        return stages(pieces), pieces
    buffers = min(pieces, 2) if stages(2) == stages(1) or stages(2) >= 6 else 1
    return stages(buffers), buffers


def program(key: ProjectionKey) -> Program:
    """The program of a key. Raises ``LookupError`` for a form there is none of."""
    form = FORMS.get(key.form)
    if form is None or not form.stores(key.out_dtype):
        known = ", ".join(name for name, form in FORMS.items() if form.stores(key.out_dtype))
        raise LookupError(f"no program {key}; forms of sm90 with such outputs are {known}")
    stages, buffers = stages_and_buffers(form, key.b_unit_k, key.out_dtype)
    columns = columns_of(form, key.out_dtype)
    piece = BLOCK * columns * ITEMSIZE[key.out_dtype]
    line = columns * ITEMSIZE[key.out_dtype]
    if key.out_unit_n:
        out = Box(columns, BLOCK, LINE if line == LINE else 0)
    else:
        out = Box(LINE // ITEMSIZE[key.out_dtype], columns, LINE)
    defines = {
        "TEAMS": form.teams,
        "HEIGHT": form.height,
        "BN": form.columns,
        "STAGES": stages,
        "OUT_BUFFERS": buffers,
        "A_UNIT_K": int(key.a_unit_k),
        "B_UNIT_K": int(key.b_unit_k),
        "OUT_BF16": int(key.out_dtype == "bf16"),
        "OUT_UNIT_N": int(key.out_unit_n),
        "COUNTERS": COUNTERS,
    }
    return Program(
        name=str(key),
        kernel="projection_sm90",
        source=source("sm90/projection.cu"),
        defines=defines | ({"PLANTED": 1} if key.planted else {}),
        threads=THREADS,
        smem_bytes=stages * stage_bytes(form, key.b_unit_k) + 2 * buffers * piece + BARRIERS,
        tensor_core_ops=("HGMMA",),
        boxes=(
            Box(WIDTH, BLOCK, LINE),
            Box(WIDTH, form.columns if key.b_unit_k else STEP, LINE),
            out,
        ),
    )


def keys() -> list[ProjectionKey]:
    """The keys of all programs."""
    both = (True, False)
    return [
        ProjectionKey("sm90", form, a_k, b_k, out, rows)
        for form, a_k, b_k, out, rows in product(FORMS, both, both, ITEMSIZE, both)
        if FORMS[form].stores(out)
    ]
