"""The componentwise error of both emulations on hard inputs, beside native FP32, on this machine's GPU:

python -m tests.cake.hard_inputs

A Markdown table for docs/kernels.md. Exit code 1 where an emulation misses its bound.
"""

from __future__ import annotations

import sys

import torch

from .products import BOUND, HARD, KINDS, call, componentwise, inputs, matrices, operands

T, N, H = 256, 256, 4096


def main() -> int:
    missed = False
    print("| input | op | bf16x3 | fp16x2 | native FP32 |\n|---|---|--:|--:|--:|")
    for name, harden in HARD.items():
        for kind in KINDS:
            tensors = inputs(T, N, H, "cuda")
            harden(kind, *operands(kind, tensors))
            results = [call(kind, tensors, emulation=e) for e in ("bf16x3", "fp16x2")]
            native = torch.mm(*matrices(kind, *operands(kind, tensors)))  # FP32: TF32 is off by default
            errors = [componentwise(kind, tensors, r) for r in (*results, native)]
            missed |= any(not e <= BOUND for e in errors[:2])
            print(f"| {name} | {kind} | " + " | ".join(f"{e:.1e}" for e in errors) + " |", flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
