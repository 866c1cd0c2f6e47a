"""What the words of a report mean, and what was measured on what: from the manifest and the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bench.model import Manifest
from reports import dense_words, versions
from reports import format as fmt
from reports.rows import CONTROL, DET, FP16X2, NEW, PREVIOUS, SEQUENCE, Run
from reports.tables import Column, Table

_OPS = {
    "fwd": "`fwd` out[T,N] = X[T,H] W[N,H]^T",
    "dgrad": "`dgrad` dX[T,H] = G[T,N] W[N,H]",
    "wgrad": "`wgrad` dW[N,H] = G[T,N]^T X[T,H]",
    "bwd": "`bwd` dgrad, then wgrad, timed as one",
    "2fwd+bwd": "`2fwd+bwd` a checkpointed step: fwd, fwd again, dgrad, wgrad, timed as one (the second fwd "
    "finds its inputs in L2 by nature)",
}
_MODES = {
    "eager": "`eager` makes the calls on an idle device, so host time between kernels is in the interval",
    "graph": "`graph` replays launches or calls captured once, with no host time between kernels",
}
_CPU_EAGER = "`eager` makes the calls one after another"
#: How each timer makes its figure.
TIMERS = {
    "cupti": "GPU time from the op's first kernel's begin to its last's end, from CUPTI activity records",
    "events": "time between two CUDA events around the op; it includes gaps that CUPTI records would not",
    "cpu": "wall time of the op by the monotonic clock",
    "host": "none: only host time per call was measured",
}
_ARMS = {
    NEW: "the code under test, BF16x3, deterministic=False",
    CONTROL: "the same arm a second time: the same code against itself, hence the noise floor",
    DET: "deterministic=True, what a user gets by default",
    FP16X2: "emulation='fp16x2': three FP16 products for one of FP32, deterministic=False",
    "torch_fp32": "torch.mm in FP32, TF32 off",
    "numpy_fp32": "numpy's BLAS in FP32",
    "cublas_fp32": "cublasSgemm",
    "cublaslt_fp32": "cuBLASLt in FP32",
    "cublaslt_fp32_first": "cuBLASLt in FP32, the first algorithm its heuristic names",
    "cublaslt_fp32_best": "cuBLASLt in FP32, the fastest of its first 8 algorithms by search",
    "cublas_bf16x9": "cublasSgemm with BF16x9 emulation requested",
    "cublaslt_bf16x9": "cuBLASLt with BF16x9 emulation requested",
    "cublaslt_bf16x9_first": "cuBLASLt with BF16x9 emulation requested, its heuristic's first algorithm",
    "cublaslt_bf16x9_best": "cuBLASLt with BF16x9 emulation requested, the fastest by search",
    SEQUENCE: "each GEMM of an op by the fastest library call for that GEMM alone",
}
_HOST_TIME = "wall time of one call on the host, back to back, in a separate process without the timer"
_FLAGS = {
    "warm": "`warm` the L2 was not proven cold",
    "slow-host": "`slow-host` the host stayed slow over an eager op, though its groups were measured again",
    "thermal": "`thermal` the GPU slowed down, hot or by its hardware, though its groups were measured again",
    "power-cap": "`power-cap` the GPU held its clock down to keep its power limit, normal on long GEMMs",
    "shared-gpu": "`shared-gpu` another process was on the GPU",
}
NO_COMMIT = "not recorded (the code ran outside a git working tree; CAKE_COMMIT tells it there)"


def definitions(run: Run) -> list[tuple[str, str]]:
    """``(word, meaning)`` for every word that the report uses."""
    m = run.manifest
    on_cpu = m.timer.name == "cpu"
    modes = [
        _CPU_EAGER if on_cpu and mode == "eager" else _MODES.get(mode, f"`{mode}`") for mode in run.modes
    ]
    return [
        ("row", f"one op in one mode at one shape on one GPU model; this run has {len(run.rows)}"),
        _what(run),
        ("ops", "; ".join(_op(run, op) for op in run.ops)),
        ("modes", "; ".join(modes)),
        ("latency", _latency(m, run.modes)),
        ("runs", _conduct(run)),
        *_instances(run),
        *[("form", dense_words.form_in_full(run.manifest))] * run.dense,
        ("arms", "; ".join(f"`{a}` {_arm(run, a)}" for a in run.arms) + _new(run)),
        (
            "SOTA",
            "per row, the fastest library call whose result passed"
            + (f", `{SEQUENCE}` included" if SEQUENCE in run.arms else "")
            + ". It is chosen by the samples that its ratio is made of: where calls are about equal, noise "
            "favours SOTA, and its interval does not count the choice"
            + f". {dense_words.COPIES}"
            * run.dense,
        ),
        (
            "ratio",
            "us of the arm named first / us of the arm named second, of unrounded medians; above 1.000 the "
            "second, which is cake, is faster. The printed times give the printed ratio",
        ),
        (
            "control",
            "the ratio `control` / `cake`; as a range, its lowest and highest over the rows of one GPU, mode "
            "and op. It says how large a ratio of equal code can look; the verdict does not depend on it. "
            "Findings call cake faster above it and SOTA below; times at most a tick apart are within",
        ),
        ("interval", _interval(m)),
        ("verdict", _verdict(m)),
        (
            "geomean",
            "over all rows that have the ratio; the headline counts those that have not. Its interval "
            "resamples each row's groups: it says how far the same rows, measured again, would move it",
        ),
        (
            "accuracy",
            f"relative Frobenius error against FP64 before and after timing; {_gate(run)}",
        ),
        *[("TFLOP/s", dense_words.SPEED)] * run.dense,
        *[("host time", _HOST_TIME)] * (not on_cpu or _has_host_times(run)),
        (
            "status",
            "`ok`; `inaccurate` missed the budget; `unsupported` cannot do the row; "
            + "`fell-back` was asked for emulation and ran the native kernels; " * (not run.dense)
            + "`error` raised. Only `ok` has a time",
        ),
        *_flags(run),
    ]


def _what(run: Run) -> tuple[str, str]:
    """The shapes of a router run, or the layers of a dense one."""
    if run.dense:
        return ("layers", dense_words.layers(run))
    return ("shapes", f"T tokens, H features in, N experts out, FP32: {_shapes(run)}")


def _op(run: Run, op: str) -> str:
    return (dense_words.OPS if run.dense else _OPS).get(op, f"`{op}`")


def _arm(run: Run, arm: str) -> str:
    own = dense_words.ARMS.get(arm) if run.dense else None
    return own or _ARMS.get(arm) or _other_arm(run, arm)


def _gate(run: Run) -> str:
    if run.dense:
        return dense_words.gate(run)
    return (
        f"the budget is {fmt.budget(run.manifest.budget)} for every GEMM of an op, and fwd must choose the "
        "same top-8 experts for each token (experts whose FP64 logits are closer than the budget are a tie: "
        "counted, not failed)"
    )


def _has_host_times(run: Run) -> bool:
    return any(c.host_us is not None for r in run.rows for c in r.cells.values())


def _flags(run: Run) -> list[tuple[str, str]]:
    """The flags that occur; nothing where none does."""
    found = {*run.manifest.flags, *(f for r in run.rows for c in r.cells.values() for f in c.flags)}
    words = [text for flag, text in _FLAGS.items() if flag in found]
    return [("flag", f"{'; '.join(words)}. It is said beside a time, and removes none")] * bool(words)


def setup(run: Run) -> Table:
    """The set-up of the run as two columns."""
    m, d = run.manifest, run.manifest.device
    on_gpu = bool(d.driver)
    lines: list[tuple[str, str]] = [
        ("device" if not on_gpu else "GPU", d.name),
        ("architecture", d.arch),
        ("SMs" if on_gpu else "cores", str(d.sms)),
    ]
    lines += [("memory", f"{d.memory_gb:.0f} GiB")] * bool(d.memory_gb)
    lines += [("L2" if on_gpu else "last-level cache", f"{d.l2_mb:.0f} MiB")] * bool(d.l2_mb)
    if on_gpu:
        limit = "not recorded (no NVML)" if d.power_limit_w is None else f"{d.power_limit_w:.0f} W"
        lines += [("driver", d.driver), ("power limit", limit), ("throttle reasons", _throttle(run))]
    lines += [("node", m.node), ("layout", m.layout)]
    lines += [(name, version) for name, version in m.versions.items() if not (on_gpu and name == "driver")]
    lines += [(f"library {name}", text) for name, text in m.libraries.items()]
    lines += [(f"git {name}", text) for name, text in {"commit": NO_COMMIT, **m.git}.items()]
    lines += [(f"previous {name}", text) for name, text in m.previous.items()]
    lines += [
        ("command", f"`{m.command}`"),
        (
            "environment",
            ", ".join(f"`{k}={v}`" for k, v in sorted(m.environment.items())) or "nothing relevant set",
        ),
        ("suite, preset", f"{m.suite}, {m.preset}: {len(m.rows)} rows"),
        (
            "per row",
            f"{_groups(run)} x {m.steps * (2 if m.form == 'passes' else 1)} timed steps an arm, "
            f"{m.untimed} untimed before each visit",
        ),
        (
            "workspace",
            f"{m.workspace_bytes / 2**20:.0f} MiB for every library arm" if m.workspace_bytes else "none",
        ),
        ("timer", _timer(m)),
        ("cold L2", l2_state(m)),
        (
            "started, took",
            f"{m.started}, {fmt.duration(m.seconds) if m.seconds is not None else 'not finished'}",
        ),
    ]
    lines += [("merged from", text) for text in m.merged]
    lines += [("note", note) for note in m.notes]
    return Table((Column("what", False), Column("value", False)), tuple(lines))


def l2_state(m: Manifest) -> str:
    """Whether the L2 was proven cold, with the probe's figures."""
    if m.l2_state == "warm":
        return "not wanted: a warm view, every row is flagged warm"
    if m.l2 is None:
        return "not proven: no probe ran, rows are flagged warm"
    probe = f"memory-bound probe {m.l2.cold_us:.2f} us cold, {m.l2.warm_us:.2f} us warm"
    figures = f"{probe}, ratio {m.l2.cold_us / m.l2.warm_us:.2f}, needed {m.l2.expected_ratio:.2f}"
    return f"{'proven' if m.l2.proven else 'not proven'}: {figures}"


