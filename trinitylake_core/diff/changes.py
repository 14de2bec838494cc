"""What a comparison of two versions yields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from trinitylake_core.keys import KeyCodec

ADDED = "added"
REMOVED = "removed"
CHANGED = "changed"
Row = tuple[str, str | None, str | None]
"""A key that differs, with its value on the old and on the new side."""


@dataclass(frozen=True, slots=True)
class Change:
    """One object that differs: ``added``, ``removed`` or ``changed`` from ``old_path`` to ``new_path``."""

    change: str
    kind: str
    namespace: str
    name: str | None
    key: str = field(repr=False)
    old_path: str | None
    new_path: str | None


def changes(rows: Iterable[Row], codec: KeyCodec) -> Iterator[Change]:
    """Yield the changes that rows of two versions mean."""
    for key, old, new in rows:
        what = ADDED if old is None else REMOVED if new is None else CHANGED
        yield Change(what, *codec.split(key), key, old, new)
