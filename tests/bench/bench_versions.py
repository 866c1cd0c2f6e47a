"""Temporary git repositories with other versions of cake, for tests of bench."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import cake

PACKAGE = Path(cake.__file__).resolve().parent


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", str(root), *identity, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def repository(root: Path, *edits: tuple[str, str, str]) -> Path:
    """A repository of one commit: the working tree's cake with ``(file, old text, new text)`` replaced."""
    shutil.copytree(PACKAGE, root / "cake", ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in edits:
        path = root / "cake" / name
        text = path.read_text()
        assert old in text, f"{name} has no {old!r}"
        path.write_text(text.replace(old, new))
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "a version", "--date", "2026-01-02T03:04:05+00:00")
    return root


#: Another tile for dgrad: another program and plan, the same partition and bits.
OTHER_TILE = (
    "plan/rules/sm80.toml",
    '{ op = "dgrad", tile = "64x64"',
    '{ op = "dgrad", tile = "128x64"',
)
#: Another K partition for fwd and dgrad: other bits.
OTHER_PARTITION = ("plan/partition.py", "min(MAX_SEGMENTS, -(-k // MIN_SEGMENT))", "1")
#: A version without the option `deterministic`, and without bwd.
NO_OPTION = ("__init__.py", "    router_wgrad,\n)\n", "    router_wgrad as _wgrad,\n)\n\n\n"
             "def router_wgrad(G, X, *, out=None):\n    return _wgrad(G, X, out=out)\n")  # fmt: skip
NO_BACKWARD = ("router.py", '    "bwd": ("dgrad", "wgrad"),\n', "")
