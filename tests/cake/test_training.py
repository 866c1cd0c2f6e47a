"""router_linear: gradients, views, and what torch builds around an operator; on the CPU and on a GPU."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.decorators import mark_unbacked
from torch._dynamo.testing import CompileCounterWithBackend
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import cake
from cake import training
from tests.cake.products import error, inputs

OPTIONS = (True, "bf16x3")
compiled = partial(torch.compile, fullgraph=True, backend="aot_eager")


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def calls(monkeypatch):
    """The eager calls that are made, with their tensors."""
    made = []

    def record(name, call, *tensors, **options):
        made.append((name, *tensors))
        return call(*tensors, **options)

    for name in ("router_forward", "router_dgrad", "router_wgrad", "router_backward"):
        monkeypatch.setattr(training, name, partial(record, name, getattr(cake, name)))
    return made


def leaves(t, n, h, device, *, bf16=False, lead=None, seed=0):
    """x, w and the gradient of the logits; ``lead``: leading dimensions of x and g other than [T]."""
    tensors = inputs(t, n, h, device, bf16=bf16, seed=seed)
    lead = (t,) if lead is None else lead
    x, g = tensors["X"].view(*lead, h), tensors["G"].view(*lead, n)
    return x.requires_grad_(), tensors["W"].requires_grad_(), g


def gradients(call, x, w, g):
    """The logits and both gradients of a call."""
    out = call(x, w)
    return out, *torch.autograd.grad(out, (x, w), g)


def expected(x, w, g):
    """The same in FP64 on the CPU."""
    x, w = (t.detach().double().cpu().requires_grad_() for t in (x, w))
    return gradients(nn.functional.linear, x, w, g.double().cpu())


def check(results, x, w, g):
    for result, exact in zip(results, expected(x, w, g), strict=True):
        assert result.shape == exact.shape
        rounding = 4e-3 if result.dtype is torch.bfloat16 else 4e-7
        assert error(result.detach(), exact.detach()) <= rounding


def same(results, others):
    return all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(results, others, strict=True))


# --- gradients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(
    ("t", "n", "h", "lead"),
    [
        (64, 72, 512, None),
        (63, 8, 515, None),
        (60, 32, 130, (3, 20)),
        (24, 64, 64, (2, 3, 4)),
        (1, 8, 64, ()),
    ],
    ids=str,
)
def test_gradients(device, t, n, h, lead, deterministic, bf16):
    x, w, g = leaves(t, n, h, device, bf16=bf16, lead=lead)
    linear = partial(cake.router_linear, deterministic=deterministic)
    results = gradients(linear, x, w, g)
    assert [r.dtype for r in results] == [torch.float32, x.dtype, torch.float32]
    check(results, x, w, g)
    if deterministic:
        X, W, G = x.detach().view(t, h), w.detach(), g.view(t, n)
        calls = (cake.router_forward(X, W), *cake.router_backward(G, X, W, out_dtype=x.dtype))
        assert all(torch.equal(r.view(c.shape), c) for r, c in zip(results, calls, strict=True))


@pytest.mark.parametrize("route", ["eager", "compiled"])
@pytest.mark.parametrize(
    ("wanted", "call", "kept"),
    [("x", "router_dgrad", "w"), ("w", "router_wgrad", "x"), ("xw", "router_backward", "xw")],
)
def test_only_what_is_wanted_is_computed_and_kept(device, calls, fresh_dynamo, wanted, call, kept, route):
    x, w, g = leaves(16, 32, 64, device, lead=(2, 8))
    x, w = x.detach().requires_grad_("x" in wanted), w.detach().requires_grad_("w" in wanted)
    saved = []
    linear = cake.router_linear if route == "eager" else compiled(cake.router_linear)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):
        out = linear(x, w)
    assert sorted(saved) == sorted({"x": x.shape, "w": w.shape}[name] for name in kept)
    out.backward(g)
    assert [name for name, *_ in calls] == ["router_forward", call]
    exact = dict(zip("xw", expected(x, w, g)[1:], strict=True))
    for name, t in (("x", x), ("w", w)):
        assert (t.grad is not None) == (name in wanted)
        assert t.grad is None or error(t.grad, exact[name]) <= 4e-7


def test_nothing_is_kept_where_no_gradient_is_wanted(device):
    x, w, _ = leaves(16, 32, 64, device)
    with torch.no_grad():
        assert cake.router_linear(x, w).grad_fn is None
    with torch.inference_mode():
        assert cake.router_linear(x, w).is_inference()
    assert not cake.router_linear(x.detach(), w.detach()).requires_grad


@pytest.mark.parametrize("lead", [(0,), (0, 3), (3, 0)], ids=str)
def test_no_tokens(device, lead):
    x = torch.empty(*lead, 64, device=device, requires_grad=True)
    w = torch.randn(32, 64).to(device).requires_grad_()
    out = cake.router_linear(x, w)
    assert out.shape == (*lead, 32)
    out.sum().backward()
    assert x.grad.shape == x.shape and w.grad.shape == w.shape and not w.grad.any()


G_LAYOUTS = {
    "sum": lambda g: g.new_ones(()).expand(g.shape),
    "one row for all": lambda g: g[:1].expand(g.shape),
    "one number a row": lambda g: g[:, :1].expand(g.shape),
    "transposed": lambda g: g.t().contiguous().t(),
    "a slice": lambda g: torch.cat([g, g], 1)[:, 8 : 8 + g.shape[1]],
    "a misaligned slice": lambda g: torch.cat([g, g], 1)[:, 1 : 1 + g.shape[1]],
    "misaligned": lambda g: torch.cat([g.new_zeros(1), g.flatten()])[1:].view(g.shape),
}


@pytest.mark.parametrize("layout", G_LAYOUTS)
def test_incoming_gradients_of_any_layout(device, calls, layout):
    x, w, g = leaves(24, 32, 64, device)
    g = G_LAYOUTS[layout](g)
    check(gradients(cake.router_linear, x, w, g), x, w, g)
    read = calls[1][1]
    assert (read.data_ptr() == g.data_ptr()) == (layout in ("transposed", "a slice")), "copied iff it must be"


def test_gradients_of_leading_dimensions_that_do_not_flatten(device):
    x, w, g = leaves(24, 32, 64, device, lead=(4, 6))
    g = g.transpose(0, 1).contiguous().transpose(0, 1)
    check(gradients(cake.router_linear, x, w, g), x, w, g)


def test_logits_may_be_modified_in_place(device):
    x, w, g = leaves(24, 32, 64, device, lead=(4, 6))
    check(gradients(lambda x, w: cake.router_linear(x, w).mul_(2).div_(2), x, w, g), x, w, g)


def test_second_derivatives_are_refused(device):
    x, w, _ = leaves(24, 32, 64, device)
    for linear in (cake.router_linear, lambda x, w: training._operator(x, w, *OPTIONS)):
        (dx,) = torch.autograd.grad(linear(x, w).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiate twice"):
            dx.sum().backward()


def test_a_weight_changed_before_the_backward_pass_is_noticed(device):
    x, w, _ = leaves(24, 32, 64, device)
    out = cake.router_linear(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


# --- views and errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[..., 64:128],
        lambda x: x[:, :3],
        lambda x: x[0].t(),
        lambda x: x[:1].transpose(0, 1)[..., :64],
        lambda x: x[2, 1],
    ],
    ids=["columns", "one axis", "transposed", "an axis of size 1", "one token"],
)
def test_views_are_read_in_place(device, calls, view):
    buffer = torch.randn(1 if view(torch.empty(4, 8, 128)).dim() == 3 else 4, 8, 128).to(device)
    x = view(buffer)
    w = torch.randn(32, x.shape[-1]).to(device)
    out = cake.router_linear(x, w)
    assert error(out, x.double().cpu() @ w.double().cpu().t()) <= 4e-7
    assert calls[0][1].data_ptr() == x.data_ptr()


@pytest.mark.parametrize(
    "view", [lambda x: x.transpose(0, 1), lambda x: x[:, :5]], ids=["transposed", "rows"]
)
def test_views_that_do_not_flatten_are_refused(device, calls, fresh_dynamo, view):
    x, w = view(torch.randn(4, 8, 64).to(device)), torch.randn(32, 64).to(device)
    wanted = r"X is float32\[.*\] with strides .*; its leading dimensions must flatten .* X.contiguous\(\)"
    with pytest.raises(ValueError, match=wanted):
        cake.router_linear(x, w)
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match=wanted):
        compiled(cake.router_linear)(x, w)
    assert not calls


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"x": "x"}, TypeError, "X must be a torch.Tensor, got str"),
        ({"w": None}, TypeError, "W must be a torch.Tensor, got NoneType"),
        ({"x": torch.ones(())}, ValueError, "X must have at least 1 dimension"),
        ({"x": torch.ones(4, 64).half()}, TypeError, "X must be float32 or bfloat16"),
        ({"w": torch.ones(32, 64).bfloat16()}, TypeError, "W must be float32"),
        ({"w": torch.ones(32, 60)}, ValueError, "disagree about H: 64 and 60"),
        ({"w": torch.ones(33, 64)}, ValueError, "N must be a positive multiple of 8"),
        ({"emulation": "fp8"}, ValueError, "emulation='fp8'"),
    ],
)
def test_errors_name_what_is_needed(fresh_dynamo, change, kind, message):
    call = {"x": torch.ones(4, 64), "w": torch.ones(32, 64)} | change
    x, w = call.pop("x"), call.pop("w")
    with pytest.raises(kind, match=message):
        cake.router_linear(x, w, **call)
    if isinstance(x, torch.Tensor) and isinstance(w, torch.Tensor):  # found while tracing
        with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match=message):
            compiled(cake.router_linear)(x, w, **call)


# --- autocast -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("route", ["eager", "operator", "compiled"])
def test_autocast_changes_nothing(device, fresh_dynamo, route, bf16):
    x, w, g = leaves(24, 32, 64, device, bf16=bf16)
    linear = {
        "eager": cake.router_linear,
        "operator": lambda x, w: training._operator(x, w, *OPTIONS),
        "compiled": compiled(cake.router_linear),
    }[route]
    with torch.autocast(device.type, torch.bfloat16):
        results = gradients(linear, x, w, g)
    assert same(results, gradients(cake.router_linear, x, w, g))
    check(results, x, w, g)


def test_eager_calls_do_not_see_autocast(device):
    x, w, g = leaves(24, 32, 64, device)
    call = partial(cake.router_backward, g, x, w)
    with torch.autocast(device.type, torch.bfloat16):
        assert same(call(), call())
        check((cake.router_forward(x, w), *call()), x, w, g)


# --- as an operator -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("lead", [None, (4, 6)], ids=str)
def test_operators(device, lead, bf16):
    x, w, g = leaves(24, 32, 64, device, bf16=bf16, lead=lead)
    torch.library.opcheck(training._operator, (x, w, *OPTIONS))
    x, w = x.detach(), w.detach()
    dgrad, wgrad, backward = training._OPERATORS
    torch.library.opcheck(dgrad, (g, w, x.dtype, *OPTIONS))
    torch.library.opcheck(wgrad, (g, x, *OPTIONS))
    torch.library.opcheck(backward, (g, x, w, *OPTIONS))


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_padded_strides_are_known_while_tracing(device, bf16):
    """dX and dW of H=67 have padded rows; opcheck's clones for AOT would lose those of X and W."""
    x, w, g = leaves(24, 32, 67, device, bf16=bf16, lead=(4, 6))
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(training._operator, (x, w, *OPTIONS), test_utils=tests)
    torch.library.opcheck(training._OPERATORS[2], (g, x.detach(), w.detach(), *OPTIONS), test_utils=tests)


