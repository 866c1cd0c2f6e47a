from __future__ import annotations

import pytest
import torch

from bench.layers import LAYERS, DenseShape, Layer, dense_shapes
from bench.model import Cell
from bench.suites import (
    MODES,
    OPS,
    ROUTER_SHAPES,
    Row,
    Shape,
    dense_rows,
    load_shapes,
    router_rows,
    row_of,
    rows_of,
)
from bench.tensors import router_tensors, shape_of


def test_router_suite_has_90_rows_of_9_shapes_with_unique_keys():
    rows = router_rows()
    assert len(rows) == 90 and len({row.key for row in rows}) == 90
    assert len(ROUTER_SHAPES) == 9 and len(OPS) == 5 and len(MODES) == 2


def test_rows_of_a_shape_stand_together():
    shapes = [row.shape for row in router_rows()]
    assert shapes == sorted(shapes, key=list(dict.fromkeys(shapes)).index)


@pytest.mark.parametrize("row", router_rows())
def test_key_names_the_row(row):
    assert Row.from_key(row.key) == row


@pytest.mark.parametrize(
    "key",
    [
        "",
        "router-fwd-eager",
        "router-fwd-quick-T1-H2-N3",
        "router-up-eager-T1-H2-N3",
        "dense-bwd-graph-q_a-T64",
        "dense-fwd-graph-q_z-T64",
        "dense-fwd-graph-q_a-T64-f16",
    ],
)
def test_bad_key(key):
    with pytest.raises(
        ValueError, match="is no row key; needs suite-op-mode-T<n>-H<n>-N<n> or suite-op-mode-layer-T<n>"
    ):
        Row.from_key(key)


def test_inputs_depend_on_the_shape_alone_and_outputs_are_poisoned():
    a = router_tensors(Row("router", "fwd", "eager", Shape(8, 32, 16)), "cpu")
    b = router_tensors(Row("router", "bwd", "graph", Shape(8, 32, 16)), "cpu")
    c = router_tensors(Row("router", "fwd", "eager", Shape(16, 32, 16)), "cpu")
    assert all(torch.equal(getattr(a, n), getattr(b, n)) for n in "XWG")
    assert not torch.equal(a.W, c.W)
    assert all(bool(torch.isnan(t).all()) for t in (a.out, a.dX, a.dW))


def test_scales_of_the_inputs():
    t = router_tensors(Row("router", "fwd", "eager", Shape(64, 512, 64)), "cpu")
    assert [round(float(x.std()), 4) for x in (t.X, t.W, t.G)] == pytest.approx([1.0, 0.02, 0.001], rel=0.05)


@pytest.mark.parametrize("kind", ["fwd", "dgrad", "wgrad"])
def test_gemms_are_views_with_the_right_product(kind):
    t = router_tensors(Row("router", "bwd", "eager", Shape(8, 32, 16)), "cpu")
    gemm = t.gemm(kind)
    gemm.out.copy_(gemm.a @ gemm.b)
    wanted = {"fwd": t.X @ t.W.t(), "dgrad": t.G @ t.W, "wgrad": t.G.t() @ t.X}[kind]
    torch.testing.assert_close(t.output(kind), wanted)
    own = {x.data_ptr() for x in (t.X, t.W, t.G)}
    assert {gemm.a.data_ptr(), gemm.b.data_ptr()} <= own


