"""The dense suite's rows, shapes and tensors."""

from __future__ import annotations

import pytest
import torch

from bench.bits import CHUNK, FOLDED, digest, fold
from bench.layers import LAYERS, TOKENS, DenseShape, Layer
from bench.presets import DENSE_GPU_PRESETS
from bench.suites import Row, dense_rows, load_shapes
from bench.tensors import tensors_of


def row(layer: Layer, t: int, op: str = "fwd", out: str = "bf16") -> Row:
    return Row("dense", op, "graph", DenseShape(layer, t), out)


def test_the_suite_has_294_rows_of_14_layers():
    rows = dense_rows()
    assert len(rows) == 294 == len({r.key for r in rows}) and DENSE_GPU_PRESETS["full"].rows() == rows
    assert {r.shape.T for r in rows} == set(TOKENS) and len(LAYERS) == 14
    assert len(dense_rows(outs=("f32",))) == 196


@pytest.mark.parametrize("out", ["bf16", "f32"])
@pytest.mark.parametrize("layer", [*LAYERS.values(), Layer("mine", 136, 72)], ids=lambda x: x.name)
def test_keys_are_read_back(layer, out):
    made = row(layer, 301, "dgrad", out)
    assert Row.from_key(made.key) == made


@pytest.mark.parametrize(
    "key", ["dense-fwd-graph-nobody-T64", "dense-bwd-graph-q_a-T64", "dense-fwd-slow-q_a-T1"]
)
def test_keys_of_no_row(key):
    with pytest.raises(ValueError, match="is no row key"):
        Row.from_key(key)


def test_shapes_of_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('shapes = [{layer = "q_a", T = 7}, {layer = "mine", T = 8, K = 136, N = 72}]')
    assert load_shapes(path, "dense") == [
        DenseShape(LAYERS["q_a"], 7),
        DenseShape(Layer("mine", 136, 72), 8),
    ]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('{layer = "q_a"}', "needs layer"),
        ('{layer = "q_a", T = 0}', "needs layer"),
        ('{layer = "a-b", T = 1, K = 8, N = 8}', "needs layer"),
        ('{layer = "q_a", T = 1, K = 8}', "both or neither"),
        ('{layer = "nobody", T = 1}', "without K and N; the suite has o_proj"),
        ('{layer = "mine", T = 1, K = 8, N = 9}', "N must be a multiple of 8"),
    ],
)
def test_bad_shapes_of_a_file(tmp_path, entry, message):
    path = tmp_path / "mine.toml"
    path.write_text(f"shapes = [{entry}]")
    with pytest.raises(ValueError, match=message):
        load_shapes(path, "dense")


def test_tensors_of_heads_are_slices_of_slots():
    layer = Layer("heads", 24, 16, heads=3, slot=32, weight="in_out")
    t = tensors_of(row(layer, 5), "cpu")
    assert t.X.shape == t.dX.shape == (3, 5, 24) and t.X.stride() == (32, 96, 1)
    assert t.W.shape == t.dW.shape == (3, 16, 24) and t.W.stride() == (384, 1, 16)
    assert t.G.shape == t.out.shape == (3, 5, 16) and t.G.stride() == (16, 48, 1)
    for kind, shape in (("fwd", (5, 16)), ("dgrad", (5, 24)), ("wgrad", (16, 24))):
        gemm = t.gemm(kind)
        assert (gemm.a.shape[1], gemm.b.shape[2]) == shape == tuple(gemm.out.shape[1:])
        assert gemm.a.shape[2] == gemm.b.shape[1] and bool(gemm.out.isnan().all())


def test_tensors_are_the_seeds():
    layer = LAYERS["indexer_hw"]
    one, again, other = (
        tensors_of(row(layer, t, out=out), "cpu") for t, out in ((9, "bf16"), (9, "f32"), (10, "bf16"))
    )
    assert torch.equal(one.X, again.X) and torch.equal(one.W, again.W) and not torch.equal(one.W, other.W)
    assert one.out.dtype is torch.bfloat16 and again.out.dtype is torch.float32
    assert float(one.W.float().std()) == pytest.approx(6144**-0.5, rel=0.02)


def test_a_fold_knows_every_word_and_its_place():
    words = torch.arange(1, 4097, dtype=torch.int32)
    raw = words.view(torch.uint8)
    same = fold(raw)
    assert torch.equal(fold(raw.clone()), same)
    for first, second in ((0, 1), (7, 4095), (100, 2000)):
        swapped = words.clone()
        swapped[first], swapped[second] = words[second], words[first]
        assert not torch.equal(fold(swapped.view(torch.uint8)), same)
    for bit in (0, 15, 31):
        changed = raw.clone()
        changed[4 * 77 + bit // 8] ^= 1 << bit % 8
        assert (fold(changed).view(torch.int64) != same.view(torch.int64)).all()


def test_large_outputs_are_told_apart():
    out = torch.zeros(FOLDED // 2 + 8, dtype=torch.bfloat16)
    assert out.numel() // 2 < CHUNK
    before = digest([out])
    assert digest([out.clone()]) == before
    out[-1] = 1.0
    assert digest([out]) != before != digest([out[:8]])
