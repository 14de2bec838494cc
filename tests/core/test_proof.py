"""What a proof of a store says when some who race fail: two winners are too many, whatever became of the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.few_threads import few_threads
from trinitylake_core.errors import OutcomeUnknown, StorageError, UnsafeStorage
from trinitylake_core.storage import open_storage
from trinitylake_core.storage.contests import Creations, Replacements
from trinitylake_core.storage.failures import TransientError
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


class Outage(Replacements):
    """Replacements on a real disk that fails from the moment at which the first one was carried out."""

    def __init__(self, root: Path) -> None:
        storage = open_storage(f"file://{root}", {"retries": 0})
        super().__init__(storage)
        self.over = threading.Event()
        for each in self._clients:
            each.interceptor = self.fail_later

    def fail_later(self, kind: str, path: str, action: Callable[[], object]) -> object:
        """Carry a request out, and lose its answer; after a replacement, fail everything."""
        if self.over.is_set() and not path.endswith("none"):
            raise TransientError("503")
        done = action()
        if kind == "put" and self._states:
            self.over.set()
            raise TransientError("500 after it was carried out")
        return done


def test_an_outage_is_no_proof_that_a_store_is_unfit(tmp_path: Path) -> None:
    """The winner never learns that it won, and nobody can look: none won, as far as they know."""
    with pytest.raises(StorageError) as raised:
        prove(Outage(tmp_path), SHORT, "_doctor-test/")
    assert not isinstance(raised.value, UnsafeStorage)


@pytest.mark.parametrize("started", [0, 3])
def test_a_proof_without_its_threads_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: int) -> None:
    """Who waits at the barrier for the others is let go."""
    storage = open_storage(f"file://{tmp_path}")
    monkeypatch.setattr(Creations, "warm_up", lambda *_: None)  # so quick that one thread does it
    with few_threads(started) as begun, pytest.raises(StorageError, match="more threads than this process gets"):
        prove(Creations(storage), SHORT, "_doctor-test/")
    for thread in begun:
        thread.join(10)
        assert not thread.is_alive()
