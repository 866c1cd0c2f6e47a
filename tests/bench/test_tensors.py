"""The tensors of dense rows (bench.tensors): views as they are in a model's memory."""

from __future__ import annotations

import pytest
import torch

from bench.layers import LAYERS, DenseShape, Layer
from bench.suites import Row
from bench.tensors import OUTPUTS, dense_tensors, shape_of, tensors_of

PLAIN = Layer("plain", 64, 24)
#: Like mla_k and mla_v, small.
SLOTTED = Layer("slotted", 24, 32, heads=3, slot=40, weight="in_out")
HEADS = Layer("heads", 32, 16, heads=3)


def row(layer, op="fwd", out="bf16", tokens=33):
    return Row("dense", op, "eager", DenseShape(layer, tokens), out)


@pytest.mark.parametrize("out", OUTPUTS)
@pytest.mark.parametrize("layer", [PLAIN, SLOTTED, HEADS])
def test_shapes_dtypes_and_poison(layer, out):
    t = dense_tensors(row(layer, out=out), "cpu")
    heads = (layer.heads,) if layer.heads > 1 else ()
    x, g, w = (*heads, 33, layer.K), (*heads, 33, layer.N), (*heads, layer.N, layer.K)
    assert (t.X.shape, t.W.shape, t.G.shape) == (x, w, g)
    assert (t.dX.shape, t.dW.shape, t.out.shape) == (x, w, g)
    assert {v.dtype for v in (t.X, t.W, t.G)} == {torch.bfloat16}
    assert {v.dtype for v in (t.out, t.dX, t.dW)} == {OUTPUTS[out]}
    assert all(bool(v.isnan().all()) for v in (t.out, t.dX, t.dW))
    assert all(bool(v.isfinite().all()) for v in (t.X, t.W, t.G))


def test_heads_are_token_major_slices_of_slots():
    t = dense_tensors(row(SLOTTED), "cpu")
    assert t.X.stride() == t.dX.stride() == (40, 3 * 40, 1)
    assert t.G.stride() == t.out.stride() == (32, 3 * 32, 1)
    assert t.W.stride() == t.dW.stride() == (24 * 32, 1, 32)  # in memory [heads, in, out]
    assert dense_tensors(row(HEADS), "cpu").W.stride() == (16 * 32, 32, 1)


@pytest.mark.parametrize("kind", ["fwd", "dgrad", "wgrad"])
@pytest.mark.parametrize("layer", [PLAIN, SLOTTED, HEADS])
def test_gemms_are_views_with_the_right_product(layer, kind):
    t = dense_tensors(row(layer, kind), "cpu")
    gemm = t.gemm(kind)
    assert gemm.a.shape[-1] == gemm.b.shape[-2] and gemm.out is t.output(kind)
    assert gemm.out.shape == (*gemm.a.shape[:-1], gemm.b.shape[-1])
    own = {v.data_ptr() for v in (t.X, t.W, t.G)}
    assert {gemm.a.data_ptr(), gemm.b.data_ptr()} <= own


def test_inputs_depend_on_the_shape_alone_and_have_their_scales():
    one = dense_tensors(row(Layer("plain", 512, 256), tokens=128), "cpu")
    other = tensors_of(row(Layer("plain", 512, 256), "wgrad", "f32", tokens=128), "cpu")
    assert all(torch.equal(getattr(one, n), getattr(other, n)) for n in "XWG")
    more = dense_tensors(row(Layer("plain", 512, 256), tokens=129), "cpu")
    assert not torch.equal(one.W, more.W)
    scales = [float(v.float().std()) for v in (one.X, one.G, one.W)]
    assert scales == pytest.approx([1.0, 1.0, 512**-0.5], rel=0.03)


def test_what_facts_say_of_a_shape():
    said = shape_of(row(LAYERS["mla_k"], tokens=64))
    assert said == {"T": 64, "H": None, "N": 512, "layer": "mla_k", "K": 192, "out": "bf16", "heads": 64}
