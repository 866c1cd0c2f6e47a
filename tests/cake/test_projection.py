"""The contracts of projections: right on every view, nothing written beside it, what is wrong is said."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import cake
from cake import projection

from .projections import CALLS, KINDS, RAGGED, bits, call, fro, inputs, matrices, operands, padded, right

OUTPUTS = (torch.bfloat16, torch.float32)


@pytest.mark.parametrize("dtype", OUTPUTS, ids=str)
@pytest.mark.parametrize("heads", [0, 3])
@pytest.mark.parametrize("t", RAGGED)
@pytest.mark.parametrize("kind", KINDS)
def test_products(device, kind, t, heads, dtype):
    tensors = inputs(t, 40, 72, device, heads=heads)
    out = call(kind, tensors, out_dtype=dtype)
    assert out.dtype is dtype and right(out, *matrices(kind, tensors))


@pytest.mark.parametrize("k", [1, 7, 64, 100])
@pytest.mark.parametrize("a_unit", [-1, -2])
@pytest.mark.parametrize("b_unit", [-1, -2])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)], ids=str)
def test_layouts(device, k, a_unit, b_unit, transposed, lead):
    """Any unit axis, row strides padded with NaN, leading dimensions that are one batch."""
    torch.manual_seed(0)
    A = padded(*lead, 33, k, device=device) if a_unit == -1 else padded(*lead, k, 33, device=device).mT
    B = padded(*lead, k, 24, device=device) if b_unit == -1 else padded(*lead, 24, k, device=device).mT
    out = cake.dense_projection_gemm(A, B, transposed_out=transposed, out_dtype=torch.float32)
    assert fro(out.mT if transposed else out, A, B) <= 5e-5


@pytest.mark.parametrize("dtype", OUTPUTS, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("columns", [False, True])
def test_a_slice_of_a_wider_buffer_is_all_that_is_written(device, dtype, transposed, columns):
    torch.manual_seed(0)
    A, B = padded(33, 72, device=device), padded(72, 24, device=device)
    rows, cols = (24, 33) if transposed else (33, 24)
    buffer = torch.full((64, 80), float("nan"), device=device, dtype=dtype)
    view = buffer[16 : 16 + cols, 8 : 8 + rows].t() if columns else buffer[16 : 16 + rows, 8 : 8 + cols]
    got = cake.dense_projection_gemm(A, B, view, transposed_out=transposed)
    assert got is view and right(view.mT if transposed else view, A, B)
    assert int(buffer.isnan().sum()) == buffer.numel() - view.numel()


@pytest.mark.parametrize("kind", KINDS)
def test_heads_inside_a_wider_slot(device, kind):
    """[T, 64, 256] slots of tokens, of which a product reads or writes 192."""
    torch.manual_seed(0)
    slots = {
        name: torch.full((9, 64, 256), float("nan"), device=device, dtype=torch.bfloat16) for name in "XGO"
    }
    x, g = slots["X"][..., :192].permute(1, 0, 2), slots["G"][..., 64:].permute(1, 0, 2)
    x.copy_(torch.randn(x.shape))
    g.copy_(torch.randn(g.shape))
    tensors = {"X": x, "G": g, "W": padded(64, 192, 192, device=device)}
    before = {name: slots[name].clone() for name in "XG"}
    out = None if kind == "wgrad" else slots["O"][..., 32:224].permute(1, 0, 2)
    got = call(kind, tensors, out=out)
    assert right(got, *matrices(kind, tensors))
    if out is not None:
        assert slots["O"][..., :32].isnan().all() and slots["O"][..., 224:].isnan().all()
    assert all(torch.equal(bits(slots[name]), bits(before[name])) for name in "XG")


def test_one_matrix_for_all_of_a_batch(device):
    X, W = padded(5, 33, 64, device=device), padded(24, 64, device=device)
    assert right(cake.projection_forward(X, W.expand(5, -1, -1)), X, W.mT)
    with pytest.raises(ValueError, match=r"disagree about their batch: \[5\] and \[\] \(expand\(\)"):
        cake.projection_forward(X, W)
    with pytest.raises(ValueError, match="out is .*; it overlaps itself"):
        out = torch.empty(33, 24, device=device, dtype=torch.bfloat16).expand(5, -1, -1)
        cake.projection_forward(X, W.expand(5, -1, -1), out=out)


@pytest.mark.parametrize("heads", [0, 3])
@pytest.mark.parametrize("dtype", OUTPUTS, ids=str)
def test_nothing_to_sum_gives_zeros(device, heads, dtype):
    tensors = inputs(0, 40, 72, device, heads=heads)
    out = torch.full((*tensors["W"].shape,), float("nan"), device=device, dtype=dtype)
    assert not call("wgrad", tensors, out=out).any()
    tensors = inputs(9, 40, 0, device, heads=heads)
    assert not call("fwd", tensors, out_dtype=dtype).any() and call("dgrad", tensors).numel() == 0
    empty = {name: t[:0] for name, t in inputs(9, 40, 72, device, heads=3).items()}
    assert call("fwd", empty).shape == (0, 9, 40)
    assert cake.prepare_projection("fwd", X=empty["X"], W=empty["W"]).plans == ()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_stays_so(device, kind, value):
    tensors = inputs(33, 40, 72, device)
    first, _ = operands(kind, tensors)
    first[5, 3] = value
    a, b = matrices(kind, tensors)
    reached = ~(a.double() @ b.double()).isfinite()
    assert torch.equal(~call(kind, tensors).isfinite(), reached) and reached.any() and not reached.all()


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda x, w: (x.float(), w), TypeError, "X is float32.*; X must be bfloat16"),
        (lambda x, w: ([1], w), TypeError, "X must be a torch.Tensor, got list"),
        (lambda x, w: (x[0], w), ValueError, r"X is bfloat16\[64\].*; X must have 2 dimensions or more"),
        (lambda x, w: (x[:, :32], w), ValueError, r"X\[16, 32\] and W\[24, 64\] disagree about K: 32 and 64"),
        (lambda x, w: (x, w[:23]), ValueError, "W has N=23 features; N must be a positive multiple of 8"),
        (lambda x, w: (x[:, 1:], w[:, 1:]), ValueError, "its address is 2 bytes past a multiple of 16"),
        (lambda x, w: (x[:, ::2], w[:, ::2]), ValueError, "X is .*; one axis must have unit stride"),
        (
            lambda x, w: (x.flatten()[: 63 * 16].view(16, 63), w[:, :63]),
            ValueError,
            r"X is .*; stride\(0\) must be a multiple of 8 elements \(16 bytes\): pad that stride",
        ),
        (
            lambda x, w: (
                x.view(2, 8, 64).flatten()[:904].as_strided((2, 8, 56), (452, 56, 1)),
                w[None, :, :56],
            ),
            ValueError,
            "disagree about their batch",
        ),
    ],
)
def test_what_is_wrong_is_said(device, wrong, error, message):
    X = torch.randn(16, 64, device=device).bfloat16()
    W = torch.randn(24, 64, device=device).bfloat16()
    for _ in range(2):
        with pytest.raises(error, match=message):
            cake.projection_forward(*wrong(X, W))
    assert right(cake.projection_forward(X, W), X, W.t())


def test_leading_dimensions_that_are_no_batch(device):
    X = torch.zeros(4, 3, 16, 64, device=device, dtype=torch.bfloat16)
    W = torch.zeros(3, 4, 24, 64, device=device, dtype=torch.bfloat16)
    message = r"X is .*; its leading dimensions must be one batch with one stride"
    with pytest.raises(ValueError, match=message):
        cake.projection_forward(X.transpose(0, 1), W)
    odd = torch.zeros(4096, device=device, dtype=torch.bfloat16).as_strided((3, 16, 64), (1028, 64, 1))
    with pytest.raises(ValueError, match="the stride of its batch, 1028, must be a multiple of 8 elements"):
        cake.projection_forward(odd, W[:, 0])
    stride = torch.zeros(2048, device=device, dtype=torch.bfloat16).as_strided((2, 16, 60), (960, 60, 1))
    with pytest.raises(ValueError, match=r"stride\(1\) must be a multiple of 8"):
        cake.projection_forward(stride, W[:2, 0, :, :60])


def test_wrong_outputs(device):
    X, W = padded(16, 64, device=device), padded(24, 64, device=device)

    def new(*shape, dtype=torch.bfloat16):
        return torch.empty(*shape, device=device, dtype=dtype)

    with pytest.raises(
        ValueError, match=r"out has shape \[24, 16\], needs \[16, 24\] \(from X\[16, 64\] and"
    ):
        cake.projection_forward(X, W, out=new(24, 16))
    with pytest.raises(TypeError, match="out is float16.*; out must be bfloat16 or float32"):
        cake.projection_forward(X, W, out=new(16, 24, dtype=torch.float16))
    with pytest.raises(TypeError, match="out is bfloat16.*; out must be float32"):
        cake.projection_forward(X, W, out=new(16, 24), out_dtype=torch.float32)
    with pytest.raises(TypeError, match="out_dtype=torch.float16 for dW; needs bfloat16 or float32"):
        cake.projection_wgrad(padded(16, 24, device=device), X, out_dtype=torch.float16)
    with pytest.raises(ValueError, match=r"out has shape \[16, 24\], needs \[24, 16\]"):
        cake.dense_projection_gemm(X, W.t(), new(16, 24), transposed_out=True)
    with pytest.raises(ValueError, match="op='bwd'; needs one of fwd, dgrad, wgrad"):
        cake.prepare_projection("bwd", X=X, W=W)
    with pytest.raises(TypeError, match="dgrad needs G"):
        cake.prepare_projection("dgrad", X=X, W=W)
    assert right(cake.projection_forward(X, W, out=new(16, 24)), X, W.t())


def test_overlaps(device):
    """An output may be a slice beside its inputs, on the first call and on a repeat; it may not touch one."""
    slots = torch.randn(9, 4, 128, device=device).bfloat16()
    X, W = slots[..., :64].permute(1, 0, 2), padded(4, 64, 64, device=device)
    for _ in range(2):
        beside = slots[..., 64:].permute(1, 0, 2)
        assert right(cake.projection_forward(X, W, out=beside), X, W.mT)
        with pytest.raises(ValueError, match="out overlaps X in memory"):
            cake.projection_forward(X, W, out=slots[..., 32:96].permute(1, 0, 2))
    rows = torch.randn(2, 24, 64, device=device).bfloat16()
    with pytest.raises(ValueError, match="dX overlaps G in memory"):
        cake.prepare_projection("dgrad", G=rows[0], W=padded(64, 64, device=device), out=rows[0])


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("heads", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_prepared(device, kind, heads, given):
    tensors = inputs(600, 40, 72, device, heads=heads)
    expected = call(kind, tensors)
    out = torch.full_like(expected, float("nan")) if given else None
    needed = dict(
        zip({"fwd": "XW", "dgrad": "GW", "wgrad": "GX"}[kind], operands(kind, tensors), strict=True)
    )
    prepared = cake.prepare_projection(kind, **needed, out=out)
    (written,) = prepared.outputs.values()
    assert prepared.op == kind and (out is None or written is out)
    for _ in range(2):
        written.fill_(float("nan"))
        prepared()
        assert torch.equal(bits(written), bits(expected))
    (plan,) = prepared.plans
    assert str(plan).startswith(f"projection_{plan.program.family}_") and f"K{plan.problem.k}=" in str(plan)
    assert plan.partition.k == plan.problem.k and plan.program.out_dtype == "bf16"


@pytest.mark.parametrize("kind", KINDS)
def test_autograd_and_autocast_see_nothing(device, kind):
    tensors = inputs(33, 40, 72, device)
    expected = call(kind, tensors)
    leaves = {name: t.clone().requires_grad_() for name, t in tensors.items()}
    with torch.autocast(device.type, dtype=torch.float16):
        got = call(kind, leaves)
    assert torch.equal(bits(got), bits(expected)) and not got.requires_grad


def test_a_repeat_is_known_and_reads_its_own_tensors(device):
    """Found by one check where tensors have the properties of the last ones, wherever they lie."""
    cake.clear_caches()
    for seed, t in enumerate((33, 33, 33, 48, 33)):
        tensors = inputs(t, 40, 72, device, seed=seed)
        out = torch.full((t, 40), float("nan"), device=device, dtype=torch.bfloat16)
        for _ in range(3):
            assert right(
                cake.projection_forward(tensors["X"], tensors["W"], out=out), *matrices("fwd", tensors)
            )
    assert len(projection.entries) == 2 and projection.entries.last.keys() == {"fwd"}
    with pytest.raises(ValueError, match="out overlaps X"):
        square = torch.zeros(33, 72, device=device, dtype=torch.bfloat16)
        cake.projection_forward(square, torch.zeros(72, 72, device=device).bfloat16(), out=square)
    cake.clear_caches()
    assert not len(projection.entries) and not projection.entries.last


def test_options_have_entries_of_their_own(device):
    cake.clear_caches()
    A, B = padded(24, 24, device=device), padded(24, 24, device=device)
    out = torch.empty(24, 24, device=device, dtype=torch.bfloat16)
    for transposed in (False, False, True, True, False):
        cake.dense_projection_gemm(A, B, out, transposed_out=transposed)
        assert right(out.t() if transposed else out, A, B)
    assert len(projection.entries) == 2
    cake.projection_dgrad(A, B, out=out)  # the same product of the same tensors, by another name
    assert len(projection.entries) == 3 and right(out, A, B)
    assert right(cake.projection_dgrad(A, B, out=out, deterministic=False), A, B)


def test_the_cache_is_bounded(device, monkeypatch):
    cake.clear_caches()
    monkeypatch.setattr(projection.entries, "_limit", 4)
    for t in range(1, 9):
        tensors = inputs(t, 8, 8, device)
        assert right(call("fwd", tensors), *matrices("fwd", tensors))
    assert len(projection.entries) == 4


def test_threads(device):
    sets = [inputs(t, 40, 72, device, seed=t) for t in (8, 33, 40, 129)]
    expected = [[call(kind, tensors) for kind in KINDS] for tensors in sets]

    def work(i: int) -> list[torch.Tensor]:
        return [call(kind, sets[i]) for kind in KINDS for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        for i, results in enumerate(pool.map(work, range(4))):
            for j, result in enumerate(results):
                assert torch.equal(bits(result), bits(expected[i][j // 5]))


def test_every_entry_point_is_public():
    assert all(getattr(cake, f.__name__) is f for f in CALLS.values())
    for name in ("dense_projection_gemm", "prepare_projection", "PreparedProjection"):
        assert name in cake.__all__
