"""Download wheels for a GPU node without a network: what pyproject.toml asks for, less what the node's image
brings.

    python tools/wheelhouse.py --python 3.12 --into wheelhouse

The list is derived: the core dependencies, the extras of ``--extra``, the build requirements and all they
need in turn, minus ``tool.cake-bench.wheelhouse.image`` of pyproject.toml (``--image`` replaces it). pip
resolves it for the node's Python and platform, not for this machine's.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: What a node of glibc >= 2.34 may install: pip does not derive the older tags from a newer one.
GLIBC_MINOR = 34
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC_MINOR, 4, -1)),
    "manylinux2014_x86_64",
    "linux_x86_64",
)


def normal(name: str) -> str:
    """A distribution's name as pip compares it, without extras, version or marker."""
    match = re.match(r"[A-Za-z0-9._-]+", name)
    return re.sub(r"[-_.]+", "-", match[0] if match else name).lower()


def requirements(project: dict, extras: list[str], image: set[str]) -> list[str]:
    """The requirement lines of the core, the extras and the build, without those that the image brings."""
    optional = project["project"]["optional-dependencies"]
    if unknown := set(extras) - optional.keys():
        raise SystemExit(f"no extra {', '.join(sorted(unknown))}; there are {', '.join(optional)}")
    lines = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    lines += [line for extra in extras for line in optional[extra]]
    return sorted({line for line in lines if normal(line) not in image})


def pip(*arguments: str) -> None:
    """Run pip, and end with its own message where it fails."""
    if subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], check=False
    ).returncode:
        raise SystemExit("pip failed (see above)")


def main() -> None:
    """Resolve, download, and print what came and how large it is."""
    parser = argparse.ArgumentParser(description="Download wheels for a GPU node without a network.")
    parser.add_argument("--python", default="3.12", help="the node's Python, e.g. 3.12")
    parser.add_argument("--into", type=Path, default=ROOT / "wheelhouse")
    parser.add_argument("--extra", nargs="*", default=["cuda", "cluster", "test"])
    parser.add_argument("--image", nargs="*", help="what the image brings (default: pyproject.toml's list)")
    options = parser.parse_args()

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = project["tool"]["cake-bench"]["wheelhouse"]["image"] if options.image is None else options.image
    image = {normal(name) for name in listed}
    target = ["--only-binary=:all:", "--python-version", options.python, "--implementation", "cp"]
    target += [flag for platform in PLATFORMS for flag in ("--platform", platform)]

    print(
        f"==> resolving for Python {options.python}, extras {', '.join(options.extra) or 'none'}", flush=True
    )
    print(f"    the image is expected to bring {', '.join(sorted(image)) or 'nothing'}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        plan = Path(scratch, "plan.json")
        wanted = requirements(project, options.extra, image)
        quiet = ("--quiet", "--dry-run", "--ignore-installed", "--target", scratch, "--report", str(plan))
        pip("install", *quiet, *target, *wanted)
        found = [item["metadata"] for item in json.loads(plan.read_text())["install"]]
    pins = sorted(f"{m['name']}=={m['version']}" for m in found if normal(m["name"]) not in image)

    print(f"==> downloading {len(pins)} wheels into {options.into}", flush=True)
    options.into.mkdir(parents=True, exist_ok=True)
    for old in options.into.glob("*.whl"):
        old.unlink()
    pip("download", "--quiet", "--no-deps", *target, "--dest", str(options.into), *pins)
    wheels = sorted(options.into.glob("*.whl"), key=lambda p: -p.stat().st_size)
    for wheel in wheels:
        print(f"    {wheel.stat().st_size / 2**20:6.1f} MiB  {wheel.name}")
    print(
        f"==> {len(wheels)} wheels, {sum(w.stat().st_size for w in wheels) / 2**20:.1f} MiB in {options.into}"
    )


if __name__ == "__main__":
    main()
