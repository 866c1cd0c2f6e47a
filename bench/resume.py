"""Whether a run can be gone on with, and its manifest then. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.model import Manifest
from bench.session import RunRefused

#: Versions whose change makes the rest of a run another run: what is measured would be other code.
FIXED_VERSIONS = ("torch", "cublas", "cublas-wheel")


def continued(before: Manifest, now: Manifest, path: Path) -> Manifest:
    """The manifest of a run gone on with: the old one, with a note of what changed since.

    Raises :class:`bench.session.RunRefused` unless what would be measured now belongs into the run begun
    before: the same rows by the same arms, of the same code, on the same device.
    """
    was, wanted = _facts(before), _facts(now)
    different = [f"{name} was {was[name]}, now {wanted[name]}" for name in was if was[name] != wanted[name]]
    for name, old_list, new_list in (("rows", before.rows, now.rows), ("arms", before.arms, now.arms)):
        if old_list != new_list:
            different.append(f"{name}: {_difference(old_list, new_list)}")
    if different:
        raise RunRefused(f"cannot resume {path}: {'; '.join(different)}; {_advice(before, now, path)}")
    if other := _other_code(before, now):
        raise RunRefused(
            f"cannot resume {path}: {'; '.join(other)}; its finished rows are of other code: "
            "put that back, or start a new run"
        )
    old, new = {**before.versions, **before.git}, {**now.versions, **now.git}
    changes = [
        f"{name} {old.get(name, 'unknown')} -> {new.get(name, 'unknown')}"
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]
    note = f"resumed at {now.started}" + (f" with other versions: {', '.join(changes)}" if changes else "")
    flags = tuple(dict.fromkeys((*before.flags, *now.flags)))
    return before.model_copy(update={"notes": (*before.notes, note), "flags": flags})


def _facts(m: Manifest) -> dict[str, object]:
    """What must be the same besides rows and arms, in words that stand in a refusal."""
    return {
        "suite": m.suite,
        "preset": m.preset,
        "device": " ".join(str(w) for w in (m.device.name, m.device.arch, m.device.sms, m.device.uuid) if w),
        "timer": m.timer.name,
        "workspace": m.workspace_bytes,
        "budget": m.budget,
        "form": f"{m.groups} {m.form} of {m.steps} steps, at most {m.at_most} times as many",
        "seconds for more groups": m.row_seconds,
        "instances in graph mode": "not recorded" if m.instances is None else m.instances,
        "L2": m.l2_state,
        "pause before a step in ms": m.pause_ms,
        "previous": m.previous.get("commit", "none"),
        "control run": m.control_run,
    }


def _difference(was: Sequence[str], now: Sequence[str]) -> str:
    """Two lists by their lengths and the first thing that differs."""
    gone = [name for name in was if name not in now]
    new = [name for name in now if name not in was]
    counts = f"{len(was)} then, {len(now)} now"
    if gone:
        return f"{counts}, without {gone[0]}" + (f" and {len(gone) - 1} more" if len(gone) > 1 else "")
    if new:
        return f"{counts}, with {new[0]}" + (f" and {len(new) - 1} more" if len(new) > 1 else "")
    return f"{counts}, in another order"


def _advice(before: Manifest, now: Manifest, path: Path) -> str:
    """What to type instead: a run knows all of its options but the file of its user's arms."""
    command, file = ("tune" if before.command.startswith("cake-bench tune") else "run"), ""
    if set(before.arms) - set(now.arms):
        file = " --arms FILE with the arms it began with"
    elif set(now.arms) - set(before.arms):
        file = " without --arms"
    return (
        f"go on with `cake-bench {command} --resume {path}`{file} and no further options, or start a new run "
        "(leave out --resume)"
    )


def _other_code(before: Manifest, now: Manifest) -> list[str]:
    """Which code differs, where both sides know theirs: a commit says nothing of edits not committed."""
    pairs = [("commit", before.git.get("commit"), now.git.get("commit"))]
    pairs += [("digest of cake's files", before.cake_digest[:12], now.cake_digest[:12])]
    pairs += [("judgement", _rule(before), _rule(now))]
    pairs += [(name, before.versions.get(name), now.versions.get(name)) for name in FIXED_VERSIONS]
    return [f"{name} was {was}, now {new}" for name, was, new in pairs if was and new and was != new]


def _rule(m: Manifest) -> str:
    """The rule that a run is judged by; empty where it is not recorded."""
    return ", ".join(f"{name} {value:g}" for name, value in m.judgement.items())
