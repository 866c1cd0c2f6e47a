"""Another version of cake in the same process: that of a git ref, or a copy of the working tree's.

A version lies in ``$CAKE_CACHE_DIR/previous/<commit>/cake_<first 12>`` (see
:func:`cake.program.compiler.cache_dir`) and is imported under that name, beside ``cake`` and never instead of
it: inside the package all imports are relative, and its cubins are keyed by its name. The folder appears
whole or not at all, so processes may ask for it at the same time.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import cake
from cake.program.compiler import cache_dir

_ROOT = Path(__file__).resolve().parent.parent
#: What the working tree is called where a ref is expected in print.
WORKING_TREE = "working tree"


class PreviousError(Exception):
    """The version asked for is not to be had; the message says why and what to do."""


@dataclass(frozen=True)
class Version:
    """A version of cake: its package, the ref it was asked for by, and the commit behind it.

    Of a copy of the working tree ``commit`` is a digest of its files. ``path`` is the package's folder.
    """

    module: ModuleType
    ref: str
    commit: str
    path: Path

    @property
    def facts(self) -> dict[str, str]:
        """``ref`` and ``commit``, for the manifest."""
        return {"ref": self.ref, "commit": self.commit}


def load_previous(ref: str, root: Path = _ROOT) -> Version:
    """The ``cake`` of a git ref of the repository around ``root``, imported under a name of its own.

    Where git cannot be asked, a commit (7 digits or more) whose package is in the cache already is found
    there. Raises :class:`PreviousError` for an unknown ref, for no git, and for a ref without ``cake/``.
    """
    commit, told = _commit(ref, root)
    if commit is None:
        commit = _cached(ref)
    if commit is None:
        raise PreviousError(told)
    path = _place(commit, lambda folder: _archive(ref, commit, root, folder))
    return Version(import_package(path), ref, commit, path)


def load_copy(package: Path | None = None) -> Version:
    """The working tree's own cake (or the package in that folder), copied and imported by the same route.

    Raises :class:`PreviousError`.
    """
    files = _package_files(package)
    digest = _digest(files)

    def fill(folder: Path) -> None:
        for name, data in files.items():
            _write(folder / name, data)

    path = _place(digest, fill)
    return Version(import_package(path), WORKING_TREE, digest, path)


def package_digest(package: Path | None = None) -> str:
    """SHA-256 of the files of the working tree's cake, or of the package in that folder."""
    return _digest(_package_files(package))


def _package_files(package: Path | None) -> dict[Path, bytes]:
    source = package or Path(cake.__file__).resolve().parent
    return {
        p.relative_to(source): p.read_bytes()
        for p in sorted(source.rglob("*"))
        if p.is_file() and "__pycache__" not in p.parts
    }


def _digest(files: Mapping[Path, bytes]) -> str:
    digest = hashlib.sha256()
    for name, data in files.items():
        digest.update(f"{name.as_posix()}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def import_package(path: Path) -> ModuleType:
    """Import the package in a folder under the folder's name. ``sys.modules['cake']`` stays as it is.

    Raises :class:`PreviousError` where it cannot be imported.
    """
    name = path.name
    if (known := sys.modules.get(name)) is not None:
        return known
    spec = importlib.util.spec_from_file_location(
        name, path / "__init__.py", submodule_search_locations=[str(path)]
    )
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        for gone in [n for n in sys.modules if n == name or n.startswith(f"{name}.")]:
            del sys.modules[gone]
        raise PreviousError(
            f"the cake in {path} cannot be imported beside this one: {type(e).__name__}: {e}; "
            "name another ref"
        ) from e
    return module


def program_digest(package: ModuleType, key: Any) -> str | None:
    """What a program is made of, hashed: source, its headers, defines and launch shape; not its name.

    Tells apart two versions of a program that have one name; comments and layout of the text do not count.
    ``None`` where the version keeps its programs in another way.
    """
    try:
        registry = importlib.import_module(f"{package.__name__}.program.registry")
        compiler = importlib.import_module(f"{package.__name__}.program.compiler")
        p = registry.program(key)
        headers, _ = compiler.included(p.source, _headers(Path(str(package.__file__)).parent / "csrc"))
        texts = [_bare(p.source), *((name, _bare(text)) for name, text in sorted(headers.items()))]
        parts = (p.kernel, texts, sorted(p.defines.items()))
        launch = (p.threads, p.smem_bytes)
    except (ImportError, AttributeError, LookupError, TypeError, ValueError):
        return None
    return hashlib.sha256(repr((parts, launch)).encode()).hexdigest()


def drop_programs(package: ModuleType) -> None:
    """Have a version load its programs anew at the next call, to another place on the device.

    ``clear_caches`` of early versions keeps loaded programs: there the cache that holds them is emptied, so
    that no version keeps one place, good or bad, while the other's changes.
    """
    package.clear_caches()
    with suppress(ImportError, AttributeError):  # a version that keeps them in another way
        importlib.import_module(f"{package.__name__}.launch.router")._kernel.cache_clear()


def without_routes(device: torch.device, *packages: ModuleType) -> None:
    """Set this device's routes aside in versions that have any: they are compared by what they ship."""
    for package in packages:
        if hasattr(package, "set_routes"):
            with suppress(ValueError):  # a device it does not support has none
                package.set_routes(None, device=device)


def _bare(source: str) -> str:
    """C++ text without comments and indentation."""
    lines = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL).splitlines()
    return "\n".join(bare for line in lines if (bare := " ".join(line.split())))


