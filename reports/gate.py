"""A gate's result in words: terminal, Markdown, GitHub's step summary and annotations, JUnit XML.

All of them are made of :func:`headline`, :func:`words` and :func:`remarks`, so they say the same.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console
from rich.markup import escape

from bench.model import Again, GateFinding, GateResult
from bench.store import atomic_write
from reports import format
from reports.markdown import LIMIT
from reports.rows import name_of

#: What an exit code means, in one word.
OUTCOMES = {0: "passed", 1: "failed", 2: "could not measure"}
FILE, TEXT = "gate.json", "gate.md"
#: GitHub shows at most 10 annotations of a kind and step: the last one counts the rest.
ANNOTATIONS = 10
#: Findings of one kind listed before the rest are counted (all are in gate.json and the JUnit file).
LISTED = 50


def headline(result: GateResult) -> str:
    """The verdict in one sentence."""
    total = len(result.rows)
    counted = [_counted(result, kind, text, total) for kind, text in _KINDS.items()]
    said = [text for text in counted if text]
    if not result.of("slower") and all(f.row for f in result.findings):
        judged = total - len({(f.gpu, f.row) for f in result.of("missing", "unmeasured") if f.row})
        judged -= len(result.not_compared) + len(result.unclear)
        if judged > 0:
            rows = "none of {} rows is" if judged > 1 else "{} row is not"
            said.append(f"{rows.format(judged)} slower than {result.against}")
        if n := len(result.unclear):
            said.append(f"{format.counted(n, 'row')} {'is' if n == 1 else 'are'} unclear")
    return f"gate {OUTCOMES[result.exit_code]}: {'; '.join(said)}"


def words(result: GateResult, finding: GateFinding) -> str:
    """A finding in one line, without the row's name."""
    if finding.kind != "slower":
        arm = f"{finding.arm}: " if finding.arm else ""
        return f"{_WORDS[finding.kind]}: {arm}{finding.reason}"
    assert finding.ratio is not None
    interval = _interval(finding)
    if result.form == "across runs":
        times = [
            f"{side} {format.time(us, 2)} us"
            for side, us in (("previous", finding.previous_us), ("new", finding.new_us))
            if us is not None
        ]
        return f"slower: previous/new = {format.ratio(finding.ratio)}{interval} {finding.reason}" + (
            f" ({', '.join(times)})" if times else ""
        )
    assert finding.previous_us is not None and finding.new_us is not None
    parts = [f"slower: previous/new = {format.division(finding.previous_us, finding.new_us)}{interval}"]
    if finding.again is not None:
        again = finding.again
        parts.append(f"measured again {format.division(again.us, again.over_us)}{_interval(again)}")
    if finding.control_lo is not None and finding.control_hi is not None:
        parts.append(f"control {format.spread([finding.control_lo, finding.control_hi])}")
    return "; ".join(parts)


def name(result: GateResult, finding: GateFinding) -> str:
    """The row of a finding in words, with its GPU where the gate looked at several."""
    if not finding.row:
        return "the run"
    many = len({gpu for gpu, _ in result.rows}) > 1
    return f"{finding.gpu} {name_of(finding.row)}" if many else name_of(finding.row)


def remarks(result: GateResult) -> list[str]:
    """What is said beside the verdict and does not decide it."""
    made = []
    for keys, text in (
        (result.faster, "confirmed faster"),
        (result.dismissed, "flagged slower once, not confirmed when measured again"),
        (result.unclear, _UNCLEAR[result.form]),
        (result.not_compared, f"not in {result.against}, so not compared"),
    ):
        if keys:
            named = format.listed([name_of(key) for key in keys[:5]])
            rest = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
            made.append(f"{format.counted(len(keys), 'row')} {text}: {named}{rest}")
    return [*made, *result.notes]


def lines(result: GateResult) -> list[str]:
    """Findings, one a line with the row's name, as the terminal and Markdown list them."""
    made = []
    for kind in _KINDS:
        found = result.of(kind)
        made += [f"{name(result, f)}: {words(result, f)}" for f in found[:LISTED]]
        if len(found) > LISTED:
            made.append(f"{len(found) - LISTED} more rows: {_WORDS[kind]}")
    return made


def print_result(result: GateResult, console: Console) -> None:
    """The result in a terminal, readable without colour."""
    style = {0: "bold green", 1: "bold red", 2: "bold yellow"}[result.exit_code]
    console.print(f"[{style}]{escape(headline(result))}[/]", highlight=False, soft_wrap=True)
    for line in lines(result):
        console.print(f"  {escape(line)}", highlight=False, soft_wrap=True)
    for remark in remarks(result):
        console.print(f"[yellow]note:[/] {escape(remark)}", highlight=False, soft_wrap=True)


def markdown(result: GateResult) -> str:
    """The result as a section of Markdown."""
    parts = [f"### {_safe(headline(result))}"]
    for items in (lines(result), [f"note: {r}" for r in remarks(result)]):
        if items:
            parts.append("\n".join(f"- {_safe(item)}" for item in items))
    return "\n\n".join(parts) + "\n"


def comment(result: GateResult, report: str, limit: int = LIMIT) -> str:
    """The result above the run's report, ready to post; without the report where both are too long."""
    section = markdown(result)
    whole = f"{section}\n{report}"
    if len(whole) <= limit:
        return whole
    left = f"The report is left out here: with it this text is longer than {limit:,} characters.\n"
    return f"{section}\n{left}"


