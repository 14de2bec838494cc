"""Each repair of the fences, taken out again: the simulation must find a schedule against what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Mutation:
    """A repair taken out: how, and where a schedule against it is to be found.

    ``kinds`` is the scenario, ``preemptions`` and ``faults`` are the bounds within which one exists.
    """

    patches: Callable[[], dict[tuple[Any, str], Any]]
    kinds: tuple[str, ...]
    preemptions: int = 1
    faults: int = 0
    fault: tuple[str, ...] = ("die", "month")
    order: str = "reversed"

    def taken_out(self) -> AbstractContextManager[None]:
        """Take the repair out as long as the context lasts."""
        return _patched(self.patches())


@contextmanager
def _patched(patches: dict[tuple[Any, str], Any]) -> Iterator[None]:
    before = {(owner, name): getattr(owner, name) for owner, name in patches}
    for (owner, name), value in patches.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name), value in before.items():
            setattr(owner, name, value)


MUTATIONS: Final[dict[str, Mutation]] = {}
