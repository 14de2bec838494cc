"""What a compaction of tables plans, what becomes of each table, and what an engine does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Final, TypeVar

from pipelines.job import Cancel
from pipelines.tables.compact.decision import GroupDecision, GroupRules
from trinitylake_core import Lakehouse
from trinitylake_core.errors import InvalidInput

T = TypeVar("T")

BINPACK: Final = "binpack"
SORT: Final = "sort"
ZORDER: Final = "zorder"
STRATEGIES: Final = (BINPACK, SORT, ZORDER)
COUNTS: Final = "counts"
HASH: Final = "hash"
UNPROVED: Final = "none"
PROOFS: Final = (COUNTS, HASH, UNPROVED)

DONE: Final = "done"
LOST: Final = "lost to a writer"
UNREADABLE: Final = "unreadable"
UNSUPPORTED: Final = "not by this engine"
TOO_LARGE: Final = "too large"
VOID: Final = "void files"
FROZEN: Final = "frozen"
TIMEOUT: Final = "timeout"
ENDED: Final = "Spark ended"
UNPROVEN: Final = "not proved"
WRONG: Final = "proof failed"
GONE: Final = "it was dropped or renamed since the plan was made"


@dataclass(frozen=True, slots=True)
class Policy:
    """How the tables of a pattern are compacted; their own properties win.

    Attributes:
        pattern: only tables of these names: ``sales.*``.
        enabled: whether they are compacted at all.
        rules: when a partition is rewritten.
        where: a predicate over partition columns: only partitions that lie wholly within it.
        manifests: tables with so many manifests of data files get fewer; ``None``: their manifests are left alone.
    """

    pattern: str | None = None
    enabled: bool = True
    rules: GroupRules = field(default_factory=GroupRules)
    where: str | None = None
    manifests: int | None = None

    def __post_init__(self) -> None:
        if self.manifests is not None and self.manifests < 2:
            raise InvalidInput(f"manifests is at least 2, not {self.manifests}: one manifest cannot be merged")
        if self.where is not None and not self.where.strip():
            raise InvalidInput("where is empty; leave it out to compact all partitions")


@dataclass(frozen=True, slots=True)
class NamedEndpoint:
    """A running `trinitylake serve`, for a Spark that cannot reach this process.

    Attributes:
        uri: its address, as Spark reaches it.
        warehouse: the name of the lakehouse there.
        token: of a principal that may write; it is not shown.
    """

    uri: str
    warehouse: str
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.uri.startswith(("http://", "https://")) or not self.warehouse:
            raise InvalidInput("an endpoint is a URL that starts with https:// or http://, and the name of a warehouse")

    def properties(self) -> dict[str, str]:
        """Return the properties of a catalog."""
        return {"uri": self.uri, "warehouse": self.warehouse, **({"token": self.token} if self.token else {})}


@dataclass(frozen=True, slots=True)
class Settings:
    """How files are rewritten, whatever the table.

    Attributes:
        strategy: ``binpack``; ``sort`` by the table's sort order or ``zorder``, which need Spark.
        prove: ``counts``, ``hash`` or ``none``.
        partial: commits of one table, for engines that commit a part of it at a time; 1: all or nothing.
        at_once: tables at the same time.
        seconds: no table is begun after so long, and one that is under way is stopped; ``None``: no limit. One of
            several is stopped once it has taken half of what was left when it began.
        endpoint: for a Spark that cannot reach an endpoint in this process.
        reason: recorded in the history, unless ``endpoint`` commits.
    """

    strategy: str = BINPACK
    prove: str = COUNTS
    partial: int = 10
    at_once: int = 2
    seconds: float | None = None
    endpoint: NamedEndpoint | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise InvalidInput(f"strategy must be one of {', '.join(STRATEGIES)}, not {self.strategy!r}")
        if self.prove not in PROOFS:
            raise InvalidInput(f"prove must be one of {', '.join(PROOFS)}, not {self.prove!r}")
        if self.partial < 1 or self.at_once < 1:
            raise InvalidInput("partial and the number of tables at the same time are at least 1")
        if self.seconds is not None and self.seconds <= 0:
            raise InvalidInput("a budget of no time is none: give a time above zero, or leave it out")


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """The files of one partition by one spec that are to be replaced.

    Attributes:
        spec_id: the partition spec.
        paths: the URIs of the files, with their ``sizes``; large ones, which become several, stand last.
        decision: why, and what it will make of them.
        delete_files: how many delete files may apply.
        deletes_elsewhere: files of position deletes by other specs, which some engine may apply all the same.
    """

    spec_id: int
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    decision: GroupDecision
    delete_files: int = 0
    deletes_elsewhere: int = 0


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A table of which files are to be replaced.

    Attributes:
        name: its name, ``sales.orders``; ``identifier`` the same, as the catalog takes it.
        uuid: its identity; ``metadata_location`` and ``snapshot_id`` are what was read.
        format_version: of its metadata.
        target: the size that its data files shall have, in bytes.
        groups: what is to be replaced, the best first.
        equality_deletes: how many of them delete by equality.
        manifests: how many manifests of data files are to become few; 0: they are left alone.
        refs: tags, and branches but ``main``, which keep the files that are replaced.
        foreign_to_spark: the type of a column for which Spark has none; empty without one.
    """

    name: str
    identifier: tuple[str, ...]
    uuid: str
    metadata_location: str
    snapshot_id: int
    format_version: int
    target: int
    groups: tuple[PlannedGroup, ...]
    equality_deletes: int = 0
    manifests: int = 0
    refs: tuple[str, ...] = ()
    foreign_to_spark: str = ""

    def without_splits(self) -> PlannedTable:
        """Return the table with its small files alone: large ones stay as they are."""
        groups: list[PlannedGroup] = []
        for each in self.groups:
            merge = each.decision.merge
            if merge is None:
                groups.append(each)
            elif merge.wanted:
                paths, sizes = each.paths[: merge.files], each.sizes[: merge.files]
                groups.append(replace(each, paths=paths, sizes=sizes, decision=merge))
        return replace(self, groups=tuple(groups))

    @property
    def files(self) -> int:
        """How many data files are to be replaced."""
        return sum(each.decision.files for each in self.groups)

    @property
    def bytes(self) -> int:
        """Their sizes together."""
        return sum(each.decision.bytes for each in self.groups)

    @property
    def after(self) -> int:
        """How many files shall be made of them."""
        return sum(each.decision.after for each in self.groups)

    @property
    def delete_files(self) -> int:
        """How many delete files may apply to them, counted for each partition."""
        return sum(each.delete_files for each in self.groups)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one table.

    Attributes:
        table: its name.
        outcome: one of the words above, from :data:`DONE` on.
        engine: what rewrote it.
        reason: why, where it was not done, and what to do.
        partitions: how many groups of files were replaced.
        files: the data files that went, of ``bytes``; ``after`` those that came, of ``bytes_after``.
        seconds: how long it took.
        commits: how many commits; changes of other tables may be in the same.
        conflicts: how often a writer came first.
        proved: the proof that held; empty without one.
        manifests: the manifests of data files that were to become few by the policy, and did.
    """

    table: str
    outcome: str
    engine: str = ""
    reason: str = ""
    partitions: int = 0
    files: int = 0
    after: int = 0
    bytes: int = 0
    bytes_after: int = 0
    seconds: float = 0.0
    commits: int = 0
    conflicts: int = 0
    proved: str = ""
    manifests: int = 0


def join_outcomes(first: Outcome | None, last: Outcome) -> Outcome:
    """Return the outcome of a table of which one rewrite has replaced a part, or nothing, and a later one the rest."""
    if first is None:
        return last
    sums = {name: getattr(first, name) + getattr(last, name) for name in _SUMMED}
    engines = last.engine
    if first.commits and first.engine != engines:
        engines = f"{first.engine}, {engines}"
    return replace(last, engine=engines, manifests=max(first.manifests, last.manifests), **sums)


_SUMMED: Final = ("partitions", "files", "after", "bytes", "bytes_after", "seconds", "commits", "conflicts")


class RunTime:
    """The time of a run: a table that others share it with takes half of what is left when it begins, at the most.

    Else the tables of one writer, made to take hours, would be all that is ever begun. A table has a thread of its own.
    """

    def __init__(self, seconds: float | None) -> None:
        self._ends = None if seconds is None else monotonic() + seconds
        self._table = threading.local()

    def begin_table(self, tables: int) -> None:
        """Note that this thread begins one of so many tables."""
        if self._ends is not None and tables > 1:
            now = monotonic()
            self._table.ends = now + (self._ends - now) / 2

    def is_over(self) -> bool:
        """Whether the time of the run, or of the table of this thread, is used up."""
        if self._ends is None:
            return False
        ends = getattr(self._table, "ends", self._ends)
        return monotonic() > min(ends, self._ends)


class TableEngine:
    """Rewrites files of tables.

    Attributes:
        name: ``local`` or ``spark``, for the report.
        versions: how many versions it has committed.
        left: tables of which it could not rewrite all groups, as their files showed, by name: each with those groups.
        settings: how files are rewritten, and the ``time`` that there is for it.
        cancel: what stops it.
    """

    name: str

    def __init__(self, lake: Lakehouse, settings: Settings, cancel: Cancel) -> None:
        self.versions = 0
        self.left: dict[str, PlannedTable] = {}
        self.settings = settings
        self.cancel = cancel
        self.time = RunTime(settings.seconds)
        self._lake = lake

    def map_tables(self, act: Callable[[PlannedTable], T], tables: Sequence[PlannedTable]) -> Iterator[T]:
        """Yield what is made of each table, some at the same time."""

        def begin(table: PlannedTable) -> T:
            self.time.begin_table(len(tables))
            return act(table)

        with ThreadPoolExecutor(self.settings.at_once, thread_name_prefix="compact") as threads:
            try:
                yield from threads.map(begin, tables)
            except BaseException:
                threads.shutdown(wait=True, cancel_futures=True)
                raise

    def why_not(self, table: PlannedTable) -> str | None:
        """Return why this engine cannot rewrite a table as planned, and what to do; ``None`` if it can. No request."""
        raise NotImplementedError

    def rewrite(self, tables: Sequence[PlannedTable]) -> Iterator[Outcome]:
        """Replace the files of tables, prove it, and commit; yield an outcome for each table, in any order.

        What one table's files or writers cause is its outcome. REQUIRES: :meth:`why_not` of each is ``None``.

        Raises:
            StorageError: the storage fails for all.
            Whatever ``cancel.check`` raises: nothing more is committed.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Give back what the engine holds."""
