"""The health of a lakehouse: the figures of its root, those of a walk over its tree, and the age of its backlog.

Whether compactions keep up is read off the history (:func:`debt`): since when more is buffered than is wanted.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from typing import Final

from pipelines import compaction
from pipelines.engine import Engine
from pipelines.engine.local import LocalEngine
from pipelines.job import Progress, silent
from pipelines.reach.kept_roots import gc_roots, live_transactions
from pipelines.reach.sweep import Size, Sweep, UnknownFiles
from pipelines.reach.walk import FOREVER, KEYS, MESSAGES, NODE, TEXT_BYTES, Start, TreeSource, walk
from pipelines.trees.policy import excess_messages
from trinitylake_core import Lakehouse, Stats, clock
from trinitylake_core.errors import VersionNotFound
from trinitylake_core.versions import Root, from_millis

_LOOKS: Final = 16
"""The number of versions between two that are read. A binary search is impossible: a compaction orders no versions."""


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the tree; ``height`` 0 are the leaves. ``fill`` is keys held of keys that would fit."""

    height: int
    nodes: int
    keys: int
    messages: int
    fill: float
    bytes: int
    over_target: int


@dataclass(frozen=True, slots=True)
class Reach:
    """What the files below the root are there for.

    Attributes:
        newest: what the newest version reaches.
        history: what only older versions, snapshots and live saved transactions reach; an expiration frees most of it.
        nothing: files that nothing reaches; `clean` removes them once they are old enough.
        foreign: unknown files, which belong to other programs.
    """

    newest: Size
    history: Size
    nothing: Size
    foreign: UnknownFiles


@dataclass(frozen=True, slots=True)
class Deep:
    """The health of one version.

    Attributes:
        summary: the statistics in the root.
        levels: from the root down.
        objects: keys that the version means, if the root's counts do.
        nodes: files of the tree.
        bytes: their size.
        reads_per_lookup: node files that a lookup of a key in a leaf reads, the root among them.
        reads_per_lookup_after: the same once it is compacted.
        hint_lag: versions that the latest hint is behind; ``None`` without a hint.
        oldest_version_age_seconds: age of the oldest version that is kept.
        compaction: what a compaction now would rewrite; ``None`` where the lakehouse is read-only.
        reach: what the files below the root are there for; ``None`` if it was not asked for.
    """

    summary: Stats
    levels: tuple[Level, ...]
    nodes: int
    keys: int
    messages: int
    bytes: int
    reads_per_lookup: float
    reads_per_lookup_after: float
    hint_lag: int | None
    oldest_version_age_seconds: float | None
    compaction: compaction.Estimate | None
    reach: Reach | None = None


def deep(
    lake: Lakehouse,
    engine: Engine | None = None,
    progress: Progress | None = None,
    *,
    storage: bool = False,
) -> Deep:
    """Return the health of the version of a handle. Reads every node of it, by default in this process.

    With ``storage`` it also counts the files below the root by their use: a listing, and one ``get`` per node
    of all versions together.
    """
    engine = engine or LocalEngine()
    progress = progress or silent
    versions = lake.backend.versions
    levels = _measure_levels(lake, engine, progress)
    keys = sum(level.keys for level in levels)
    hint = versions.hint()
    hint_lag = None
    if hint is not None:
        newest = versions.latest(lake.root_node).version
        hint_lag = max(0, newest - hint)
    estimate = None
    reach = None
    if not lake.read_only:
        estimate = compaction.estimate(lake.at(version=lake.version))
        if storage:
            reach = _measure_reach(lake, engine, progress)
    return Deep(
        summary=lake.stats(),
        levels=levels,
        nodes=sum(level.nodes for level in levels),
        keys=keys,
        messages=sum(level.messages for level in levels),
        bytes=sum(level.bytes for level in levels),
        reads_per_lookup=_reads_per_lookup(levels),
        reads_per_lookup_after=_reads_after(keys, lake.definition.order, levels),
        hint_lag=hint_lag,
        oldest_version_age_seconds=_oldest_age(lake),
        compaction=estimate,
        reach=reach,
    )


def _measure_levels(lake: Lakehouse, engine: Engine, progress: Progress) -> tuple[Level, ...]:
    """Return the levels of a tree. One ``get`` per node."""
    if lake.read_only:
        node = lake.root_node.node
        return (Level(0, 1, len(node.keys), 0, 1.0, node.nbytes, 0),)
    order = lake.definition.order
    target = lake.definition.node_file_max_size_bytes
    start = Start(lake.root_node.path, lake.version, lake.version)
    source = TreeSource(lake.storage, order, files=False)
    with closing(engine):
        walked = walk(engine, source, [start], progress)
        rows = walked.ask(
            f"""SELECT height, sum(CASE WHEN role = {NODE} THEN 1 ELSE 0 END) AS nodes,
            sum(CASE WHEN role = {KEYS} THEN size ELSE 0 END) AS keys,
            sum(CASE WHEN role = {MESSAGES} THEN size ELSE 0 END) AS messages,
            sum(CASE WHEN role = {NODE} THEN size ELSE 0 END) AS bytes,
            sum(CASE WHEN role = {TEXT_BYTES} AND size > {target} THEN 1 ELSE 0 END) AS over_target
            FROM walked WHERE role IN ({NODE}, {KEYS}, {MESSAGES}, {TEXT_BYTES}) AND size IS NOT NULL
            GROUP BY height ORDER BY height DESC"""
        ).list()
    levels = []
    for row in rows:
        room = row["nodes"] * (order - 1)
        levels.append(Level(fill=round(row["keys"] / room, 4), **row))
    return tuple(levels)


