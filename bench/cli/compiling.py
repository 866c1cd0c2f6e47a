"""``cake-bench compile``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.cli.common import Json, refuse, say


def compile_programs(
    arch: Annotated[list[str], typer.Option(help="Architecture, e.g. sm_90a; may be given several times.")],
    out: Annotated[Path | None, typer.Option(help="Write the cubins here.")] = None,
    as_json: Json = False,
) -> None:
    """Compile every program for architectures, no GPU needed; exit 1 where one spills or lacks tensor-core
    instructions.

    Exit 2 where there are no programs for an architecture, or this NVRTC does not know it.
    """
    from cake.plan import DeviceSpec, UnsupportedDevice
    from cake.program import aot, registry
    from cake.program.compiler import CompilerUnavailable

    console = Console(stderr=True)
    for name in arch:
        try:
            _ = DeviceSpec(name, 1).family
        except UnsupportedDevice as e:
            refuse(console, f"{e}; give an --arch such as sm_80 or sm_90a")
    told = set[str]()

    def tell(done: int, total: int, made: aot.Report) -> None:
        if made.status == "unsupported":  # all its programs are: one line says it
            if made.arch not in told:
                say(console, f"[{done}/{total}] {made.arch}: unsupported, {made.note}")
            told.add(made.arch)
            return
        words = "; ".join(made.problems) or made.note or "fine"
        say(
            console,
            f"[{done}/{total}] {made.arch} {made.program}: {made.status}, {words}, {made.seconds:.1f} s",
        )

    try:
        made = aot.compile_all(arch, registry.programs, tell, out_dir=out)
    except (CompilerUnavailable, ValueError) as e:
        refuse(console, str(e))
    except OSError as e:
        refuse(console, f"cannot write cubins to {out}: {e.strerror or e}; give another --out")
    counts = {status: sum(r.status == status for r in made) for status in ("ok", "problem", "unsupported")}
    if as_json:
        fields = ("program", "arch", "status", "problems", "note", "seconds")
        print(json.dumps([{name: getattr(r, name) for name in fields} for r in made]))
    else:
        print(f"{counts['ok']} programs compiled, {counts['problem']} with problems", end="")
        print("".join(f"; {r.arch} unsupported: {r.note}" for r in made if r.status == "unsupported"))
    raise typer.Exit(1 if counts["problem"] else 2 if counts["unsupported"] else 0)
