"""What a sweep counts and reports, whichever engine it runs on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pipelines.files.deletion import Deleted
from pipelines.files.listing import Listed
from pipelines.trees.walk import Start

SHOWN: Final = 20
"""How many names a report shows."""


@dataclass(slots=True)
class Size:
    """A number of files and their bytes."""

    files: int = 0
    bytes: int = 0

    def count(self, size: int) -> None:
        """Count one file."""
        self.files += 1
        self.bytes += size

    def add(self, other: Size) -> None:
        """Count what was counted elsewhere."""
        self.files += other.files
        self.bytes += other.bytes


@dataclass(slots=True)
class UnknownFiles:
    """Files whose names the format does not define, and directories of other names, which are never looked into."""

    files: int = 0
    bytes: int = 0
    directories: tuple[str, ...] = ()
    some: tuple[str, ...] = ()


@dataclass(slots=True)
class Totals:
    """Orphans by kind; ``young`` are unreachable and stay until they are old enough, as do those of unknown age."""

    kinds: dict[str, Size] = field(default_factory=dict)
    young: Size = field(default_factory=Size)
    unknown_age: Size = field(default_factory=Size)

    @property
    def files(self) -> int:
        """The number of orphans."""
        return sum(each.files for each in self.kinds.values())

    @property
    def bytes(self) -> int:
        """Their size."""
        return sum(each.bytes for each in self.kinds.values())


@dataclass(slots=True)
class Alone:
    """What only some versions reach: in total, and by version what no other version holds."""

    total: Size
    versions: dict[int, Size]


@dataclass(slots=True)
class Sizes:
    """What the newest version reaches, what only the rest of history does, and what nothing does."""

    newest: Size = field(default_factory=Size)
    history: Size = field(default_factory=Size)
    nothing: Size = field(default_factory=Size)


class Sweep(Protocol):
    """The state of one sweep, wherever it is kept: what is listed, what is live, and what is neither."""

    unknown: UnknownFiles
    nodes_read: int

    def list_files(self, inventory: str | None, options: Mapping[str, Any]) -> Size:
        """List everything, or read an inventory, before anything is marked; return how much there is."""

    def list_transactions(self) -> None:
        """List everything again, and take from it the saved transactions there are now."""

    def transactions(self) -> list[tuple[str, int]]:
        """Return the saved transactions that were listed last, with their age."""

    def mark(self, starts: Sequence[Start], paths: AbstractSet[str], *, afresh: bool = False) -> None:
        """Mark what roots reach, and ``paths``; what is marked already is not read again, unless ``afresh``.

        Raises:
            Corrupt: a node cannot be read, so nobody knows what it reaches.
        """

    def subtract(self, boundary: int, cutoff_millis: int) -> Totals:
        """Keep as orphans what is listed, old enough, of a name that may go, and not live; return their totals."""

    def subtract_again(self) -> Totals:
        """Take what has been marked since off the orphans."""

    def orphans(self) -> Iterator[Listed]:
        """Yield the orphans."""

    def load(self, files: Iterable[Listed]) -> None:
        """Take the orphans of a plan."""

    def reached(self) -> list[str]:
        """Return some orphans that are live."""

    def agree(self, cutoff_millis: int) -> tuple[Totals, int]:
        """Keep of a plan what is still listed and old enough; return its totals, and how many files are gone."""

    def act(self) -> Deleted:
        """Delete the orphans."""

    def alone(self, below: int) -> Alone:
        """Return what only versions below one reach, and of it what a single version holds."""

    def sizes(self, newest: int, boundary: int) -> Sizes:
        """Return what the newest version reaches, what only the rest of history does, and what nothing does."""

    def release(self) -> None:
        """Give back what the marks take."""