@cache
def _headers(csrc: Path) -> dict[str, str]:
    found = sorted(p for p in csrc.rglob("*") if p.suffix in {".cuh", ".h", ".hpp", ".inc"})
    return {p.relative_to(csrc).as_posix(): p.read_text() for p in found}


# --- getting it ---------------------------------------------------------------------------------------------


def _commit(ref: str, root: Path) -> tuple[str | None, str]:
    """The commit of a ref, or ``None`` and why there is none."""
    if not ref or ref.startswith("-"):
        return None, f"{ref!r} is no git ref; give a branch, a tag or a commit"
    done = _git(root, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    if done is None:
        return None, (
            f"cannot resolve {ref!r}: there is no git here; with git, or with a commit whose package is in "
            f"{_store()} already, it can be had"
        )
    if done.returncode == 0:
        return done.stdout.decode().strip(), ""
    inside = _git(root, "rev-parse", "--show-toplevel")
    if inside is not None and inside.returncode:
        words = _last_words(inside) or "it is no git repository"
        return None, (
            f"cannot resolve {ref!r}: {root}: {words}; run it in a clone, or give a commit whose package "
            f"is in {_store()} already"
        )
    return None, (
        f"{ref!r} is unknown to the repository in {root}; give a branch, a tag or a commit that it has "
        "(in a shallow clone, git fetch it first)"
    )


def _archive(ref: str, commit: str, root: Path, folder: Path) -> None:
    """Write the commit's ``cake/`` into a folder."""
    tree = _git(root, "rev-parse", "--verify", "--quiet", f"{commit}:./cake")
    if tree is None or tree.returncode:
        raise PreviousError(f"{ref} ({commit[:12]}) has no cake/ to compare with; give a ref that has one")
    top = _git(root, "rev-parse", "--show-toplevel")
    where = Path(top.stdout.decode().strip()) if top and not top.returncode else root
    done = _git(where, "archive", "--format=tar", tree.stdout.decode().strip())
    if done is None or done.returncode:
        words = _last_words(done) if done else "no git"
        raise PreviousError(f"cannot take cake/ out of {ref} ({commit[:12]}): git archive: {words}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        for member in tar:
            data = tar.extractfile(member) if member.isfile() else None
            if data is not None:
                _write(folder / member.name, data.read())
    if not (folder / "__init__.py").is_file():
        raise PreviousError(f"cake/ of {ref} ({commit[:12]}) is no package: it has no __init__.py")


def _place(commit: str, fill: Callable[[Path], None]) -> Path:
    """The package's folder; where it is not there yet, ``fill`` writes one beside it, which is renamed."""
    path = _store() / commit / f"cake_{commit[:12]}"
    if path.is_dir():
        return path
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
        fill(temporary)
        temporary.chmod(0o755)  # mkdtemp makes it the user's alone; a cache may be shared
        try:
            os.rename(temporary, path)
        except OSError:
            if not path.is_dir():  # else another process was quicker, with the same files
                raise
    except OSError as e:
        raise PreviousError(
            f"cannot write the package to {path.parent}: {e.strerror or e}; "
            "set CAKE_CACHE_DIR to a directory that can be written"
        ) from e
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return path


def _cached(ref: str) -> str | None:
    """The one commit in the cache that begins with ``ref``."""
    if not re.fullmatch(r"[0-9a-f]{7,}", ref):
        return None
    with suppress(OSError):
        found = [p.parent.name for p in _store().glob(f"{ref}*/cake_{ref[:12]}*") if p.is_dir()]
        if len(found) == 1:
            return found[0]
    return None


def _store() -> Path:
    return cache_dir().absolute() / "previous"


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[bytes] | None:
    """What git says in ``root``; ``None`` where there is no git."""
    try:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)
    except OSError:
        return None


def _last_words(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[0].removeprefix("fatal: ") if lines else ""
