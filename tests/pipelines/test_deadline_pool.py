"""Work that may hang: deadlines hold, threads are counted, and what works is not held up by what hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pipelines.engine.deadline_pool import DeadlinePool, NoAnswer


@pytest.fixture
def hang() -> Iterator[Callable[[], None]]:
    """Return work that hangs until the test is over."""
    over = threading.Event()
    yield lambda: bool(over.wait(600)) and None
    over.set()


def eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 600
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_result_or_an_error_comes_back() -> None:
    bounded = DeadlinePool()
    assert 7 == bounded.one("a", lambda: 7, 60)
    with pytest.raises(ZeroDivisionError):
        bounded.one("a", lambda: 1 // 0, 60)


def test_what_hangs_is_left_behind_and_not_begun_again(hang: Callable[[], None]) -> None:
    bounded, begun = DeadlinePool(), []

    def work() -> None:
        begun.append(1)
        hang()

    with pytest.raises(NoAnswer, match="gave no answer within"):
        bounded.one("a", work, 0.02)
    with pytest.raises(NoAnswer, match="has given no answer for"):
        bounded.one("a", work, 5)
    assert ([1], 1, 3) == (begun, bounded.hanging, bounded.one("b", lambda: 3, 60))


def test_what_came_back_late_may_begin_again() -> None:
    bounded, over = DeadlinePool(), threading.Event()
    with pytest.raises(NoAnswer):
        bounded.one("a", lambda: over.wait(600), 0.02)
    over.set()
    eventually(lambda: bounded.hanging == 0)
    assert 4 == bounded.one("a", lambda: 4, 60)


def test_many_that_hang_do_not_hold_up_the_others(hang: Callable[[], None]) -> None:
    """More of them than threads; each costs its deadline once, in parallel, and the others all have their turn."""
    bounded = DeadlinePool(at_once=10)
    wanted = [(f"bad{n}", hang) if n % 2 else (f"good{n}", lambda: None) for n in range(40)]
    outcomes = {each.name: each.error for each in bounded.each(wanted, 1.0, 600)}
    assert {name for name, _ in wanted} == outcomes.keys()
    assert {name for name, _ in wanted if name.startswith("bad")} == {name for name, why in outcomes.items() if why}
    assert 20 == bounded.hanging


def test_never_more_threads_than_allowed_are_left_behind(hang: Callable[[], None]) -> None:
    """And half of them only by what never hung before."""
    bounded = DeadlinePool(at_once=2, hanging=4)
    outcomes = [each.error for each in bounded.each([(f"bad{n}", hang) for n in range(9)], 0.02, 600)]
    assert all(isinstance(each, NoAnswer) for each in outcomes)
    assert 4 <= bounded.hanging <= 5
    assert any("not tried while" in str(each) for each in outcomes)


def test_what_hung_before_waits_while_half_the_threads_hang(hang: Callable[[], None]) -> None:
    bounded, over = DeadlinePool(hanging=4), threading.Event()
    with pytest.raises(NoAnswer):
        bounded.one("suspect", lambda: over.wait(600), 0.02)
    over.set()
    eventually(lambda: bounded.hanging == 0)
    assert 2 == len([each for each in bounded.each([("x", hang), ("y", hang)], 0.02, 60) if each.error])
    with pytest.raises(NoAnswer, match="not tried while 2"):
        bounded.one("suspect", lambda: None, 5)
    assert bounded.one("new", lambda: True, 60)


def test_after_the_deadline_for_all_nothing_more_begins(hang: Callable[[], None]) -> None:
    bounded = DeadlinePool(at_once=2)
    outcomes = list(bounded.each([(f"bad{n}", hang) for n in range(100)], 0.05, 0.12))
    assert len(outcomes) < 20
