"""The code server ends when nobody behind it answers any more, and not because somebody is busy."""

from __future__ import annotations

from pathlib import Path

from dagster_project.code_server import Patience, answers, watch


def test_it_gives_up_after_three_refusals_in_a_row() -> None:
    patience = Patience(refused=3)
    assert [False, False, False, False, False, True] == [
        patience.lost(answer, 0.0) for answer in (False, False, True, False, False, False)
    ]


def test_one_that_is_busy_may_be_silent_for_a_while() -> None:
    patience = Patience(silent_seconds=60)
    heard = [(None, 0.0), (None, 59.0), (True, 60.0), (None, 70.0), (None, 129.0), (None, 130.0)]
    assert [False, False, False, False, False, True] == [patience.lost(*each) for each in heard]


def test_before_the_first_answer_it_waits_however_long_loading_takes() -> None:
    answered = iter([False, None, False, False, False, True, True, False, False, False])
    ended, slept = [], []
    watch(lambda: next(answered), lambda: ended.append(1), Patience(), slept.append)
    assert ([1], [], 8) == (ended, list(answered), len(slept))


def test_nobody_there_is_a_refusal(tmp_path: Path) -> None:
    assert answers(str(tmp_path / "nothing.sock"), 5) is False