def write(run_dir: Path, result: GateResult, text: str) -> None:
    """Write the result as ``gate.json`` and its ``text`` (see :func:`comment`) as ``gate.md`` into a run
    directory.
    """
    atomic_write(run_dir / FILE, (result.model_dump_json(indent=1) + "\n").encode())
    atomic_write(run_dir / TEXT, text.encode())


def write_summary(path: Path, key: str, text: str) -> None:
    """Put a text into GitHub's step summary once: a text with the same key takes the place of the older."""
    begin, end = f"<!-- cake-bench gate {key} -->", f"<!-- end of cake-bench gate {key} -->"
    section = f"{begin}\n{text.rstrip()}\n{end}\n"
    before = path.read_text() if path.exists() else ""
    start, stop = before.find(begin), before.find(end)
    if 0 <= start < stop:
        after = before[stop + len(end) :].removeprefix("\n")
        path.write_text(before[:start] + section + after)
        return
    gap = "\n" if before and not before.endswith("\n\n") else ""
    with path.open("a") as f:
        f.write(gap + section)


def workflow_commands(result: GateResult) -> list[str]:
    """GitHub's workflow commands: errors for what turns the gate red, warnings for what was not measured."""
    made = []
    for level, kinds in (("error", ("slower", "inaccurate", "bits")), ("warning", ("missing", "unmeasured"))):
        found = result.of(*kinds)
        shown = found if len(found) <= ANNOTATIONS else found[: ANNOTATIONS - 1]
        made += [command(level, f"gate: {name(result, f)}", words(result, f)) for f in shown]
        if len(found) > len(shown):
            made.append(command(level, "gate", f"{len(found) - len(shown)} more; {headline(result)}"))
    return made


def command(level: str, title: str, message: str) -> str:
    """One workflow command, escaped as GitHub wants it."""
    text = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    head = title.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{level} title={head.replace(':', '%3A').replace(',', '%2C')}::{text}"


def junit(result: GateResult) -> str:
    """JUnit XML: a test case a row; failures turn the gate red, errors could not be measured."""
    by_row: dict[tuple[str, str], list[GateFinding]] = {row: [] for row in result.rows}
    for finding in result.findings:
        by_row.setdefault((finding.gpu, finding.row), []).append(finding)
    suite = ElementTree.Element("testsuite", name="cake-bench gate")
    counts = {"tests": len(by_row), "failures": 0, "errors": 0, "skipped": 0}
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in (("run", result.run), ("against", result.against), ("verdict", headline(result))):
        ElementTree.SubElement(properties, "property", name=key, value=_xml(value))
    for (gpu, key), findings in by_row.items():
        title = name_of(key) if key else "the run"
        case = ElementTree.SubElement(suite, "testcase", classname=_xml(gpu or result.run), name=title)
        red = [f for f in findings if f.kind in ("slower", "inaccurate", "bits")]
        # A test case ends in one way: what turns the gate red comes before what was not measured.
        told = red or findings
        if told:
            tag, count = ("failure", "failures") if red else ("error", "errors")
            text = _xml("\n".join(words(result, f) for f in told))
            made = ElementTree.SubElement(case, tag, type=told[0].kind, message=text.split("\n")[0])
            made.text = text
            counts[count] += 1
        elif key in result.not_compared:
            ElementTree.SubElement(case, "skipped", message=_xml(f"not in {result.against}"))
            counts["skipped"] += 1
    if said := remarks(result):
        ElementTree.SubElement(suite, "system-out").text = _xml("\n".join(said))
    for word, n in counts.items():
        suite.set(word, str(n))
    ElementTree.indent(suite, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, "unicode") + "\n"


#: Kinds of findings in the order they are told: in the headline, and in front of a row's reason.
_KINDS = {
    "slower": "{of} slower than {against}",
    "inaccurate": "{of} inaccurate",
    "bits": "bits of {of2} changed where they must not",
    "missing": "{of} missing",
    "unmeasured": "{of} not measured",
}
_UNCLEAR = {
    "paired": "unclear: the interval is wider than the effect sought",
    "across runs": "unclear: the interval could hide a slowdown that counts",
}
_WORDS = {
    "slower": "slower",
    "inaccurate": "inaccurate",
    "bits": "bits changed",
    "missing": "missing",
    "unmeasured": "not measured",
}


def _counted(result: GateResult, kind: str, text: str, total: int) -> str:
    """How many rows have a finding of a kind, in the headline's words; empty if none."""
    found = result.of(kind)
    if not found:
        return ""
    if not any(f.row for f in found):
        return found[0].reason
    n = len({(f.gpu, f.row) for f in found if f.row})
    some = f"{n} of {format.counted(total, 'row')}"
    return text.format(of=f"{some} {'is' if n == 1 else 'are'}", of2=some, against=result.against)


def _interval(found: GateFinding | Again) -> str:
    if found.ratio_lo is None or found.ratio_hi is None:
        return ""
    return f" {format.interval(found.ratio_lo, found.ratio_hi)}"


def _safe(text: str) -> str:
    """Text that Markdown shows as it is."""
    for sign in "\\`*":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _xml(text: str) -> str:
    """Without the characters that XML 1.0 does not have: a kernel's error text may hold any."""
    return "".join(
        c for c in text if c in "\t\n" or (" " <= c and not _surrogate(c) and c not in "\ufffe\uffff")
    )


def _surrogate(c: str) -> bool:
    return "\ud800" <= c <= "\udfff"
