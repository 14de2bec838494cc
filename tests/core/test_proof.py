"""What a proof of a store says when some who race fail: two winners are too many, whatever became of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from trinitylake_core.errors import OutcomeUnknown, StorageError, UnsafeStorage
from trinitylake_core.storage import open_storage
from trinitylake_core.storage.contests import Creations
from trinitylake_core.storage.proof import SHORT, prove

LOST = "no answer came"


class Struck(Creations):
    """Creations on a real disk, of which the last racer never learns its outcome; others may be told that they won."""

    def __init__(self, root: Path, *, told: int) -> None:
        storage = open_storage(f"file://{root}")
        storage.prove_exclusive_create()
        super().__init__(storage)
        self.told = told

    def attempt(self, client: int, name: str, data: bytes) -> bool:
        """Take part; the last racer is told nothing."""
        won = super().attempt(client, name, data)
        number = int(data)
        if number == SHORT.racers - 1:
            raise OutcomeUnknown(LOST)
        return won or number < self.told


def test_two_winners_are_too_many_although_another_racer_failed(tmp_path: Path) -> None:
    """A store that answers 500 in the crush, and lets the others win, is unfit: it is not a failure to try again."""
    with pytest.raises(UnsafeStorage, match=r"round 1: [23] of 8 racing creations of one file succeeded; one must"):
        prove(Struck(tmp_path, told=2), SHORT, "_doctor-test/")


def test_nothing_is_proved_where_the_only_winner_may_have_been_another(tmp_path: Path) -> None:
    """One winner at most, and one whose answer was lost: the store is neither fit nor unfit."""
    with pytest.raises(StorageError, match=LOST):
        prove(Struck(tmp_path, told=0), SHORT, "_doctor-test/")
