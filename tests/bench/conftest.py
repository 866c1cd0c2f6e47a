from __future__ import annotations

import sys
from pathlib import Path

# pytest's importlib mode keeps tests/bench out of sys.path (it would hide the package `bench`), so what the
# tests here share, bench_builders.py, has a name of its own.
sys.path.append(str(Path(__file__).parent))
