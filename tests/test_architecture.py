"""The arrows between the packages, read from the imports themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("cake", "baselines", "bench", "reports")

#: Importer -> what of our packages it may import besides itself. ``bench.cli`` is the composition root.
ALLOWED = {
    "cake": (),
    "baselines": (),
    "bench": ("cake", "baselines"),
    "bench.cli": PACKAGES,
    "reports": ("bench.model", "bench.rule", "bench.selftest_model", "bench.statistics", "bench.store"),
}
#: Bindings of GPU libraries: imported where they are used, so that every package imports on a CPU-only
#: install.
LAZY = ("cuda", "nvmath", "cupti", "pynvml", "submitit")

FILES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """Every module imported by a file, absolute: name, line, whether the import was written relative.

    ``from a import b`` counts as ``a.b`` where that is a module of ours, else as ``a``.
    """
    name = module_name(path)
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, False
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                stem = ROOT.joinpath(*full.split("."))
                is_module = stem.is_dir() or stem.with_suffix(".py").is_file()
                yield full if is_module else base, node.lineno, bool(node.level)


def top_level_imports(path: Path) -> Iterator[tuple[str, int]]:
    """Imports that run when the module is imported: all but those in functions and under
    ``TYPE_CHECKING``."""
    todo = list(ast.parse(path.read_text()).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or "", node.lineno
        todo.extend(ast.iter_child_nodes(node))


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def forbidden(importer: str, imported: str) -> bool:
    own = importer.split(".")[0]
    if not any(within(imported, p) for p in PACKAGES) or within(imported, own):
        return False
    allowed = ALLOWED["bench.cli" if within(importer, "bench.cli") else own]
    return not any(within(imported, name) for name in allowed)


def test_there_is_something_to_check():
    assert {p.relative_to(ROOT).parts[0] for p in FILES} == set(PACKAGES)


@pytest.mark.parametrize(
    ("importer", "imported", "expected"),
    [
        ("cake.router", "torch", False),
        ("cake.router", "bench.model", True),
        ("baselines.cublas", "cake", True),
        ("bench.run", "cake.plan", False),
        ("bench.run", "reports", True),
        ("bench.cli", "reports.terminal", False),
        ("bench.cli.gating", "reports.gate", False),
        ("bench.clients", "reports", True),
        ("reports.tables", "bench.model", False),
        ("reports.tables", "bench.models", True),
        ("reports.selftest", "bench.selftest", True),
        ("reports.tables", "bench", True),
    ],
)
def test_forbidden(importer, imported, expected):
    assert forbidden(importer, imported) is expected


def test_arrows():
    broken = [
        f"{path.relative_to(ROOT)}:{line}: {module_name(path)} must not import {imported}"
        for path in FILES
        for imported, line, _ in imports(path)
        if forbidden(module_name(path), imported)
    ]
    assert not broken, "\n".join(broken)


def test_cake_imports_itself_relatively():
    """Two versions of the package live in one process under two names only if neither knows its own."""
    absolute = [
        f"{path.relative_to(ROOT)}:{line}: import {imported} relatively"
        for path in FILES
        if path.is_relative_to(ROOT / "cake")
        for imported, line, relative in imports(path)
        if within(imported, "cake") and not relative
    ]
    assert not absolute, "\n".join(absolute)


def test_gpu_libraries_are_imported_lazily():
    eager = [
        f"{path.relative_to(ROOT)}:{line}: import {imported} inside the function that needs it"
        for path in FILES
        for imported, line in top_level_imports(path)
        if any(within(imported, lazy) for lazy in LAZY)
    ]
    assert not eager, "\n".join(eager)


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_refers_to_files_outside_the_project(package):
    texts = [
        p for p in (ROOT / package).rglob("*") if p.suffix in {".py", ".cu", ".cuh", ".toml", ".j2", ".html"}
    ]
    outside = [str(p.relative_to(ROOT)) for p in texts if "../shared" in p.read_text()]
    assert not outside, f"refer to files outside the project: {', '.join(outside)}"
