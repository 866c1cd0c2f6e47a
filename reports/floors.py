"""The times no kernel can go under on a device: reading its inputs once, and its tensor cores' products.

One line a device that we have measured; on any other device the floors are left out and the report says so.
"""

from __future__ import annotations

from dataclasses import dataclass

_X, _W, _G = ("T", "H"), ("N", "H"), ("T", "N")
#: The operands each op reads, by their dimensions: each distinct tensor once, however many GEMMs use it.
READS = {
    "fwd": (_X, _W),
    "dgrad": (_G, _W),
    "wgrad": (_G, _X),
    "bwd": (_G, _W, _X),
    "2fwd+bwd": (_X, _W, _G),
}

#: GEMMs of T x H x N in an op.
GEMMS = {"fwd": 1, "dgrad": 1, "wgrad": 1, "bwd": 2, "2fwd+bwd": 4}

#: Bytes of an FP32 element, and products of BF16 parts that stand for one FP32 product (BF16x3: 6 of 9).
FP32_BYTES, BF16X3_PRODUCTS = 4, 6


@dataclass(frozen=True)
class Floors:
    """A device, measured: a cold read takes ``fill_us`` + bytes / ``read_tb_s``; dense BF16 peak."""

    device: str
    fill_us: float
    read_tb_s: float
    bf16_tflops: float
    source: str

    def read_us(self, op: str, T: int, H: int, N: int) -> float:
        """Time (us) to read the op's distinct FP32 inputs once, from cold L2."""
        size = {"T": T, "H": H, "N": N}
        moved = sum(size[a] * size[b] for a, b in READS[op]) * FP32_BYTES
        return self.fill_us + moved / self.read_tb_s / 1e6

    def tensor_us(self, op: str, T: int, H: int, N: int) -> float:
        """Time (us) of the op's products in six BF16 products each, at the tensor cores' measured peak."""
        return 2 * T * H * N * GEMMS[op] * BF16X3_PRODUCTS / self.bf16_tflops / 1e6


#: Fill and rate of the read: the line through nine cold float4 sweeps of all SMs, 5 to 31 MB (4.3 to 12.8 us,
#: residuals up to 0.3 us); the 4.3 TB/s of long sweeps is out of reach for reads this short.
MEASURED = (
    Floors(
        "H200",
        fill_us=2.4,
        read_tb_s=3.0,
        bf16_tflops=790.0,
        source="cold float4 sweep; BF16 torch.mm, measured",
    ),
)


def floors_of(device: str) -> Floors | None:
    """The floors of a device by its name, or ``None`` where it was never measured."""
    return next((f for f in MEASURED if f.device in device), None)
