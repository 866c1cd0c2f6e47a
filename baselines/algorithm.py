"""cuBLASLt algorithms in words, and the one that is known to be wrong. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KnownWrong:
    """Split-K of algorithm ``id`` is wrong up to version ``until`` where SPLITK_NUM does not divide K."""

    id: int
    until: tuple[int, int, int]


KNOWN_WRONG = (KnownWrong(66, (13, 7, 0)),)

#: Settings whose numbers are named by an enumeration of the bindings: word, enumeration, prefix of its names.
_NAMED = {
    "TILE_ID": ("tile", "MatmulTile", "TILE_"),
    "STAGES_ID": ("stages", "MatmulStages", "STAGES_"),
    "REDUCTION_SCHEME": ("reduction", "ReductionScheme", ""),
    "INNER_SHAPE_ID": ("inner", "MatmulInnerShape", ""),
    "CLUSTER_SHAPE_ID": ("cluster", "ClusterShape", "SHAPE_"),
}
_PLAIN = {"ID": "algo", "SPLITK_NUM": "split-K", "CTA_SWIZZLING": "swizzle", "CUSTOM_OPTION": "option"}
_ORDER = (
    "ID",
    "TILE_ID",
    "STAGES_ID",
    "SPLITK_NUM",
    "REDUCTION_SCHEME",
    "CTA_SWIZZLING",
    "CUSTOM_OPTION",
    "INNER_SHAPE_ID",
    "CLUSTER_SHAPE_ID",
)


def describe(config: Mapping[str, int], bindings: Any) -> str:
    """A configuration in words: ``algo 66, tile 128x64, stages 32x5, split-K 3, reduction COMPUTE_TYPE, ...``

    ``bindings`` has the enumerations of nvmath's cublasLt; a number that they do not name is printed as is.
    """
    words = []
    for key in _ORDER:
        if key not in config:
            continue
        if key in _PLAIN:
            words.append(f"{_PLAIN[key]} {config[key]}")
        else:
            word, enumeration, prefix = _NAMED[key]
            words.append(f"{word} {_name(getattr(bindings, enumeration), config[key]).removeprefix(prefix)}")
    return ", ".join(words)


def suspicion(config: Mapping[str, int], version: str, k: int) -> str:
    """A warning where this configuration is known to be wrong for a product of depth ``k``, else empty."""
    splits = config.get("SPLITK_NUM", 1)
    for known in KNOWN_WRONG:
        affected = tuple(int(part) for part in version.split(".")) <= known.until
        if config.get("ID") == known.id and affected and splits > 1 and k % splits:
            until = ".".join(map(str, known.until))
            return f"known wrong up to {until}: split-K {splits} does not divide K={k}"
    return ""


def _name(enumeration: Any, value: int) -> str:
    try:
        name: str = enumeration(value).name
    except ValueError:
        return str(value)
    return name
