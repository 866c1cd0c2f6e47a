"""What cached launches must never do: compute on another tensor's data, or by another view's strides."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import cake
from cake import router

from .products import KINDS, call, error, inputs, operands, reference


@pytest.mark.parametrize("kind", KINDS)
def test_freed_and_reused_addresses(device, kind):
    """The allocator gives the next tensors addresses of the last ones, with other shapes or other values."""
    for seed, t in enumerate((24, 40, 24, 40, 24)):
        tensors = inputs(t, 16, 64, device, seed=seed)
        assert error(call(kind, tensors), reference(kind, tensors)) <= 4e-7
        del tensors


@pytest.mark.parametrize("kind", KINDS)
def test_views_of_one_shape(device, kind):
    """Equal shapes, dtypes and devices; other strides, offsets and unit axes."""
    tensors = inputs(24, 16, 64, device)
    expected = reference(kind, tensors)

    def views(x: torch.Tensor) -> list[torch.Tensor]:
        rows, cols = x.shape
        wide = torch.full((rows, cols + 16), float("nan"), device=device)
        late = torch.full((rows + 3, cols), float("nan"), device=device)
        turned = torch.empty(cols, rows + 8, device=device)
        copies = [wide[:, 8 : cols + 8], wide[:, :cols].clone(), late[3:], turned[:, :rows].t()]
        return [copy.copy_(x) for copy in copies]

    first, second = operands(kind, tensors)
    call_kind = {"fwd": cake.router_forward, "dgrad": cake.router_dgrad, "wgrad": cake.router_wgrad}[kind]
    for _ in range(2):  # made, then found
        for a, b in itertools.product(views(first), views(second)):
            assert error(call_kind(a, b), expected) <= 4e-7


def test_what_is_found_again_is_what_torch_says_the_tensors_are(device):
    """One entry a call's properties, found with one check where they are the last ones; autograd is none of
    them, and a tensor that was changed in place is another one.
    """
    cake.clear_caches()
    X, W = torch.randn(24, 64, device=device), torch.randn(32, 64, device=device)
    out = torch.empty(24, 32, device=device)
    wide = torch.empty(24, 40, device=device)[:, :32]
    expected = X.double().cpu() @ W.double().cpu().t()
    for target in (out, out, wide, wide, out):
        target.fill_(float("nan"))
        assert error(cake.router_forward(X, W, out=target), expected) <= 4e-7
    assert len(router._entries) == 2
    for w in (W, torch.nn.Parameter(W), W):
        assert error(cake.router_forward(X, w, out=out), expected) <= 4e-7
    with torch.inference_mode():
        assert error(cake.router_forward(X, W, out=out), expected) <= 4e-7
    assert len(router._entries) == 2
    X.resize_(8, 64)
    out.resize_(8, 32).fill_(float("nan"))
    assert error(cake.router_forward(X, W, out=out), expected[:8]) <= 4e-7
    assert len(router._entries) == 3
    with pytest.raises(TypeError, match="X must be float32 or bfloat16"):
        cake.router_forward(X.double(), W, out=out)


def test_an_output_that_moves_onto_an_input_is_refused(device):
    """Addresses are looked at whenever they are others than before."""
    memory = torch.randn(3, 64, 64, device=device)
    X, W, out = memory
    for _ in range(2):
        cake.router_forward(X, W, out=out)
    for _ in range(2):
        with pytest.raises(ValueError, match="out overlaps X in memory"):
            cake.router_forward(X, W, out=X)
    cake.router_forward(X, W, out=out)


def test_a_repeated_backward_pass(device, emulation):
    """Known again with its tensors elsewhere, too; two shapes in turns; what is wrong is still said."""
    cake.clear_caches()
    sets = [inputs(t, 16, 64, device, seed=t) for t in (24, 40)]
    outs = [(torch.empty_like(s["X"]), torch.empty_like(s["W"])) for s in sets]
    for i in (0, 0, 0, 1, 1, 1, 0, 1, 0):
        G, X, W = (sets[i][name] for name in "GXW")
        for moved in (False, True):
            x, (dx, dw) = (X.clone(), map(torch.clone, outs[i])) if moved else (X, outs[i])
            for out in (dx, dw):
                out.fill_(float("nan"))
            got = cake.router_backward(G, x, W, out=(dx, dw), emulation=emulation)
            assert got[0] is dx and got[1] is dw
            assert error(dx, reference("dgrad", sets[i])) <= 4e-7
            assert error(dw, reference("wgrad", sets[i])) <= 4e-7
    assert router._entries.last.keys() == {"bwd"} and len(router._entries) == 4
    G, X, W = (sets[0][name] for name in "GXW")
    dx, dw = outs[0]
    for out, message in (((X, dw), "dX overlaps X"), ((dx, W), "dW overlaps W"), ((dx, None), None)):
        if message:
            with pytest.raises(ValueError, match=message):
                cake.router_backward(G, X, W, out=out, emulation=emulation)
        else:
            assert cake.router_backward(G, X, W, out=out, emulation=emulation)[0] is dx
    with pytest.raises(ValueError, match=r"dX has shape \[24, 64\], needs \[24, 48\]"):
        cake.router_backward(G, X, W[:, :48], out=(dx, dw), emulation=emulation)


def test_options_are_looked_at_as_they_are_given(device):
    """True is equal to 1, but is no number of splits; what has no order or no hash is no option."""
    cake.clear_caches()
    X, W = torch.randn(24, 64, device=device), torch.randn(32, 64, device=device)
    out = torch.empty(24, 32, device=device)
    for splits in (None, None, 1, 1, None):
        cake.router_forward(X, W, out=out, splits=splits)
    for wrong in (True, [1], "1"):
        with pytest.raises(ValueError, match="splits="):
            cake.router_forward(X, W, out=out, splits=wrong)
    with pytest.raises(ValueError, match="emulation="):
        cake.router_forward(X, W, out=out, emulation=["bf16x3"])
    with pytest.raises(TypeError, match="float32"):
        cake.router_forward(X, W, out=out, out_dtype=torch.float64)
    cake.clear_caches()
    assert not len(router._entries) and not router._entries.last


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_nested_tensor_is_an_error_also_where_a_repeat_is_looked_for(device, place):
    X, W = torch.randn(24, 64, device=device), torch.randn(32, 64, device=device)
    tensors = [X, W, torch.empty(24, 32, device=device)]
    for _ in range(3):
        cake.router_forward(*tensors[:2], out=tensors[2])
    tensors[place] = torch.nested.nested_tensor([tensors[place]])
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        cake.router_forward(*tensors[:2], out=tensors[2])


def test_arrays_are_no_options_also_where_a_repeat_is_looked_for(device):
    X, W = torch.randn(24, 64, device=device), torch.randn(32, 64, device=device)
    out = torch.empty(24, 32, device=device)
    for _ in range(3):
        cake.router_forward(X, W, out=out)
    for options in ({"splits": np.array([1, 2])}, {"emulation": np.array(["bf16x3"])}):
        with pytest.raises((ValueError, TypeError), match="splits=|emulation=|unhashable"):
            cake.router_forward(X, W, out=out, **options)


def test_what_is_cleared_while_a_call_is_under_way_stays_cleared(device, monkeypatch):
    X, W = torch.randn(24, 64, device=device), torch.randn(32, 64, device=device)
    out = torch.empty(24, 32, device=device)
    cake.clear_caches()
    cake.router_forward(X, W, out=out)
    run = router.Entry.run
    monkeypatch.setattr(router.Entry, "run", lambda self, *a: (run(self, *a), cake.clear_caches()))
    cake.router_forward(X, W, out=out)
    assert not len(router._entries) and not router._entries.last


def test_a_tensor_given_twice(device):
    X = torch.randn(24, 64, device=device)
    out = torch.empty(24, 24, device=device)
    for _ in range(4):
        assert error(cake.router_forward(X, X, out=out), X.double().cpu() @ X.double().cpu().t()) <= 4e-7


def test_ten_thousand_shapes(device):
    """The cache stays bounded; a shape that was dropped is made anew, and is right."""
    cake.clear_caches()
    X, W = (torch.randn(rows, 512, device=device) for rows in (200, 400))
    shapes = [(t, h, n) for t in range(1, 201) for h in (4, 8) for n in range(8, 208, 8)]
    assert len(shapes) == 10_000
    for i, (t, h, n) in enumerate([*shapes, *shapes[:20]]):
        x, w = X[:t, :h], W[:n, :h]
        out = cake.router_forward(x, w)
        if i % 500 == 0 or i >= 10_000:
            assert error(out, x.double().cpu() @ w.double().cpu().t()) <= 4e-7
        assert len(router._entries) <= router.MAX_ENTRIES
    assert len(router._entries) == router.MAX_ENTRIES


def test_a_backward_pass_shares_one_gradient_s_launch_with_several_of_the_other(device, emulation):
    """G and W of one layout, X of two: the launch of both gradients is that of these very ones."""
    tensors = inputs(24, 16, 64, device)
    other = inputs(24, 16, 64, device, seed=1)["X"]
    wide = torch.full((24, 72), float("nan"), device=device)[:, :64].copy_(other)
    for X in (tensors["X"], wide, tensors["X"], wide):
        now = tensors | {"X": X}
        dx, dw = cake.router_backward(now["G"], now["X"], now["W"], emulation=emulation)
        assert error(dx, reference("dgrad", now)) <= 4e-7 and error(dw, reference("wgrad", now)) <= 4e-7
        alone = cake.router_dgrad(now["G"], now["W"], emulation=emulation)
        assert torch.equal(dx, alone) and torch.equal(dw, cake.router_wgrad(now["G"], X, emulation=emulation))


@pytest.mark.gpu
@pytest.mark.parametrize("moved", [False, True])
def test_a_repeat_in_a_thread_that_never_used_the_gpu(moved):
    """It has no context of its own; with tensors elsewhere the maps are pointed there, too."""
    tensors = inputs(64, 256, 4096, "cuda:0")
    X, W, out = tensors["X"], tensors["W"], torch.full((64, 256), float("nan"), device="cuda:0")
    for _ in range(3):
        expected = cake.router_forward(X, W, out=out).clone()
    x, target = (X.clone(), torch.full_like(out, float("nan"))) if moved else (X, out.fill_(float("nan")))
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(cake.router_forward, x, W, out=target).result()
    torch.cuda.synchronize()
    assert torch.equal(target, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_outlives_the_entry_that_it_captured(monkeypatch, kind):
    monkeypatch.setattr(router, "_entries", router.Entries(2))
    tensors = inputs(64, 256, 4096, "cuda:0")
    out = call(kind, tensors)
    expected = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(kind, tensors, out=out)
    for t in range(8, 80, 8):  # the entry goes, its workspace is outgrown
        call(kind, inputs(t, 256, 4096, "cuda:0"))
    cake.clear_caches()
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["fwd", "dgrad", "wgrad", "bwd", "2fwd+bwd"])
def test_a_graph_replays_on_another_stream(op, emulation):
    tensors = inputs(64, 256, 4096, "cuda:0")
    prepared = cake.prepare_router(
        op, **{name: t for name, t in tensors.items() if name in router_needs(op)}, emulation=emulation
    )
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prepared()
    other = torch.cuda.Stream()
    results = []
    for stream in (torch.cuda.current_stream(), other, other, torch.cuda.current_stream()):
        torch.cuda.synchronize()
        for out in prepared.outputs.values():
            out.fill_(float("nan"))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            graph.replay()
        torch.cuda.synchronize()
        results.append({name: out.clone() for name, out in prepared.outputs.items()})
    for name, out in results[0].items():
        kind = {"out": "fwd", "dX": "dgrad", "dW": "wgrad"}[name]
        assert error(out, reference(kind, tensors)) <= 4e-7
        assert all(torch.equal(r[name], out) for r in results)


def router_needs(op: str) -> set[str]:
    return {"fwd": {"X", "W"}, "dgrad": {"G", "W"}, "wgrad": {"G", "X"}}.get(op, {"G", "X", "W"})
