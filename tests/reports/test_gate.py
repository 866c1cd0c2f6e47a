"""A gate's result in words: whole texts, from one result."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import pytest
from rich.console import Console

from bench.model import Again, GateFinding, GateResult
from reports import gate

ROWS = tuple(
    ("NVIDIA H200", f"router-{op}-{mode}-T64-H4096-N256")
    for mode in ("eager", "graph")
    for op in ("fwd", "dgrad", "2fwd+bwd")
)
FWD, DGRAD, STEP, GRAPH, NEW, LAST = (key for _, key in ROWS)
SLOWER = GateFinding(
    kind="slower",
    row=FWD,
    gpu="NVIDIA H200",
    arm="cake",
    previous_us=6.912,
    new_us=7.136,
    ratio=6.912 / 7.136,
    ratio_lo=0.9655,
    ratio_hi=0.9712,
    control_lo=0.9981,
    control_hi=1.0024,
    again=Again(us=6.92, over_us=7.14, ratio=6.92 / 7.14, ratio_lo=0.966, ratio_hi=0.9722, verdict="slower"),
)
INACCURATE = GateFinding(
    kind="inaccurate",
    row=DGRAD,
    gpu="NVIDIA H200",
    arm="cake_det",
    reason="relative Frobenius error 1.0e-03 > 2e-06",
)
MISSING = GateFinding(
    kind="missing", row=LAST, gpu="NVIDIA H200", reason="the run ended before this row was measured"
)
FIELDS = {"run": "router-1", "against": "main (1a2b3c4d5e6f)", "form": "paired", "rows": ROWS}
GREEN = GateResult(**FIELDS, faster=(GRAPH,), notes=("flag warm on 6 rows",))
RED = GateResult(
    **FIELDS, findings=(SLOWER, INACCURATE, MISSING), dismissed=(STEP,), not_compared=(NEW,), notes=("a <b>",)
)
AMBER = GateResult(**FIELDS, findings=(MISSING,))

RED_TERMINAL = """\
gate failed: 1 of 6 rows is slower than main (1a2b3c4d5e6f); 1 of 6 rows is inaccurate; 1 of 6 rows is missing
  fwd eager T=64 H=4096 N=256: slower: previous/new = 6.912 / 7.136 us = 0.969 [0.966, 0.971]; \
measured again 6.92 / 7.14 us = 0.969 [0.966, 0.972]; control 0.998-1.002
  dgrad eager T=64 H=4096 N=256: inaccurate: cake_det: relative Frobenius error 1.0e-03 > 2e-06
  2fwd+bwd graph T=64 H=4096 N=256: missing: the run ended before this row was measured
note: 1 row flagged slower once, not confirmed when measured again: 2fwd+bwd eager T=64 H=4096 N=256
note: 1 row not in main (1a2b3c4d5e6f), so not compared: dgrad graph T=64 H=4096 N=256
note: a <b>
"""

RED_MARKDOWN = """\
### gate failed: 1 of 6 rows is slower than main (1a2b3c4d5e6f); 1 of 6 rows is inaccurate; 1 of 6 rows \
is missing

- fwd eager T=64 H=4096 N=256: slower: previous/new = 6.912 / 7.136 us = 0.969 [0.966, 0.971]; \
measured again 6.92 / 7.14 us = 0.969 [0.966, 0.972]; control 0.998-1.002
- dgrad eager T=64 H=4096 N=256: inaccurate: cake_det: relative Frobenius error 1.0e-03 > 2e-06
- 2fwd+bwd graph T=64 H=4096 N=256: missing: the run ended before this row was measured

- note: 1 row flagged slower once, not confirmed when measured again: 2fwd+bwd eager T=64 H=4096 N=256
- note: 1 row not in main (1a2b3c4d5e6f), so not compared: dgrad graph T=64 H=4096 N=256
- note: a &lt;b>
"""

RED_JUNIT = """\
<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="cake-bench gate" tests="6" failures="2" errors="1" skipped="1">
 <properties>
  <property name="run" value="router-1" />
  <property name="against" value="main (1a2b3c4d5e6f)" />
  <property name="verdict" value="gate failed: 1 of 6 rows is slower than main (1a2b3c4d5e6f); \
1 of 6 rows is inaccurate; 1 of 6 rows is missing" />
 </properties>
 <testcase classname="NVIDIA H200" name="fwd eager T=64 H=4096 N=256">
  <failure type="slower" message="slower: previous/new = 6.912 / 7.136 us = 0.969 [0.966, 0.971]; \
measured again 6.92 / 7.14 us = 0.969 [0.966, 0.972]; control 0.998-1.002">\
slower: previous/new = 6.912 / 7.136 us = 0.969 [0.966, 0.971]; \
measured again 6.92 / 7.14 us = 0.969 [0.966, 0.972]; control 0.998-1.002</failure>
 </testcase>
 <testcase classname="NVIDIA H200" name="dgrad eager T=64 H=4096 N=256">
  <failure type="inaccurate" message="inaccurate: cake_det: relative Frobenius error 1.0e-03 &gt; 2e-06">\
inaccurate: cake_det: relative Frobenius error 1.0e-03 &gt; 2e-06</failure>
 </testcase>
 <testcase classname="NVIDIA H200" name="2fwd+bwd eager T=64 H=4096 N=256" />
 <testcase classname="NVIDIA H200" name="fwd graph T=64 H=4096 N=256" />
 <testcase classname="NVIDIA H200" name="dgrad graph T=64 H=4096 N=256">
  <skipped message="not in main (1a2b3c4d5e6f)" />
 </testcase>
 <testcase classname="NVIDIA H200" name="2fwd+bwd graph T=64 H=4096 N=256">
  <error type="missing" message="missing: the run ended before this row was measured">\