def _oldest_age(lake: Lakehouse) -> float | None:
    """Return the age of the oldest version that is kept. Two ``get``."""
    versions = lake.backend.versions
    first = max(versions.kept_from(lake.version), lake.root_node.oldest_version)
    oldest = versions.try_readable(first, lake.root_node)
    if oldest is None:
        return None
    millis = max(0, clock.now_millis() - oldest.created_at_millis)
    return round(millis / 1000, 3)


def _measure_reach(lake: Lakehouse, engine: Engine, progress: Progress) -> Reach:
    backend = lake.backend
    sweep = Sweep(engine, backend.storage, lake.definition.order, progress)
    try:
        sweep.list_files(None, {})
        ttl = lake.definition.txn_ttl_millis
        saved = live_transactions(backend.storage, sweep.transactions, ttl, clock.now_millis())
        current = gc_roots(backend)
        starts = []
        others = []
        for each in (*current.starts(), *saved.starts):
            if each.last < FOREVER:
                starts.append(each)
            else:  # a snapshot, or a saved transaction: of no version's range
                others.append(Start(each.path, -1, -1))
        sweep.mark([*starts, *others], saved.paths)
        found = sweep.sizes(current.newest.version, current.boundary)
    finally:
        sweep.release()
    return Reach(**found, foreign=sweep.unknown)


def _reads_per_lookup(levels: tuple[Level, ...]) -> float:
    """Weigh the depth of each key by how many keys stand there."""
    top = levels[0].height
    keys = 0
    reads = 0
    for level in levels:
        here = level.keys + level.messages
        depth = top - level.height + 1
        keys += here
        reads += depth * here
    if keys == 0:
        return 1.0
    return round(reads / keys, 3)


def _reads_after(keys: int, order: int, levels: tuple[Level, ...]) -> float:
    """Return how many nodes a lookup of a key in a leaf reads in a compacted tree."""
    if not any(level.messages for level in levels):
        return _reads_per_lookup(levels)
    per_node = order * 2 / 3  # a node is about two thirds full
    height = 0
    width = max(1.0, keys / max(1, per_node))
    while width > 1:
        height += 1
        width /= per_node
    return float(height + 1)


# -- since when -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Debt:
    """The buffered messages of the newest version, and since when there are too many.

    Attributes:
        version: the newest version.
        messages: what is buffered in it, and more than may wait there.
        threshold: from how many on that is too much.
        since: a time at which there already were too many; no version read between then and now had fewer.
        looks: the number of versions that were read.
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
    found = Debt(root.version, _excess(lake, root), threshold)
    if not found.over or lake.read_only:
        return found
    if now is None:
        now = clock.now_millis()
    before = now - round(max_age_seconds * 1000)
    roots = _sample_roots(lake, before)
    over = list(takewhile(lambda each: _excess(lake, each) >= threshold, roots))
    since = over[-1].created_at_millis
    stale = len(over) == len(roots) and since <= before
    return replace(found, since=from_millis(since), looks=len(roots), stale=stale)


def _sample_roots(lake: Lakehouse, before: int) -> list[Root]:
    """Return roots from the newest back to the one that was the newest then, as far as it is kept."""
    newest = lake.root_node
    versions = lake.backend.versions
    try:
        first = versions.at_timestamp(before, newest)
    except VersionNotFound:  # the lakehouse, or its history, is younger than that
        return [newest]
    count = newest.version - first.version
    if count == 0:
        return [newest]
    step = -(-count // (_LOOKS + 1))
    roots = [newest]
    for each in versions.read_roots(range(newest.version - step, first.version, -step)):
        if each is not None and each.unreadable is None:
            roots.append(each)
    roots.append(first)
    return roots


def _excess(lake: Lakehouse, root: Root) -> int:
    """Return the number of buffered messages that are more than may wait there, by the policy of compactions."""
    node = root.node
    return excess_messages(messages_of(root), node.subtree_keys, node.height, lake.definition.order)


def messages_of(root: Root) -> int:
    """Return the number of buffered messages, as far as the root contains it."""
    counted = root.node.subtree_messages
    if counted is None:
        return len(root.node.buffer)
    return counted