def _shapes(run: Run) -> str:
    by_rest: dict[tuple[int | None, int], list[int]] = {}
    for r in sorted(run.rows, key=lambda r: (r.H or 0, r.N, r.T)):
        ts = by_rest.setdefault((r.H, r.N), [])
        if r.T not in ts:
            ts.append(r.T)
    groups: dict[tuple[int, tuple[int, ...]], list[int | None]] = {}
    for (h, n), ts in by_rest.items():
        groups.setdefault((n, tuple(ts)), []).append(h)
    return "; ".join(
        f"T {_numbers(ts)} x H {_numbers([h for h in hs if h is not None])}, N {n}"
        for (n, ts), hs in groups.items()
    )


def _numbers(values: Sequence[int]) -> str:
    return "/".join(map(str, values))


def _latency(m: Manifest, modes: Sequence[str]) -> str:
    text = f"{TIMERS[m.timer.name]}; {_cell(m)}; printed in us, or in ms where a table has long times"
    if m.timer.name == "host":
        return TIMERS[m.timer.name]
    if m.l2_state == "warm":
        text += "; nothing is flushed before a step, and the device is idle"
    elif m.timer.name in ("cupti", "events"):
        text += "; before each step the L2 is overwritten and read, and the device is idle"
    if m.timer.name == "cupti" and "eager" in modes:
        text += (
            "; tracing slows every launch on the host, so an eager op of several kernels shows wider gaps "
            "than it has untraced (host time per call is measured untraced); a group in which the host took "
            "unusually long over such an op is measured again, a few times at most, then flagged `slow-host`"
        )
    return text


