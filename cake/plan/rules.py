"""Rule look-up: which tile, grouping and raster a router GEMM gets. Rules are data, in
``rules/<family>.toml``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from .partition import GROUP
from .raster import Raster

KEYS = {"op", "n", "k", "out", "T"}
VALUES = {"tile", "hold", "raster", "why"}


@dataclass(frozen=True)
class Rule:
    """One rule: what it applies to (``None``: anything) and what it chooses.

    ``first``..``last`` is its range of T (equal: an exact key; both ``None``: a default).
    """

    op: str
    n: int | None
    k: int | None
    out: str | None
    first: int | None
    last: int | None
    tile: tuple[int, int]
    hold: int
    raster: Raster
    why: str

    def matches(self, op: str, t: int, n: int, k: int, out: str) -> bool:
        """Whether the rule applies to a router GEMM of ``t`` tokens, ``n`` experts, ``k`` features, ``out``
        dtype.
        """
        return (
            self.op == op
            and self.n in (None, n)
            and self.k in (None, k)
            and self.out in (None, out)
            and (self.first is None or (self.last is not None and self.first <= t <= self.last))
        )

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key of the look-up order: exact T, range, default; within each, the rule that names more
        wins.
        """
        form = 2 if self.first is None else int(self.first != self.last)
        return form, -sum(x is not None for x in (self.n, self.k, self.out))


def parse(entry: dict[str, object]) -> Rule:
    """A rule from its TOML table. Raises ``ValueError`` naming what is wrong."""
    if not {"op", *VALUES} <= entry.keys() <= KEYS | VALUES:
        raise ValueError(
            f"rule {entry}: needs op, {', '.join(sorted(VALUES))}; may have {', '.join(sorted(KEYS))}"
        )

    def wrong(name: str, need: str) -> ValueError:
        return ValueError(f"rule {entry}: {name} is {entry[name]!r}, needs {need}")

    # A value of a wrong type must not pass for an absent one: the rule would apply to everything.
    def number(name: str) -> int | None:
        value = entry.get(name)
        if value is not None and (type(value) is not int or value < 1):
            raise wrong(name, "a positive integer")
        return value

    t, out, hold = entry.get("T"), entry.get("out"), entry["hold"]
    first: int | None = None
    last: int | None = None
    if t is not None:
        match t if isinstance(t, list) else [t, t]:
            case [int(first), int(last)] if 1 <= first <= last:
                pass
            case _:
                raise wrong("T", "a positive integer or [first, last]")
    if out not in (None, "f32", "bf16"):
        raise wrong("out", "f32 or bf16")
    if hold not in (1, GROUP):
        raise wrong("hold", f"1 or {GROUP}")
    if entry["op"] not in ("fwd", "dgrad", "wgrad"):
        raise wrong("op", "fwd, dgrad or wgrad")
    tile = re.fullmatch(r"(\d+)x(\d+)", str(entry["tile"]))
    if tile is None:
        raise wrong("tile", "rows x columns, e.g. 64x64")
    return Rule(
        op=str(entry["op"]),
        n=number("n"),
        k=number("k"),
        out=out if isinstance(out, str) else None,
        first=first,
        last=last,
        tile=(int(tile[1]), int(tile[2])),
        hold=1 if hold == 1 else GROUP,
        raster=Raster(number("raster") or 1),
        why=str(entry["why"]),
    )


@cache
def shipped(family: str) -> tuple[Rule, ...]:
    """The rules shipped for a program family."""
    text = files(__package__).joinpath(f"rules/{family}.toml").read_text()
    return tuple(parse(entry) for entry in tomllib.loads(text)["rules"])


def find(rules: Sequence[Rule], op: str, t: int, n: int, k: int, out: str) -> Rule:
    """The rule for a router GEMM: exact T before range before default. Raises ``LookupError`` where none
    matches.
    """
    matching = [r for r in rules if r.matches(op, t, n, k, out)]
    if not matching:
        raise LookupError(f"no rule for {op} T={t} N={n} H={k} out={out}; every op needs a default rule")
    return min(matching, key=lambda r: r.rank)
