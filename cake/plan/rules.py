"""Rule look-up: which tile, grouping and raster a router GEMM gets. Rules are data, in
``rules/<family>.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from .device import emulations
from .lookup import Fields, Key, as_line, best, table, toml
from .partition import GROUP, MAX_SEGMENTS
from .raster import Raster

__all__ = ["FORM", "KEYS", "VALUES", "Rule", "find", "line", "match", "parse", "shipped", "toml"]

KEYS = {"op", "n", "k", "out", "emulation", "T"}
VALUES = {"raster", "why"}
#: Of both or neither; a route has them.
FORM = {"tile", "hold"}


@dataclass(frozen=True)
class Rule(Key):
    """One rule: what it applies to and what it chooses.

    Where ``tile`` is ``None``, tile and hold are those of the least estimated time. ``splits`` is the number
    of K segments that a route asks for; a shipped rule leaves it to the shape.
    """

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
        return self.emulation in (None, emulation) and self.has(op, t, n, k, out)

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key of the look-up order: exact T, range, default; within each, the rule that names more
        wins.
        """
        return self.form, -self.named(self.emulation)


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

    fields = Fields(word, entry)
    first, last = fields.tokens()
    out = fields.choice("out", ("f32", "bf16"))
    emulation = fields.choice("emulation", emulations(family))
    hold = entry.get("hold")
    if "hold" in entry and (type(hold) is not int or hold not in (1, group)):
        raise fields.wrong("hold", f"1 or {group}")
    op = fields.choice("op", ("fwd", "dgrad", "wgrad"))
    splits = fields.number("splits", MAX_SEGMENTS)
    return Rule(
        op=str(op),
        n=fields.number("n"),
        k=fields.number("k"),
        out=out,
        first=first,
        last=last,
        tile=fields.tile("tile"),
        hold=group if hold == group else 1,
        raster=Raster(fields.number("raster") or 1),
        why=str(entry["why"]),
        splits=splits,
        emulation=emulation,
    )


def line(rule: Rule) -> str:
    """The rule as its TOML table on one line, which :func:`parse` reads back."""
    return as_line(
        {
            "op": rule.op,
            "n": rule.n,
            "k": rule.k,
            "out": rule.out,
            "emulation": rule.emulation,
            "T": rule.tokens,
            "tile": f"{rule.tile[0]}x{rule.tile[1]}" if rule.tile else None,
            "hold": rule.hold if rule.tile else None,
            "raster": rule.raster.height,
            "splits": rule.splits,
            "why": rule.why,
        }
    )


@cache
def shipped(family: str) -> tuple[Rule, ...]:
    """The rules shipped for a program family."""
    return tuple(parse(entry, family) for entry in table(family))


def match(
    rules: Sequence[Rule], op: str, t: int, n: int, k: int, out: str, emulation: str = "bf16x3"
) -> Rule | None:
    """The first of the matching rules: exact T before range before default; ``None`` where none matches."""
    return best(r for r in rules if r.matches(op, t, n, k, out, emulation))


def find(rules: Sequence[Rule], op: str, t: int, n: int, k: int, out: str, emulation: str = "bf16x3") -> Rule:
    """The rule for a router GEMM, by :func:`match`. Raises ``LookupError`` where there is none."""
    rule = match(rules, op, t, n, k, out, emulation)
    if rule is None:
        raise LookupError(
            f"no rule for {op} T={t} N={n} H={k} out={out} {emulation}; every op needs a default rule"
        )
    return rule