def test_modes_see_the_operator(device):
    seen = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x, w, g = leaves(24, 32, 64, device)
    with Log():
        results = gradients(cake.router_linear, x, w, g)
    assert [s for s in seen if s.startswith("cake.")] == [
        "cake.router_linear.default",
        "cake.router_linear_backward.default",
    ]
    assert same(results, gradients(cake.router_linear, x, w, g))
    traced = make_fx(lambda x, w: gradients(cake.router_linear, x, w, g))(x, w)
    assert same(traced(x, w), results)


def test_two_versions_have_operators_of_their_own(tmp_path):
    path = tmp_path / "other_cake"
    shutil.copytree(Path(cake.__file__).parent, path)
    spec = importlib.util.spec_from_file_location(
        path.name, path / "__init__.py", submodule_search_locations=[str(path)]
    )
    other = sys.modules[path.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(other)
        theirs = sys.modules["other_cake.training"]
        assert training._operator is torch.ops.cake.router_linear.default
        assert theirs._operator is torch.ops.other_cake.router_linear.default
        x, w, g = leaves(24, 32, 64, "cpu")
        for linear in (
            other.router_linear,
            partial(theirs._operator, deterministic=True, emulation="bf16x3"),
        ):
            assert same(gradients(linear, x, w, g), gradients(cake.router_linear, x, w, g))
    finally:
        for name in [n for n in sys.modules if n.split(".")[0] == path.name]:
            del sys.modules[name]


# --- torch.compile, checkpointing, training -----------------------------------------------------------------


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("lead", [None, (4, 6)], ids=str)
@pytest.mark.parametrize("h", [64, 67])
def test_compiled(device, fresh_dynamo, h, lead, bf16):
    """One graph, the eager results."""
    x, w, g = leaves(24, 32, h, device, bf16=bf16, lead=lead)

    def block(linear, x, w):
        return linear(x, w).softmax(-1)

    results = gradients(compiled(partial(block, cake.router_linear)), x, w, g)
    assert same(results, gradients(partial(block, cake.router_linear), x, w, g))


@pytest.mark.parametrize("lead", [(), (3,)], ids=str)
def test_compiled_once_for_all_numbers_of_tokens(device, fresh_dynamo, lead):
    """The first is taken as a constant, the second makes it symbolic; 0 and 1 are dynamo's own cases."""
    w = torch.randn(32, 64).to(device).requires_grad_()
    counter = CompileCounterWithBackend("aot_eager")
    linear = torch.compile(cake.router_linear, fullgraph=True, backend=counter)
    for t in (5, 8, 100, 3, 64):
        x = torch.randn(*lead, t, 64).to(device).requires_grad_()
        g = torch.randn(*lead, t, 32).to(device)
        check(gradients(linear, x, w, g), x, w, g)
    assert counter.frame_count == 2


@pytest.mark.parametrize("lead", [(), (3,)], ids=str)
def test_compiled_once_for_an_unknown_number_of_tokens(device, fresh_dynamo, lead):
    """Nothing is decided by T: 0 and 1 are no cases of their own."""
    w = torch.randn(32, 64).to(device).requires_grad_()
    counter = CompileCounterWithBackend("aot_eager")
    linear = torch.compile(cake.router_linear, fullgraph=True, backend=counter)
    for t in (7, 1, 64, 0):
        x = torch.randn(t, *lead, 64).to(device).requires_grad_()
        mark_unbacked(x, 0)
        out = linear(x, w)
        dx, dw = torch.autograd.grad(out.sum(), (x, w))
        assert out.shape == (t, *lead, 32) and dx.shape == x.shape
        rows, columns = w.detach().double().sum(0), x.detach().double().flatten(0, -2).sum(0)
        torch.testing.assert_close(dx.double(), rows.expand(dx.shape), rtol=1e-6, atol=1e-5)
        torch.testing.assert_close(dw.double(), columns.expand(dw.shape), rtol=1e-6, atol=1e-5)
    assert counter.frame_count == 1


@pytest.mark.parametrize("route", ["eager", "compiled"])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed(device, calls, fresh_dynamo, use_reentrant, route):
    if route == "compiled" and use_reentrant:
        pytest.skip("dynamo does not compile the reentrant form")
    x, w, g = leaves(24, 32, 64, device, lead=(4, 6))

    def block(x, w):
        return cake.router_linear(x, w).softmax(-1)

    def kept(x, w):
        return checkpoint(block, x, w, use_reentrant=use_reentrant)

    kept = compiled(kept) if route == "compiled" else kept
    wants = gradients(block, x, w, g)
    calls.clear()
    out = kept(x, w)
    out.backward(g)
    assert [name for name, *_ in calls] == ["router_forward", "router_forward", "router_backward"]
    assert same((out, x.grad, w.grad), wants)


class Router(nn.Module):
    """Logits of the top experts, behind a projection that the gradient of x trains."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear
        self.before = nn.Linear(48, 64)
        self.weight = nn.Parameter(torch.randn(32, 64) / 8)

    def forward(self, x):
        return self.linear(self.before(x).tanh(), self.weight).softmax(-1).topk(4).values.log().sum()


@pytest.mark.parametrize("route", ["eager", "compiled"])
def test_a_module_trains_as_with_torch(device, fresh_dynamo, route):
    models = []
    for linear in (cake.router_linear, nn.functional.linear):
        torch.manual_seed(0)
        model = Router(linear).to(device)
        step = compiled(model) if route == "compiled" else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(5):
            optimizer.zero_grad()
            step(torch.randn(4, 25, 48).to(device)).backward()
            optimizer.step()
        models.append(model)
    ours, theirs = (dict(m.named_parameters()) for m in models)
    for name, p in ours.items():
        torch.testing.assert_close(p, theirs[name], rtol=1e-4, atol=1e-5)


# --- what only a GPU can show -------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_training_step_is_capturable(deterministic):
    """Both passes in one graph, cold: replays compute on what is in the tensors then."""
    cake.clear_caches()
    x, w, g = leaves(64, 256, 4096, "cuda:0", lead=(4, 16))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = gradients(partial(cake.router_linear, deterministic=deterministic), x, w, g)
        summed = torch.autograd.grad(cake.router_linear(x, w).sum(), (x, w))
    for seed in (1, 2):
        with torch.no_grad():
            for t, new in zip(
                (x, w, g), leaves(64, 256, 4096, "cuda:0", lead=(4, 16), seed=seed), strict=True
            ):
                t.copy_(new)
        graph.replay()
        check(results, x, w, g)
        for result, exact in zip(summed, expected(x, w, torch.ones_like(g))[1:], strict=True):
            assert error(result, exact) <= 4e-7


@pytest.mark.gpu
def test_a_graphed_module_trains():
    torch.manual_seed(0)
    model = Router(cake.router_linear).cuda()
    x = torch.randn(4, 25, 48, device="cuda:0")
    model(x).backward()
    wants = [p.grad.clone() for p in model.parameters()]
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn_like(x),))
    for _ in range(2):
        model.zero_grad()
        graphed(x).backward()
        for p, want in zip(model.parameters(), wants, strict=True):
            torch.testing.assert_close(p.grad, want)


@pytest.mark.gpu
def test_compiled_into_cuda_graphs(fresh_dynamo):
    pytest.importorskip("triton")
    torch.manual_seed(0)
    model = Router(cake.router_linear).cuda()
    step = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        x = torch.randn(4, 25, 48, device="cuda:0")
        model.zero_grad()
        model(x).backward()
        wants = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        torch.compiler.cudagraph_mark_step_begin()
        step(x).backward()
        for p, want in zip(model.parameters(), wants, strict=True):
            torch.testing.assert_close(p.grad, want, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_a_warm_step_does_not_wait_for_the_gpu():
    x, w, g = leaves(64, 256, 4096, "cuda:0")
    gradients(cake.router_linear, x, w, g)
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = gradients(cake.router_linear, x, w, g)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    check(results, x, w, g)


@pytest.mark.gpu
def test_the_backward_pass_runs_on_the_stream_of_the_forward_pass():
    x, w, g = leaves(64, 256, 4096, "cuda:0")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    for _ in range(20):
        with torch.cuda.stream(stream):
            out = cake.router_linear(x, w)
        torch.cuda.current_stream().wait_stream(stream)
        results = out, *torch.autograd.grad(out, (x, w), g)
    check(results, x, w, g)
