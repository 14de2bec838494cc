"""What consecutive roots have in common, stored once.

A root holds its children and the paths in its write buffer, and the next version's root nearly the same ones. Handed
on as they are, a thousand versions would be a thousand write buffers. As *runs* (these paths, from this version to
that one) they are one, and what the commits added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

Row = Mapping[str, Any]
_HELD: Final = ("children", "files")


def in_runs(roots: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of roots, given by version, without what they hold; and runs, rows whose ``path`` is ``None``.

    A run ends where a version is missing, where the height changes, and with the rows.
    """
    held: dict[str, dict[str, int]] = {column: {} for column in _HELD}
    before: Row | None = None
    for root in roots:
        if before is not None:
            follows = root["first"] == before["last"] + 1 and root["height"] == before["height"]
            yield from _ended(held, before, root if follows else None)
        for column, paths in held.items():
            for path in root[column]:
                paths.setdefault(path, root["first"])
        yield {**root, "children": [], "files": []}
        before = root
    if before is not None:
        yield from _ended(held, before, None)


def _ended(held: Mapping[str, dict[str, int]], before: Row, root: Row | None) -> Iterator[Row]:
    """Yield what the version before held and ``root`` does not, by the version that it was held since."""
    ended: dict[int, dict[str, list[str]]] = {}
    for column, paths in held.items():
        still = frozenset(() if root is None else root[column])
        for path in [path for path in paths if path not in still]:
            ended.setdefault(paths.pop(path), {each: [] for each in _HELD})[column].append(path)
    for first, gone in ended.items():
        yield {**dict.fromkeys(before), "height": before["height"], "first": first, "last": before["last"], **gone}
