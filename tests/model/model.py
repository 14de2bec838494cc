"""What the judge believes: one plain dictionary for each version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

Content = dict[str, str]
"""The mark of each object, by its key."""


@dataclass(frozen=True)
class Version:
    """What a version says.

    Attributes:
        content: the mark of each object, by its key.
        sum: the same as a number (:meth:`Model.sum_of`).
        operations: what may stand in the root as its operation.
        touched: the keys that its transaction wrote; ``None``: it replaced the whole tree, and conflicts with all.
        properties: those of the lakehouse, without the freeze.
        snapshots: the version of each snapshot, by its name.
        frozen: whether ordinary commits are refused.
        settled: whether no message may wait, and the counts are exact.
    """

    content: Content
    sum: int
    operations: frozenset[str]
    touched: frozenset[str] | None = frozenset()
    properties: Mapping[str, str] = field(default_factory=dict)
    snapshots: Mapping[str, int] = field(default_factory=dict)
    frozen: bool = False
    settled: bool = False


@dataclass
class Model:
    """All versions from the boundary up, and the content of snapshots whose version has expired."""

    versions: dict[int, Version] = field(default_factory=dict)
    newest: int = -1
    boundary: int = 0
    snapshot_content: dict[str, Version] = field(default_factory=dict)

    @property
    def now(self) -> Version:
        """The newest version."""
        return self.versions[self.newest]

    @staticmethod
    def sum_of(content: Mapping[str, str]) -> int:
        """Return what the judge of trees finds for this content."""
        return sum(map(hash, content.items())) % (1 << 64)

    def commit(self, number: int, operations: Iterable[str], changes: Mapping[str, str | None], **facts: Any) -> None:
        """Note a version: the one before it, with these changes."""
        assert number == self.newest + 1, f"version {number} was reported, and the model's newest is {self.newest}"
        before = self.now
        content, total = before.content, before.sum
        if changes:
            content = dict(content)
            for key, mark in sorted(changes.items(), key=itemgetter(0)):  # so that draws do not depend on a set's order
                if key in content:
                    total -= hash((key, content.pop(key)))
                if mark is not None:
                    content[key] = mark
                    total += hash((key, mark))
        facts.setdefault("touched", frozenset())
        facts.setdefault("settled", False)
        self.versions[number] = replace(
            before, content=content, sum=total % (1 << 64), operations=frozenset(operations), **facts
        )
        self.newest = number

    def since(self, base: int) -> list[Version]:
        """Return the versions after one."""
        return [self.versions[each] for each in range(base + 1, self.newest + 1) if each in self.versions]

    def advance(self, boundary: int) -> None:
        """Forget the versions below a boundary."""
        for number in range(self.boundary, boundary):
            self.versions.pop(number, None)
        self.boundary = max(self.boundary, boundary)
