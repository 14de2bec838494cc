"""Whether compactions keep up, told by the lakehouse itself: since when more is buffered than is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from trinitylake_core import Lakehouse
from trinitylake_core.commit import now_millis
from trinitylake_core.errors import VersionNotFound
from trinitylake_core.versions import Root, Versions, from_millis

_LOOKS: Final = 16
"""How many versions between two are looked at. Nobody can search there: a compaction is no ordering of versions."""


@dataclass(frozen=True, slots=True)
class Debt:
    """The buffered messages of the newest version, and since when there are too many.

    Attributes:
        version: the newest version.
        messages: what is buffered in it.
        threshold: from how many on that is too much.
        since: when there already were too many; at no look between then and now were there fewer.
        looks: how many versions were looked at.
        stale: whether that lasts longer than allowed. Without debt nothing is ever stale.
    """

    version: int
    messages: int
    threshold: int
    since: datetime | None = None
    looks: int = 1
    stale: bool = False

    @property
    def over(self) -> bool:
        """Whether there are too many now."""
        return self.messages >= self.threshold


def debt(lake: Lakehouse, threshold: int, max_age_seconds: float, now: int | None = None) -> Debt:
    """Return the debt of a handle's version, which is the newest.

    No request while the debt is small; else O(log versions) ``get`` to find the version of ``max_age_seconds``
    ago, and 16 between that one and this.
    """
    root = lake.root_node
    found = Debt(root.version, messages_of(root), threshold)
    if not found.over or lake.read_only:
        return found
    before = (now_millis() if now is None else now) - round(max_age_seconds * 1000)
    looked_at = _looks(lake.files.versions, root, before)
    over: list[Root] = []
    for each in looked_at:
        if messages_of(each) < threshold:
            break
        over.append(each)
    stale = len(over) == len(looked_at) and over[-1].created_at_millis <= before
    return Debt(root.version, found.messages, threshold, from_millis(over[-1].created_at_millis), len(looked_at), stale)


def messages_of(root: Root) -> int:
    """Return how many messages are buffered, as far as the root tells."""
    counted = root.node.subtree_messages
    return len(root.node.buffer) if counted is None else counted


def _looks(versions: Versions, newest: Root, before: int) -> list[Root]:
    """Return versions from the newest back to the one that was the newest at a time, as far as one is kept."""
    try:
        first = versions.at_timestamp(before, newest)
    except VersionNotFound:  # the lakehouse, or its history, is younger than that
        return [newest]
    count = newest.version - first.version
    step = max(1, -(-count // (_LOOKS + 1)))
    between = range(newest.version - step, first.version, -step)
    found = [root for root in versions.roots(between) if root is not None]
    return [newest, *found, *([first] if count else [])]
