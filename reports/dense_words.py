"""What the words of a dense run's report mean: its layers, ops, arms, forms and accuracy gates. Pure."""

from __future__ import annotations

from bench.model import Manifest
from reports import format as fmt
from reports.rows import NEW, Run

OPS = {
    "fwd": "`fwd` out[T,N] = X[T,K] W[N,K]^T",
    "dgrad": "`dgrad` dX[T,K] = G[T,N] W[N,K]",
    "wgrad": "`wgrad` dW[N,K] = G[T,N]^T X[T,K]",
}
ARMS = {
    NEW: "the code under test, BF16 products summed in FP32, deterministic=False",
    "torch_bf16": "torch.matmul in BF16: what a user's model calls",
    "cublas_bf16": "cublasGemmEx in BF16 (cublasGemmStridedBatchedEx of heads), FP32 sums",
    "cublaslt_bf16": "cuBLASLt in BF16",
    "cublaslt_bf16_first": "cuBLASLt in BF16, the first algorithm its heuristic names",
    "cublaslt_bf16_best": "cuBLASLt in BF16, the fastest of its first 8 algorithms by this run's search",
}
#: A row's accuracy gate by its output's dtype.
GATES = {
    "bf16": "at most 4e-3 of BF16 outputs, no element of which may be off by more than "
    "1e-2 + 1e-2 of its size",
    "f32": "at most 5e-5 of FP32 outputs",
}
DTYPES = {"bf16": "BF16", "f32": "FP32"}
#: What else there is to know of the best library call.
COPIES = (
    "A library gets the same views as cake; where it cannot take one, the copy is inside its time and its "
    "call says so"
)
#: What the TFLOP/s of a row count, and what they are a share of.
SPEED = (
    "2 T K N of every head (a product and a sum each) / us of cake; the measured peak is the most that any "
    "cell of this run with status ok reached on that GPU model, of whatever arm, and no data sheet's"
)


def form(m: Manifest) -> str:
    """In what form a run was timed, in words that stand beside its figures."""
    if m.pause_ms:
        return f"single launches after {m.pause_ms:g} ms of idle"
    return "sustained, in order-balanced passes" if m.form == "passes" else "sustained, in groups"


def form_in_full(m: Manifest) -> str:
    """The form of a run, and what it does to its figures."""
    if m.pause_ms:
        what = (
            "the device idles before each timed step, so its clock has recovered from the step before: what "
            "one launch takes by itself, and not under a long job's power limit"
        )
    else:
        what = (
            "steps follow each other as fast as the flush lets them, so long GEMMs run at the power cap: "
            "what training sees, and not a single launch after idle"
        )
    return f"{form(m)}: {what}. Figures of the two forms do not compare"


def layers(run: Run) -> str:
    """The layers of a run, its T, inputs and outputs."""
    products = list(dict.fromkeys(r.product for r in run.rows))
    outs = fmt.listed([f"{DTYPES.get(out, out)} (`{out}`)" for out in run.outs])
    return (
        f"K features in -> N out, of T tokens, BF16 inputs: {', '.join(products)}; "
        f"T {'/'.join(map(str, run.tokens))}. Of several heads each has a GEMM of its own, in one call. "
        f"X and G are normal, W is normal by K^-1/2; outputs are {outs}"
    )


def gate(run: Run) -> str:
    """The accuracy gates of the outputs that the run has."""
    return f"it must be {'; '.join(GATES.get(out, f'as asked of {out} outputs') for out in run.outs)}"
