"""The dense suite's layers and the keys of its rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.layers import LAYERS, TOKENS, DenseShape, Layer
from bench.presets import DENSE_GPU_PRESETS
from bench.suites import MODES, SUITE_OPS, Row, dense_rows


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


NAMES = st.one_of(st.sampled_from(list(LAYERS)), st.from_regex(r"[A-Za-z0-9_]+", fullmatch=True))
SIZES = st.integers(1, 100_000)


@given(
    layer=st.one_of(st.sampled_from(list(LAYERS.values())), st.builds(Layer, NAMES, SIZES, SIZES)),
    tokens=SIZES,
    op=st.sampled_from(SUITE_OPS["dense"]),
    mode=st.sampled_from(MODES),
    out=st.sampled_from(["bf16", "f32"]),
)
def test_any_layers_keys_are_read_back(layer, tokens, op, mode, out):
    made = Row("dense", op, mode, DenseShape(layer, tokens), out)
    assert Row.from_key(made.key) == made


def test_other_sizes_of_a_name_are_another_shape():
    own, others = DenseShape(LAYERS["q_a"], 64), DenseShape(Layer("q_a", 6144, 2056), 64)
    assert (str(own), str(others)) == ("q_a-T64", "q_a-T64-K6144-N2056")
    assert row(own.layer, 64).seed != row(others.layer, 64).seed


@pytest.mark.parametrize(
    "key", ["dense-fwd-graph-nobody-T64", "dense-bwd-graph-q_a-T64", "dense-fwd-slow-q_a-T1"]
)
def test_keys_of_no_row(key):
    with pytest.raises(ValueError, match="is no row key"):
        Row.from_key(key)
