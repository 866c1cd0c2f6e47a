"""Routes: rules of one device, for ``deterministic=False``, looked up before the shipped ones.

They are written by measurement (``cake-bench tune``), have the schema of the rules and, since bits may change
there, may cut K otherwise. Here they are data: which table a device has is :mod:`cake.launch.routes`'.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from . import rules
from .device import DeviceSpec
from .rules import Rule


@dataclass(frozen=True)
class Routes:
    """The routes of one device, of its program family. Immutable.

    ``generation`` rises with every table that is put in place; 0 is what a device was found with. ``source``
    is the file they come from, empty where they come from none.
    """

    family: str
    rules: tuple[Rule, ...] = ()
    generation: int = 0
    source: str = ""

    def find(self, op: str, t: int, n: int, k: int, out: str, emulation: str = "bf16x3") -> Rule | None:
        """The route of a router GEMM, in the order of the rules; ``None``: the shipped rules decide."""
        return rules.match(self.rules, op, t, n, k, out, emulation)


@dataclass(frozen=True)
class Target:
    """What routes were measured on, and are valid for: a device model, and the programs and rules there were
    (``code``, a hash).

    Not the driver: programs come to it as machine code that it runs as it is.
    """

    name: str
    spec: DeviceSpec
    code: str

    @property
    def key(self) -> str:
        """The device in a file name, e.g. ``nvidia-h200-sm_90a-132``."""
        words = (re.sub(r"\W+", "-", self.name.lower()).strip("-"), self.spec.arch, str(self.spec.sms))
        return "-".join(dict.fromkeys(words))


def parse(entries: Iterable[Mapping[str, object]], family: str) -> tuple[Rule, ...]:
    """Routes from their TOML tables. Raises ``ValueError`` naming the one that is wrong."""
    found: dict[tuple[object, ...], Rule] = {}
    for entry in entries:
        if not isinstance(entry, Mapping):
            raise ValueError(f'route {entry!r}: needs a table such as {{ op = "fwd", ... }}')
        rule = rules.parse(entry, family, route=True)
        if key_of(rule) in found:
            raise ValueError(
                f"route {entry}: there is another one for the same op, n, k, out, emulation and T"
            )
        found[key_of(rule)] = rule
    return tuple(found.values())


def key_of(rule: Rule) -> tuple[object, ...]:
    """What a route applies to."""
    return rule.op, rule.n, rule.k, rule.out, rule.emulation, rule.first, rule.last


def merged(old: Sequence[Rule], new: Sequence[Rule], tuned: Iterable[tuple[object, ...]]) -> tuple[Rule, ...]:
    """New routes in place of the old ones; of the keys that were ``tuned`` no old one stays."""
    gone = {*tuned, *map(key_of, new)}
    return (*(rule for rule in old if key_of(rule) not in gone), *new)


def text(routes: Sequence[Rule], target: Target) -> str:
    """The file of a device's routes."""
    spec = target.spec
    return "\n".join(
        (
            "# Routes of one device, by cake-bench tune. As cake/plan/rules; splits: segments of K.",
            f'device = {{ name = {rules.toml(target.name)}, arch = "{spec.arch}", sms = {spec.sms} }}',
            f'code = "{target.code}"',
            "routes = [",
            *(f"  {rules.line(rule)}," for rule in routes),
            "]",
            "",
        )
    )


def read(data: str, target: Target) -> tuple[Rule, ...]:
    """The routes of a file, which may leave out what it was made for. Raises ``ValueError`` where the file is
    damaged, or made for another device or other code.
    """
    found = tomllib.loads(data)
    entries = found.get("routes")
    if not found.keys() <= {"device", "code", "routes"} or not isinstance(entries, list):
        raise ValueError(
            f"it has {', '.join(found) or 'nothing'}; needs routes = [...], and may have device, code"
        )
    here = {"name": target.name, "arch": target.spec.arch, "sms": target.spec.sms}
    if (there := found.get("device", here)) != here:
        raise ValueError(f"it is of another device: {there}, this is {here}")
    if (code := found.get("code", target.code)) != target.code:
        raise ValueError(f"its programs or shipped rules have changed since: code {code}, now {target.code}")
    return parse(entries, target.spec.family)
