"""Rule look-up: which tile, grouping and raster a router GEMM gets. Rules are data, in
``rules/<family>.toml``.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from .device import emulations
from .partition import GROUP, MAX_SEGMENTS
from .raster import Raster

KEYS = {"op", "n", "k", "out", "emulation", "T"}
VALUES = {"raster", "why"}
#: Of both or neither; a route has them.
FORM = {"tile", "hold"}


@dataclass(frozen=True)
class Rule:
    """One rule: what it applies to (``None``: anything) and what it chooses.

    ``first``..``last`` is its range of T (equal: an exact key; both ``None``: a default). Where ``tile`` is
    ``None``, tile and hold are those of the least estimated time. ``splits`` is the number of K segments that
    a route asks for; a shipped rule leaves it to the shape.
    """

    op: str
    n: int | None
    k: int | None
    out: str | None
    first: int | None
    last: int | None
    tile: tuple[int, int] | None
    hold: int
    raster: Raster
    why: str
    splits: int | None = None
    emulation: str | None = None

    def matches(self, op: str, t: int, n: int, k: int, out: str, emulation: str) -> bool:
        """Whether the rule applies to a router GEMM of ``t`` tokens, ``n`` experts, ``k`` features, ``out``
        dtype, ``emulation``.
        """
        return (
            self.op == op
            and self.n in (None, n)
            and self.k in (None, k)
            and self.out in (None, out)
            and self.emulation in (None, emulation)
            and (self.first is None or (self.last is not None and self.first <= t <= self.last))
        )

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key of the look-up order: exact T, range, default; within each, the rule that names more
        wins.
        """
        form = 2 if self.first is None else int(self.first != self.last)
        return form, -sum(x is not None for x in (self.n, self.k, self.out, self.emulation))


def parse(entry: Mapping[str, object], family: str, *, route: bool = False) -> Rule:
    """A rule of a program family from its TOML table; a ``route`` may have ``splits`` too. Raises
    ``ValueError`` naming what is wrong.
    """
    group, word = GROUP[family], "route" if route else "rule"
    needed = {"op"} | VALUES | (FORM if route or FORM & entry.keys() else set())
    optional = (KEYS | {"splits"} if route else KEYS) - {"op"}
    if not needed <= entry.keys() <= optional | needed:
        both = "" if FORM <= needed else ", hold and tile (both or neither)"
        raise ValueError(
            f"{word} {entry}: needs {', '.join(sorted(needed))}; may have {', '.join(sorted(optional))}{both}"
        )

    def wrong(name: str, need: str) -> ValueError:
        return ValueError(f"{word} {entry}: {name} is {entry[name]!r}, needs {need}")

    # A value of a wrong type must not pass for an absent one: the rule would apply to everything.
    def number(name: str) -> int | None:
        value = entry.get(name)
        if value is not None and (type(value) is not int or value < 1):
            raise wrong(name, "a positive integer")
        return value

    t, out, hold, emulation = (entry.get(name) for name in ("T", "out", "hold", "emulation"))
    first: int | None = None
    last: int | None = None
    if t is not None:
        match t if isinstance(t, list) else [t, t]:
            case [int(first), int(last)] if 1 <= first <= last and {type(first), type(last)} == {int}:
                pass
            case _:
                raise wrong("T", "a positive integer or [first, last]")
    if out not in (None, "f32", "bf16"):
        raise wrong("out", "f32 or bf16")
    having = emulations(family)
    if emulation is not None and emulation not in having:
        raise wrong("emulation", " or ".join(having))
    if "hold" in entry and (type(hold) is not int or hold not in (1, group)):
        raise wrong("hold", f"1 or {group}")
    if entry["op"] not in ("fwd", "dgrad", "wgrad"):
        raise wrong("op", "fwd, dgrad or wgrad")
    splits = number("splits")
    if splits is not None and splits > MAX_SEGMENTS:
        raise wrong("splits", f"1 to {MAX_SEGMENTS}")
    tile = re.fullmatch(r"(\d+)x(\d+)", str(entry.get("tile")))
    if tile is None and "tile" in entry:
        raise wrong("tile", "rows x columns, e.g. 64x64")
    return Rule(
        op=str(entry["op"]),
        n=number("n"),
        k=number("k"),
        out=out if isinstance(out, str) else None,
        first=first,
        last=last,
        tile=(int(tile[1]), int(tile[2])) if tile else None,
        hold=group if hold == group else 1,
        raster=Raster(number("raster") or 1),
        why=str(entry["why"]),
        splits=splits,
        emulation=emulation if isinstance(emulation, str) else None,
    )


def line(rule: Rule) -> str:
    """The rule as its TOML table on one line, which :func:`parse` reads back."""
    exact = rule.first == rule.last
    entry: dict[str, object] = {
        "op": rule.op,
        "n": rule.n,
        "k": rule.k,
        "out": rule.out,
        "emulation": rule.emulation,
        "T": rule.first if exact else [rule.first, rule.last],
        "tile": f"{rule.tile[0]}x{rule.tile[1]}" if rule.tile else None,
        "hold": rule.hold if rule.tile else None,
        "raster": rule.raster.height,
        "splits": rule.splits,
        "why": rule.why,
    }
    words = (f"{name} = {toml(v)}" for name, v in entry.items() if v is not None)
    return f"{{ {', '.join(words)} }}"


def toml(value: object) -> str:
    """A string, number or list of them in TOML, which writes them as JSON does, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


@cache
def shipped(family: str) -> tuple[Rule, ...]:
    """The rules shipped for a program family."""
    text = files(__package__).joinpath(f"rules/{family}.toml").read_text()
    return tuple(parse(entry, family) for entry in tomllib.loads(text)["rules"])


def match(
    rules: Sequence[Rule], op: str, t: int, n: int, k: int, out: str, emulation: str = "bf16x3"
) -> Rule | None:
    """The first of the matching rules: exact T before range before default; ``None`` where none matches."""
    found = (r for r in rules if r.matches(op, t, n, k, out, emulation))
    return min(found, key=lambda r: r.rank, default=None)


def find(rules: Sequence[Rule], op: str, t: int, n: int, k: int, out: str, emulation: str = "bf16x3") -> Rule:
    """The rule for a router GEMM, by :func:`match`. Raises ``LookupError`` where there is none."""
    rule = match(rules, op, t, n, k, out, emulation)
    if rule is None:
        raise LookupError(
            f"no rule for {op} T={t} N={n} H={k} out={out} {emulation}; every op needs a default rule"
        )
    return rule
