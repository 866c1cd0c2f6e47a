from __future__ import annotations

from bench.model import Device, Tried, TunedRow, Tuning
from reports.tuning import document, gains, headline

CAKE = Tried(name="cake", plan="p0", status="ok", us=20.0)
FAST = Tried(
    name="64x64",
    plan="p1",
    status="ok",
    us=18.0,
    ratio=20 / 18,
    ratio_lo=1.09,
    ratio_hi=1.13,
    verdict="faster",
)
SLOW = Tried(
    name="128x64",
    plan="p2",
    status="ok",
    flags=("power-cap",),
    us=22.5,
    ratio=20 / 22.5,
    ratio_lo=0.87,
    ratio_hi=0.91,
    verdict="slower",
)
BAD = Tried(name="64x32", plan="p3", status="error", reason="it broke")
ROW = TunedRow(
    row="router-fwd-graph-T64-H4096-N256", base=CAKE, tried=(FAST, SLOW, BAD), arm="64x64", route="r"
)
DEVICE = Device(name="NVIDIA H200", arch="sm_90a", sms=132)


def tuned(*rows, **changes):
    return Tuning(run="r", device=DEVICE, started="2026-01-02T03:04:05+00:00", rows=rows, **changes)


GOLDEN = """\
# Plans tried on NVIDIA H200 (sm_90a), 2026-01-02

**Faster than the shipped rules: 1 of 1 rows.**

Every time is labelled warm.

Without a time:

- router-fwd-graph-T64-H4096-N256 64x32: error: it broke

`cake` is the shipped rule's plan, `control` the same again; above 1.000 the line's plan is faster. What \
takes the shipped plan's place is faster than both.

## router-fwd-graph-T64-H4096-N256

| arm | us | shipped / this | interval | verdict | plan |
| --- | --: | --: | --: | --- | --- |
| 64x64 | 18.00 | 1.111 | [1.090, 1.130] | faster | p1 |
| cake | 20.00 |  |  |  | p0 |
| 128x64 | 22.50 (power-cap) | 0.889 | [0.870, 0.910] | slower | p2 |
| 64x32 | error [1] |  |  |  | p3 |

[1] it broke
"""


def test_the_whole_document():
    assert document(tuned(ROW, flags=("warm",))) == GOLDEN


def test_nothing_faster_is_said():
    assert headline(tuned(ROW.model_copy(update={"route": "", "arm": ""}))) == (
        "Nothing is faster than the shipped rules on 1 of 1 rows."
    )
    assert headline(tuned()) == "No row was measured."


def test_gains_name_the_plan():
    assert list(gains(tuned(ROW))) == ["router-fwd-graph-T64-H4096-N256: 20.00 / 18.00 us = 1.111, 64x64"]
