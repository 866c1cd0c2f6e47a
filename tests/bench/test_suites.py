from __future__ import annotations

import pytest
import torch

from bench.suites import MODES, OPS, ROUTER_SHAPES, Row, Shape, load_shapes, router_rows
from bench.tensors import router_tensors


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
    "key", ["", "router-fwd-eager", "router-fwd-quick-T1-H2-N3", "router-up-eager-T1-H2-N3"]
)
def test_bad_key(key):
    with pytest.raises(ValueError, match="is no row key; needs suite-op-mode-T<n>-H<n>-N<n>"):
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
