from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from bench import accuracy
from bench.accuracy import (
    BUDGET,
    budget_of,
    errors_of,
    failure,
    measure,
    poison,
    references,
    relative_error,
    top_experts,
    worst,
)
from bench.layers import DenseShape, Layer
from bench.model import Accuracy
from bench.suites import Row, Shape
from bench.tensors import dense_tensors, router_tensors

ROW = Row("router", "2fwd+bwd", "eager", Shape(16, 256, 32))


@pytest.fixture
def tensors():
    return router_tensors(ROW, "cpu")


def fill(t, dtype=torch.float32):
    for kind in ("fwd", "dgrad", "wgrad"):
        gemm = t.gemm(kind)
        gemm.out.copy_(gemm.a.to(dtype) @ gemm.b.to(dtype))


def test_the_worst_of_several():
    one = Accuracy(rel_fro=1e-7, max_abs=3.0, top8_equal=True, top8_ties=2)
    other = Accuracy(rel_fro=2e-7, max_abs=1.0, top8_equal=False)
    assert worst([one]) == one
    assert worst([one, other]) == Accuracy(rel_fro=2e-7, max_abs=3.0, top8_equal=False, top8_ties=2)
    assert math.isnan(worst([one, Accuracy(rel_fro=math.nan, max_abs=0.0)]).rel_fro)


def test_fp32_passes_and_bf16_fails(tensors):
    refs = references(tensors)
    fill(tensors)
    good = measure(ROW, tensors, refs)
    assert good.rel_fro < BUDGET and good.top8_equal and failure(good) == ""
    fill(tensors, torch.bfloat16)
    bad = measure(ROW, tensors, refs)
    assert failure(bad).startswith("relative Frobenius error") and failure(bad).endswith(
        "is over the budget of 2e-06"
    )


def test_nan_never_passes(tensors):
    refs = references(tensors)
    fill(tensors)
    tensors.dW[3, 4] = math.nan
    result = measure(ROW, tensors, refs)
    assert result.rel_fro == math.inf
    assert failure(result) == "the output has elements that are not finite"


def test_poison_covers_the_outputs_of_the_op_alone(tensors):
    fill(tensors)
    poison(Row("router", "bwd", "eager", ROW.shape), tensors)
    assert bool(torch.isfinite(tensors.out).all())
    assert not bool(torch.isfinite(tensors.dX).any()) and not bool(torch.isfinite(tensors.dW).any())


def test_the_worst_gemm_counts(tensors):
    refs = references(tensors)
    fill(tensors)
    tensors.dX.mul_(1.5)
    assert measure(ROW, tensors, refs).rel_fro == pytest.approx(0.5, rel=1e-3)
    assert measure(Row("router", "fwd", "eager", ROW.shape), tensors, refs).rel_fro < BUDGET


def test_zero_reference():
    zero = torch.zeros(2, 3, dtype=torch.float64)
    assert relative_error(zero.float(), zero) == (0.0, 0.0)
    assert relative_error(zero.float() + 1, zero) == (math.inf, math.inf)


def logits(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_top8_equal_whatever_the_order_within():
    reference = logits(list(range(12)))
    out = reference.clone().float()
    out[0, 11], out[0, 10] = 10, 11
    assert top_experts(out, reference) == (True, 0)


def test_a_swap_within_the_budget_is_a_counted_tie():
    row = [0.0, 0.0, 0.0, 8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 1.0 + 1e-5]
    reference = logits(row, row)
    norm = math.sqrt(sum(x * x for x in row))
    assert 1e-5 < BUDGET * norm
    out = reference.clone().float()
    out[1, 4], out[1, 11] = 1.1, 0.9
    assert top_experts(out, reference) == (True, 1)


def test_a_swap_beyond_the_budget_fails():
    row = [0.0, 0.0, 0.0, 8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 1.01]
    reference = logits(row)
    out = reference.clone().float()
    out[0, 4], out[0, 11] = 1.1, 0.9
    assert top_experts(out, reference) == (False, 0)


def test_a_tie_does_not_hide_a_second_wrong_expert():
    row = [0.0, 0.0, 0.0, 8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 1.0 + 1e-6]
    reference = logits(row)
    out = reference.clone().float()
    out[0, 4], out[0, 11], out[0, 10], out[0, 0] = 1.1, 0.9, -1.0, 9.0
    assert top_experts(out, reference) == (False, 0)


def test_fewer_experts_than_eight():
    reference = logits([3.0, 1.0, 2.0])
    assert top_experts(reference.float(), reference) == (True, 0)
    assert top_experts(torch.full((1, 3), math.nan), reference) == (False, 0)


DENSE = Row("dense", "wgrad", "eager", DenseShape(Layer("heads", 32, 24, heads=3, slot=40), 50), "bf16")


def exactly(row, off=()):
    """The tensors of a row with outputs that are the references rounded, but for elements ``off``."""
    t = dense_tensors(row, "cpu")
    refs = references(t)
    for kind in ("fwd", "dgrad", "wgrad"):
        t.output(kind).copy_(refs.by_kind[kind])
    for place, by in off:
        t.output(row.op)[place] += by
    return t, refs


@pytest.mark.parametrize("op", ["fwd", "dgrad", "wgrad"])
@pytest.mark.parametrize("out", ["bf16", "f32"])
def test_a_dense_output_is_judged_by_its_dtype(op, out):
    row = replace(DENSE, op=op, out=out)
    t, refs = exactly(row)
    found = measure(row, t, refs, budget_of(row))
    assert budget_of(row) == {"bf16": 4e-3, "f32": 5e-5}[out]
    assert failure(found, budget_of(row)) == "" and found.top8_equal is None
    assert (found.element is None) == (out == "f32")
    t.output(op).mul_(1.005 if out == "bf16" else 1.0001)
    assert failure(measure(row, t, refs), budget_of(row)).startswith("relative Frobenius error")


def test_one_element_of_a_bf16_output_that_is_off_fails():
    row = replace(DENSE, shape=DenseShape(Layer("plain", 128, 96), 400))
    t, refs = exactly(row)
    place = tuple(int(i) for i in (refs.by_kind["wgrad"].abs() > 20).nonzero()[0])
    for by, fine in ((0.0, True), (0.6, False)):
        t.dW[place] += by
        found = measure(row, t, refs)
        assert found.rel_fro < budget_of(row)
        said = failure(found, budget_of(row))
        assert (said == "") if fine else said.startswith("an element is off by ")


@pytest.mark.parametrize("block", [1, 100, 1 << 22])
def test_errors_do_not_depend_on_the_blocks(block, monkeypatch):
    t, refs = exactly(DENSE, off=[((1, 3, 5), 0.5)])
    whole = errors_of(t.dW, refs.by_kind["wgrad"])
    monkeypatch.setattr(accuracy, "BLOCK", block)
    assert errors_of(t.dW, refs.by_kind["wgrad"]) == pytest.approx(whole, rel=1e-12)
    difference = t.dW.double() - refs.by_kind["wgrad"]
    assert whole.rel_fro == pytest.approx(float(difference.norm() / refs.by_kind["wgrad"].norm()))
    assert whole.max_abs == float(difference.abs().max())
    t.dW[2, 1, 1] = math.nan
    assert errors_of(t.dW, refs.by_kind["wgrad"]) == (math.inf, math.inf, math.inf)


def test_an_empty_output_has_no_error():
    empty = torch.empty(0, 8)
    assert errors_of(empty, empty.double()) == (0.0, 0.0, 0.0)