missing: the run ended before this row was measured</error>
 </testcase>
 <system-out>1 row flagged slower once, not confirmed when measured again: 2fwd+bwd eager T=64 H=4096 N=256
1 row not in main (1a2b3c4d5e6f), so not compared: dgrad graph T=64 H=4096 N=256
a &lt;b&gt;</system-out>
</testsuite>
"""

RED_COMMANDS = [
    "::error title=gate%3A fwd eager T=64 H=4096 N=256::slower: previous/new = 6.912 / 7.136 us = 0.969 "
    "[0.966, 0.971]; measured again 6.92 / 7.14 us = 0.969 [0.966, 0.972]; control 0.998-1.002",
    "::error title=gate%3A dgrad eager T=64 H=4096 N=256::inaccurate: cake_det: relative Frobenius error "
    "1.0e-03 > 2e-06",
    "::warning title=gate%3A 2fwd+bwd graph T=64 H=4096 N=256::missing: the run ended before this row was "
    "measured",
]


def terminal(result):
    text = io.StringIO()
    gate.print_result(result, Console(file=text, width=80))
    return text.getvalue()


def test_red_in_the_terminal():
    assert terminal(RED) == RED_TERMINAL


def test_red_in_markdown():
    assert gate.markdown(RED) == RED_MARKDOWN


def test_red_in_junit():
    assert gate.junit(RED) == RED_JUNIT
    ElementTree.fromstring(gate.junit(RED))


def test_red_in_annotations():
    assert gate.workflow_commands(RED) == RED_COMMANDS


def test_green():
    assert terminal(GREEN) == (
        "gate passed: none of 6 rows is slower than main (1a2b3c4d5e6f)\n"
        "note: 1 row confirmed faster: fwd graph T=64 H=4096 N=256\n"
        "note: flag warm on 6 rows\n"
    )
    assert gate.workflow_commands(GREEN) == []
    assert 'failures="0" errors="0"' in gate.junit(GREEN)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (
            AMBER,
            "gate could not measure: 1 of 6 rows is missing; none of 5 rows is slower than main "
            "(1a2b3c4d5e6f)",
        ),
        (
            GREEN.model_copy(update={"unclear": (FWD, DGRAD)}),
            "gate passed: none of 4 rows is slower than main (1a2b3c4d5e6f); 2 rows are unclear",
        ),
        (
            GREEN.model_copy(update={"rows": ROWS[:1]}),
            "gate passed: 1 row is not slower than main (1a2b3c4d5e6f)",
        ),
        (
            GateResult(**FIELDS, findings=(GateFinding(kind="unmeasured", row="", reason="no version"),)),
            "gate could not measure: no version",
        ),
        (
            GateResult(
                **FIELDS,
                findings=tuple(MISSING.model_copy(update={"row": key}) for _, key in ROWS),
            ),
            "gate could not measure: 6 of 6 rows are missing",
        ),
    ],
)
def test_headlines(result, words):
    assert gate.headline(result) == words


def test_across_runs():
    finding = SLOWER.model_copy(
        update={"again": None, "control_lo": None, "reason": "through cublas_fp32, torch_fp32"}
    )
    result = GateResult(**(FIELDS | {"form": "across runs"}), findings=(finding,))
    assert gate.words(result, finding) == (
        "slower: previous/new = 0.969 [0.966, 0.971] through cublas_fp32, torch_fp32 "
        "(previous 6.91 us, new 7.14 us)"
    )


def test_rows_of_several_gpus_are_told_apart():
    rows = (*ROWS, ("NVIDIA B200", FWD))
    result = GateResult(**(FIELDS | {"rows": rows}), findings=(SLOWER,))
    assert gate.lines(result)[0].startswith("NVIDIA H200 fwd eager T=64 H=4096 N=256: slower: ")


def test_annotations_are_no_more_than_github_shows():
    many = tuple(SLOWER for _ in range(25))
    made = gate.workflow_commands(GateResult(**FIELDS, findings=many))
    assert len(made) == 10 and made[-1].startswith("::error title=gate::16 more; gate failed: ")
    listed = gate.lines(GateResult(**FIELDS, findings=many * 4))
    assert len(listed) == gate.LISTED + 1 and listed[-1] == "50 more rows: slower"


def test_a_command_is_escaped():
    assert gate.command("error", "a: b, c", "100 %\nnext") == "::error title=a%3A b%2C c::100 %25%0Anext"


def test_reasons_of_any_text_make_whole_xml():
    odd = INACCURATE.model_copy(update={"reason": "a\x00b <c> & \ud800 ]]>"})
    text = gate.junit(GateResult(**FIELDS, findings=(odd,)))
    found = ElementTree.fromstring(text).find(".//failure")
    assert found.text == "inaccurate: cake_det: ab <c> &  ]]>"


def test_a_report_that_is_too_long_is_left_out():
    assert gate.comment(RED, "# report\n") == f"{RED_MARKDOWN}\n# report\n"
    short = gate.comment(RED, "x" * 1000, limit=1000)
    assert short.startswith(RED_MARKDOWN) and "xxx" not in short and "longer than 1,000 characters" in short


def test_the_summary_is_written_once(tmp_path):
    path = tmp_path / "summary.md"
    path.write_text("before")
    gate.write_summary(path, "one", "first\n")
    once = path.read_text()
    gate.write_summary(path, "one", "first\n")
    assert path.read_text() == once and once.count("first") == 1 and once.startswith("before\n<!--")
    gate.write_summary(path, "two", "other run\n")
    gate.write_summary(path, "one", "first, resumed\n")
    text = path.read_text()
    assert text.count("first") == 1 and text.index("first, resumed") < text.index("other run")
    assert text.endswith("<!-- end of cake-bench gate two -->\n")