def _cell(m: Manifest) -> str:
    """What a cell's time is of the steps."""
    one = (
        "the geometric mean over passes of each pass's median"
        if m.form == "passes"
        else "the median of all timed steps"
    )
    if not m.merged:
        return f"a cell is {one}"
    return (
        f"a cell is the median over GPUs (over runs, where all ran on one GPU) of {one}; a library call's is "
        "of the runs with its faster cuBLAS version"
    )


def _new(run: Run) -> str:
    """What previous/new divides."""
    return f". In previous/new, previous is `{PREVIOUS}` and new is `{NEW}`" * (PREVIOUS in run.arms)


def _groups(run: Run) -> str:
    """The groups or passes that rows really had: groups are rounded up to whole rotations of a row's arms."""
    word, visits = ("passes", 2) if run.manifest.form == "passes" else ("groups", 1)
    had = {sum(counts) // visits for f in run.facts.values() for counts in f.positions.values()}
    had = had or {run.manifest.groups}
    return f"{min(had)} {word}" if len(had) == 1 else f"{min(had)} to {max(had)} {word}"


def _conduct(run: Run) -> str:
    m = run.manifest
    each = f" in each of {len(m.merged)} runs" if m.merged else ""
    if m.form == "passes":
        count = f"{_groups(run)} ({m.groups}{each})" if each else _groups(run)
        return (
            f"per row {count}; in each, every arm is visited twice, in one order and then backwards, so that "
            "all have the same mean position and a steady drift moves them alike; "
            f"{m.untimed} untimed and {m.steps} timed steps a visit; inputs come from the row's seed and are "
            "the same for every arm"
        )
    more = f", and up to {m.at_most} times as many while cake's intervals are wide" * (m.at_most > 1)
    if m.row_seconds is not None:
        more += f"; after {m.row_seconds:g} s of a row's groups no more are added or measured again"
    return (
        f"per row {_groups(run)} ({m.groups} asked for{each}, made whole rotations of the row's arms{more}); "
        f"in each, every arm is visited once, in rotated order, for {m.untimed} untimed and {m.steps} timed "
        "steps; inputs come from the row's seed and are the same for every arm"
    )


def _instances(run: Run) -> list[tuple[str, str]]:
    """How often what is timed is made anew, and why; nothing of runs of before that was recorded."""
    m, said = run.manifest, []
    word = "pass" if m.form == "passes" else "group"
    if "graph" in run.modes and m.instances == 0:
        said.append(f"in graph mode every arm is prepared, loaded and captured anew for every {word}")
    if "graph" in run.modes and m.instances and m.instances > 1:
        turns = f"{word} to {word}"
        said.append(
            f"in graph mode every arm is prepared and captured {m.instances} times, and these instances take "
            f"turns from {turns}"
        )
    if "eager" in run.modes and m.reloads and m.timer.name != "cpu":
        said.append(
            "in eager mode cake's programs are loaded anew before every visit, a library's kernels once, as "
            "in any process of a user"
        )
    if not said:
        return []
    why = (
        "where a program lies in memory moves a time for as long as it lies there, on an H200 by 0.3 to "
        "0.7 %, which more steps do not average out"
    )
    return [("instances", f"{'; '.join(said)}: {why}")]


def _other_arm(run: Run, arm: str) -> str:
    if arm == PREVIOUS:
        return f"{versions.name(run)}, imported under a name of its own, called as `{NEW}` is"
    return (
        "an arm of the user's own"
        if run.kinds.get(arm) == "user"
        else f"a {run.kinds.get(arm, 'library')} arm"
    )


def _interval(m: Manifest) -> str:
    level = m.judgement.get("level")
    head = f"{100 * level:g} % interval of the ratio" if level is not None else "interval of the ratio"
    times = f", {m.judgement['resamples']:.0f} times" if "resamples" in m.judgement else ""
    units = ""
    if m.merged:
        units = " GPUs (runs, where all ran on one GPU) and then"
        head += ", over the GPUs that ran both arms"
    if m.form == "passes" and not m.merged:
        return (
            f"{head}, by Student's t over the logs of the passes' ratios; widened to hold the ratio shown. "
            "A slower pass is one in which cake's median is the longer by more than the timer resolves"
        )
    if m.form == "passes":
        return f"{head}, by resampling{units} passes{times}; it is widened to hold the ratio shown"
    trim = m.judgement.get("trim")
    trimmed = f", the outermost {100 * trim:g} % at each end left out" if trim is not None else ""
    return (
        f"{head}, by resampling{units} groups{times}: the mean of the logs of the groups' ratios of medians"
        f"{trimmed}; it is widened to hold the ratio shown, which is of all steps"
    )


def _verdict(m: Manifest) -> str:
    effect, sought = m.judgement.get("min_effect"), m.judgement.get("sought_effect")
    least = f" by at least {100 * effect:g} %" if effect is not None else ""
    tick = f" (one tick, {m.timer.tick_us * 1000:.0f} ns)" if m.timer.tick_us else ""
    wide = f" (over {100 * sought:g} %)" if sought is not None else ""
    rule = (
        f"of cake: `faster` or `slower` where the interval excludes 1{least} and the medians differ by "
        f"more than the timer resolves{tick}; else `same`, or `unclear` where the interval is "
        f"too wide{wide} to say so"
    )
    if not m.previous:
        return rule
    return f"{rule}; against another version of cake a difference stands only if measured again it repeats"


def _throttle(run: Run) -> str:
    readings = [c for f in run.facts.values() for c in f.clocks]
    if not readings:
        return "not read (no NVML readings)"
    seen = Counter(reason for c in readings for reason in c.reasons)
    sm = [c.sm_mhz for c in readings]
    words = ", ".join(f"{reason} in {n}" for reason, n in sorted(seen.items())) or "none in any"
    hottest = max(c.temp_c for c in readings)
    most = max(c.power_w for c in readings)
    peak = f"at most {most:.0f} W and {hottest} C"
    return f"{words} of {len(readings)} readings; SM clock {min(sm)} to {max(sm)} MHz, {peak}"


def _timer(m: Manifest) -> str:
    t = m.timer
    parts = [t.name, f"tick {t.tick_us * 1000:.0f} ns" if t.tick_us else "tick not measured"]
    if t.name == "cupti":
        parts.append(f"{fmt.counted(t.dropped_records, 'dropped record')}")
    if t.check_us is not None and t.check_events_us is not None:
        parts.append(f"cross-check {t.check_us:.2f} us against {t.check_events_us:.2f} us by events")
    return ", ".join(parts)
