"""What a sweep counts and reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

SHOWN: Final = 20
"""How many names a report shows."""


@dataclass(slots=True)
class Size:
    """A number of files and their bytes."""

    files: int = 0
    bytes: int = 0

    def add(self, other: Size) -> None:
        """Count what was counted elsewhere."""
        self.files += other.files
        self.bytes += other.bytes


@dataclass(slots=True)
class UnknownFiles:
    """Files whose names the format does not define, and directories of other names, which are never listed."""

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
