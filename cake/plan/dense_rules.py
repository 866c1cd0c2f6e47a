"""Rule look-up of projections: which form, cut of K and raster one gets. Rules are data, in
``rules/projection_<family>.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from .lookup import Fields, Key, as_line, best, table
from .partition import MAX_SEGMENTS
from .raster import Raster

OPS = ("fwd", "dgrad", "wgrad", "gemm")
KEYS = {"op", "n", "k", "heads", "out", "T"}
VALUES = {"form", "splits", "tail", "raster", "swapped", "why"}
NEEDED = {"op", "form", "raster", "why"}
#: A T that is no multiple of this is ragged.
RAGGED = 64


@dataclass(frozen=True)
class DenseRule(Key):
    """One rule: what it applies to and what it chooses.

    N and K are a layer's out and in features, ``heads`` its batch; ``ragged``: T is no multiple of 64.
    ``splits`` is the number of K segments (``None``: the shape's), which decides bits; ``swapped`` computes
    the transpose.
    """

    heads: int | None
    ragged: bool
    program: str
    raster: Raster
    why: str
    splits: int | None = None
    tail: bool = False
    swapped: bool = False

    def matches(self, op: str, t: int, n: int, k: int, heads: int, out: str) -> bool:
        """Whether the rule applies to a projection of ``t`` tokens."""
        return (
            self.heads in (None, heads) and (not self.ragged or t % RAGGED > 0) and self.has(op, t, n, k, out)
        )

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key of the look-up order: exact T, range, ragged, default; within each, the rule that names
        more wins.
        """
        return 2 if self.ragged else self.form, -self.named(self.heads)


def parse(entry: Mapping[str, object]) -> DenseRule:
    """A rule from its TOML table. Raises ``ValueError`` naming what is wrong."""
    if not NEEDED <= entry.keys() <= KEYS | VALUES:
        optional = sorted((KEYS | VALUES) - NEEDED)
        raise ValueError(f"rule {entry}: needs {', '.join(sorted(NEEDED))}; may have {', '.join(optional)}")
    ragged = entry.get("T") == "ragged"
    fields = Fields("rule", entry)
    first, last = (None, None) if ragged else fields.tokens()
    if not isinstance(entry["form"], str):
        raise fields.wrong("form", "the name of a program's form")
    return DenseRule(
        op=str(fields.choice("op", OPS)),
        n=fields.number("n"),
        k=fields.number("k"),
        out=fields.choice("out", ("f32", "bf16")),
        first=first,
        last=last,
        heads=fields.number("heads"),
        ragged=ragged,
        program=entry["form"],
        raster=Raster(fields.number("raster") or 1),
        why=str(entry["why"]),
        splits=fields.number("splits", MAX_SEGMENTS),
        tail=bool(fields.flag("tail")),
        swapped=bool(fields.flag("swapped")),
    )


def line(rule: DenseRule) -> str:
    """The rule as its TOML table on one line, which :func:`parse` reads back."""
    return as_line(
        {
            "op": rule.op,
            "n": rule.n,
            "k": rule.k,
            "heads": rule.heads,
            "out": rule.out,
            "T": "ragged" if rule.ragged else rule.tokens,
            "form": rule.program,
            "splits": rule.splits,
            "tail": rule.tail or None,
            "raster": rule.raster.height,
            "swapped": rule.swapped or None,
            "why": rule.why,
        }
    )


@cache
def shipped(family: str) -> tuple[DenseRule, ...]:
    """The rules shipped for the projections of a program family."""
    return tuple(map(parse, table(f"projection_{family}")))


def match(
    rules: Sequence[DenseRule], op: str, t: int, n: int, k: int, heads: int, out: str
) -> DenseRule | None:
    """The first of the matching rules: exact T before range before ragged before default; ``None`` where none
    matches.
    """
    return best(rule for rule in rules if rule.matches(op, t, n, k, heads, out))