def test_shapes_from_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("shapes = [{T = 7, H = 64}, {T = 1, H = 32, N = 8}]")
    assert load_shapes(path) == [Shape(7, 64, 256), Shape(1, 32, 8)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shapes = 3", "needs a non-empty list"),
        ("", "needs a non-empty list"),
        ("shapes = [{T = 1}]", r"shapes\[0\] is {'T': 1}; needs positive integers T, H and optionally N"),
        ("shapes = [{T = 0, H = 4}]", r"shapes\[0\] is"),
        ("shapes = [{T = 1, H = 4, K = 4}]", r"shapes\[0\] is"),
        ("shapes = [{T = 4, H = 4, N = 12}]", r"shapes\[0\] has N = 12; N must be a multiple of 8"),
        ("shapes = [", "cannot read shapes from"),
    ],
)
def test_bad_shapes_file(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_shapes(path)


def test_missing_shapes_file(tmp_path):
    with pytest.raises(
        ValueError, match=r"cannot read shapes from .*absent\.toml: No such file or directory$"
    ):
        load_shapes(tmp_path / "absent.toml")
    with pytest.raises(ValueError, match=r"cannot read shapes from \S*: Is a directory$"):
        load_shapes(tmp_path)


def test_a_shapes_file_that_is_no_text(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"shapes = [\xff\xfe]")
    with pytest.raises(ValueError, match=r"cannot read shapes from .*mine\.toml: it is not UTF-8 text"):
        load_shapes(path)


def test_dense_suite_has_294_rows_of_98_shapes_with_unique_keys():
    rows = dense_rows()
    assert len(rows) == 294 and len({row.key for row in rows}) == 294
    assert len(LAYERS) == 14 and len(dense_shapes()) == 98
    assert {row.mode for row in rows} == {"graph"} and {row.out for row in rows} == {"bf16"}


OWN = Row("dense", "wgrad", "eager", DenseShape(Layer("mine", 136, 72), 33), "f32")


@pytest.mark.parametrize("row", [*dense_rows(modes=MODES, outs=("bf16", "f32"))[::7], OWN])
def test_a_dense_key_names_the_row(row):
    assert Row.from_key(row.key) == row


def test_dense_keys():
    assert Row("dense", "dgrad", "graph", DenseShape(LAYERS["q_a"], 64), "bf16").key == (
        "dense-dgrad-graph-q_a-T64"
    )
    assert OWN.key == "dense-wgrad-eager-mine-T33-K136-N72-f32"


def test_a_forward_output_is_bf16_alone():
    keys = [row.key for row in dense_rows([OWN.dense], outs=("f32",))]
    assert keys == [f"dense-{op}-graph-mine-T33-K136-N72-f32" for op in ("dgrad", "wgrad")]
    assert len(rows_of([OWN.dense, Shape(64, 128)], ("fwd",), ("eager",), ("bf16",))) == 2


def test_a_row_is_of_one_suite():
    with pytest.raises(TypeError, match="is no row of the router suite"):
        _ = OWN.router
    with pytest.raises(TypeError, match="is no row of the dense suite"):
        _ = router_rows()[0].dense


@pytest.mark.parametrize("row", [OWN, *dense_rows()[:14], *router_rows()[:3]])
def test_a_cell_tells_its_row(row):
    facts = dict.fromkeys(Cell.model_fields) | shape_of(row)
    facts["heads"] = facts["heads"] or 1
    cell = Cell.model_construct(**{**facts, "suite": row.suite, "op": row.op, "mode": row.mode})
    assert row_of(cell) == row


def test_dense_shapes_from_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        "shapes = [{layer = 'mine', T = 7, K = 64, N = 8}, {layer = 'q_a', T = 5}, "
        "{layer = 'mla_k', T = 3, K = 192, N = 512}]"
    )
    assert load_shapes(path, "dense") == [
        DenseShape(Layer("mine", 64, 8), 7),
        DenseShape(LAYERS["q_a"], 5),
        DenseShape(LAYERS["mla_k"], 3),
    ]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("T = 1", r"shapes\[0\] is {'T': 1}; needs layer \(letters, digits and _\), a positive T, and K"),
        ("layer = 'q_a'", r"shapes\[0\] is {'layer': 'q_a'}; needs layer"),
        ("layer = 5, T = 1, K = 8, N = 8", r"shapes\[0\] is .*needs layer \(letters"),
        ("layer = 'a-b', T = 1, K = 8, N = 8", r"shapes\[0\] is .*needs layer"),
        ("layer = 'a', T = 1, K = 8", r"shapes\[0\] is .*K and N both or neither"),
        ("layer = 'a', T = 0, K = 8, N = 8", r"shapes\[0\] is .*a positive T"),
        ("layer = 'a', T = 1", r"names layer 'a' without K and N; the suite has o_proj, q_a"),
        ("layer = 'a', T = 1, K = 8, N = 12", r"has N = 12; N must be a multiple of 8"),
        ("layer = 'q_a', T = 1, K = 8, N = 8", r"layer 'q_a' is 6144->2048 and 8->8; give one of them anoth"),
        ("layer = 'a', T = 1, K = 8, N = 8}, {layer = 'a', T = 1, K = 8, N = 16", r"8->8 and 8->16; give"),
    ],
)
def test_bad_dense_shapes_file(tmp_path, entry, message):
    path = tmp_path / "mine.toml"
    path.write_text(f"shapes = [{{{entry}}}]")
    with pytest.raises(ValueError, match=message):
        load_shapes(path, "dense")
