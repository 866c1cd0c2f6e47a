from __future__ import annotations

from pathlib import Path

import pytest
from bench_builders import manifest

from bench.resume import continued
from bench.session import RunRefused

RUN = Path("runs/one")


def refusal(before, now):
    with pytest.raises(RunRefused) as e:
        continued(before, now, RUN)
    return str(e.value)


def test_the_same_run_goes_on_with_a_note():
    now = manifest(
        started="2026-01-03T00:00:00+00:00", versions={"torch": "2", "numpy": "3"}, flags=("warm",)
    )
    made = continued(manifest(notes=("one",)), now, RUN)
    words = "resumed at 2026-01-03T00:00:00+00:00 with other versions: numpy unknown -> 3"
    assert made.notes == ("one", words) and made.flags == ("warm",)


def test_arms_that_are_gone_need_their_file():
    text = refusal(manifest(arms=("cake", "mine", "yours")), manifest(arms=("cake",)))
    assert text == (
        "cannot resume runs/one: arms: 3 then, 1 now, without mine and 1 more; go on with `cake-bench run "
        "--resume runs/one` --arms FILE with the arms it began with and no further options, or start a new "
        "run (leave out --resume)"
    )


def test_rows_are_counted_not_listed():
    text = refusal(manifest(rows=()), manifest())
    assert "rows: 0 then, 1 now, with router-bwd-eager-T16-H64-N32; " in text
    assert "in another order" in refusal(manifest(arms=("a", "b")), manifest(arms=("b", "a")))


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        ({"git": {"commit": "aaa"}}, {"git": {"commit": "bbb"}}, "commit was aaa, now bbb"),
        (
            {"cake_digest": "a" * 64},
            {"cake_digest": "b" * 64},
            f"digest of cake's files was {'a' * 12}, now {'b' * 12}",
        ),
        (
            {"judgement": {"level": 0.9}},
            {"judgement": {"level": 0.8}},
            "judgement was level 0.9, now level 0.8",
        ),
        ({"versions": {"cublas": "13.1"}}, {"versions": {"cublas": "13.2"}}, "cublas was 13.1, now 13.2"),
        ({"versions": {"torch": "2.11"}}, {"versions": {"torch": "2.12"}}, "torch was 2.11, now 2.12"),
    ],
)
def test_other_code_is_refused(was, now, words):
    assert refusal(manifest(**was), manifest(**now)) == (
        f"cannot resume runs/one: {words}; its finished rows are of other code: put that back, or start a "
        "new run"
    )


def test_a_commit_that_one_side_does_not_know_is_no_other():
    assert continued(manifest(git={"commit": "aaa"}), manifest(), RUN).git == {"commit": "aaa"}
    assert continued(manifest(), manifest(cake_digest="b" * 64), RUN).cake_digest == ""
