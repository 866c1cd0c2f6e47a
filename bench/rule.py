"""By which rule a run is judged: the one recorded with it, until the user asks for another. Pure."""

from __future__ import annotations

from bench.model import Manifest
from bench.statistics import JUDGEMENT, Judgement


def rule_of(manifest: Manifest) -> Judgement | None:
    """The rule that a run was judged by; this version's where none is recorded.

    ``None`` where it is one that this version cannot apply, since its rule has other numbers.
    """
    known, recorded = JUDGEMENT.as_dict(), manifest.judgement
    if not recorded:
        return JUDGEMENT
    if recorded.keys() != known.keys():
        return None
    return Judgement(**{name: type(getattr(JUDGEMENT, name))(value) for name, value in recorded.items()})


def other_rule(manifest: Manifest) -> str:
    """In words that a run was judged by another rule than this version's; empty where it was not."""
    known, recorded = JUDGEMENT.as_dict(), manifest.judgement
    if not recorded or recorded == known:
        return ""
    names = dict.fromkeys((*recorded, *known))
    differ = [
        f"{name} {_number(recorded, name)}, not {_number(known, name)}"
        for name in names
        if recorded.get(name) != known.get(name)
    ]
    return ", ".join(differ)


def _number(rule: dict[str, float], name: str) -> str:
    return f"{rule[name]:g}" if name in rule else "none"
