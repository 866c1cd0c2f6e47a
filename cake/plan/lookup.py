"""What rules of all kinds of GEMM share: their keys, the order of look-up, and the way from and to TOML."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Protocol, TypeVar


@dataclass(frozen=True)
class Key:
    """What a rule applies to (``None``: anything): the op, N, K (a layer's features), the output's dtype.

    ``first``..``last`` is its range of T (equal: an exact key; both ``None``: any T).
    """

    op: str
    n: int | None
    k: int | None
    out: str | None
    first: int | None
    last: int | None

    def has(self, op: str, t: int, n: int, k: int, out: str) -> bool:
        """Whether a GEMM of ``t`` tokens has what the key names."""
        return (
            self.op == op
            and self.n in (None, n)
            and self.k in (None, k)
            and self.out in (None, out)
            and (self.first is None or (self.last is not None and self.first <= t <= self.last))
        )

    @property
    def form(self) -> int:
        """0: an exact T, 1: a range, 3: any (2 is left for a class of T)."""
        return 3 if self.first is None else int(self.first != self.last)

    def named(self, *more: object) -> int:
        """How many things the key names, with ``more`` of a rule's own."""
        return sum(x is not None for x in (self.n, self.k, self.out, *more))

    @property
    def tokens(self) -> object:
        """T as it is in TOML; ``None``: not there."""
        return self.first if self.first == self.last else [self.first, self.last]


class Ranked(Protocol):
    """A rule: it has a place in the order of look-up."""

    @property
    def rank(self) -> tuple[int, int]: ...  # noqa: D102


R = TypeVar("R", bound=Ranked)


def best(found: Iterable[R]) -> R | None:
    """The first in the order of look-up; ``None`` where there is none."""
    return min(found, key=lambda rule: rule.rank, default=None)


class Fields:
    """The values of a rule's TOML table; ``ValueError`` naming what is wrong with one.

    A value of a wrong type must not pass for an absent one: the rule would apply to everything.
    """

    def __init__(self, word: str, entry: Mapping[str, object]) -> None:
        self._word, self._entry = word, entry

    def wrong(self, name: str, need: str) -> ValueError:
        """That a value is not what is needed."""
        return ValueError(f"{self._word} {self._entry}: {name} is {self._entry[name]!r}, needs {need}")

    def number(self, name: str, most: int | None = None) -> int | None:
        """A positive integer, at most ``most``, or ``None``."""
        value = self._entry.get(name)
        if value is None:
            return None
        if type(value) is not int or value < 1:
            raise self.wrong(name, "a positive integer")
        if most is not None and value > most:
            raise self.wrong(name, f"1 to {most}")
        return value

    def choice(self, name: str, values: Sequence[str]) -> str | None:
        """One of the words, or ``None``."""
        value = self._entry.get(name)
        if value is not None and value not in values:
            *others, last = values
            raise self.wrong(name, f"{', '.join(others)} or {last}" if others else last)
        return value if isinstance(value, str) else None

    def flag(self, name: str) -> bool | None:
        """True or false, or ``None``."""
        value = self._entry.get(name)
        if value is not None and type(value) is not bool:
            raise self.wrong(name, "true or false")
        return value

    def tokens(self) -> tuple[int | None, int | None]:
        """The range of T."""
        t: Any = self._entry.get("T")
        if t is None:
            return None, None
        match t if isinstance(t, list) else [t, t]:
            case [int(first), int(last)] if 1 <= first <= last and {type(first), type(last)} == {int}:
                return first, last
        raise self.wrong("T", "a positive integer or [first, last]")

    def tile(self, name: str) -> tuple[int, int] | None:
        """Rows and columns, or ``None``."""
        found = re.fullmatch(r"(\d+)x(\d+)", str(self._entry.get(name)))
        if found is None and name in self._entry:
            raise self.wrong(name, "rows x columns, e.g. 64x64")
        return (int(found[1]), int(found[2])) if found else None


def as_line(entry: Mapping[str, object]) -> str:
    """A TOML table on one line, without what is ``None``."""
    words = (f"{name} = {toml(v)}" for name, v in entry.items() if v is not None)
    return f"{{ {', '.join(words)} }}"


def toml(value: object) -> str:
    """A string, number, truth or list of them in TOML, which writes them as JSON does, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def table(name: str) -> list[Mapping[str, object]]:
    """The entries of ``rules/<name>.toml``."""
    text = files(__package__).joinpath(f"rules/{name}.toml").read_text()
    found: list[Mapping[str, object]] = tomllib.loads(text)["rules"]
    return found
