"""Verification (``verify``): every invariant over one version, or all that are kept (``docs/format.md``, I1 to I22).

Passes over the versions, on Spark or in this process, with the same findings:

1. **roots**: system rows, the link to the version before, the lakehouse definition, boundary and snapshots;
2. **nodes**: level by level, each shared node read once and examined against what all its parents record; what the
   oldest version means is proved from the same nodes: namespaces, and with ``definitions`` every definition;
3. with ``deep`` **tables**: what the metadata of the Iceberg tables that nodes name refer to (see ``deep_tables``);
4. **contents**: what changed from each version to the next, proved as the oldest version is (see ``checks``).

A damaged file is a finding. The subtree below it is skipped, and everything else is still verified.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pipelines.engine import open_engine
from pipelines.engine.choice import choose_engine_for_all
from pipelines.integrity.checks import Checks, Shape
from pipelines.integrity.deep_tables import FILES_UNKNOWN, prove_table_files
from pipelines.integrity.examine import row_of_root
from pipelines.integrity.findings import (
    DEFINITIONS,
    DEFINITIONS_PROVED,
    NODES_NAMED,
    Finding,
    Found,
    findings_table,
)
from pipelines.integrity.version_content import GatheredContent
from pipelines.job import Progress, Session, Stopwatch, refuse_unknown, silent
from pipelines.reach.table_files import TABLES, TABLES_UNKNOWN, UNSEEN, refuse_no_iceberg, refuse_no_share
from pipelines.reach.walk import IN_SNAPSHOT, OF_NO_VERSION, Walk
from pipelines.reports.summary import Table, count
from trinitylake_core import Lakehouse
from trinitylake_core.check import check_lakehouse, check_version, violation
from trinitylake_core.errors import Corrupt, InvalidDefinition, InvalidInput, InvalidLocation
from trinitylake_core.locations import validate_path
from trinitylake_core.recovery.target import plain_number
from trinitylake_core.short_repr import ShortRepr, first_of
from trinitylake_core.storage import Storage
from trinitylake_core.versions import Root, Versions, VersionsReadOnce
from trinitylake_core.versions.search import listed_versions

NEWEST: Final = "newest"
ALL: Final = "all"
_NO_VERSION: Final = -1
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Config:
    """The options of a verification.

    Attributes:
        versions: ``newest``, ``all`` that are kept and the trees of all snapshots, or one version by number.
        definitions: read and parse every definition, too.
        tables: the share of the Iceberg tables, from 0 to 1, whose metadata file must exist (I19); ``None``: none.
            Definitions are read for that, too. Not for versions that older generations of the format wrote.
        oldest: with ``all``, verify no version below this one.
        deep: of these tables, read every metadata file, manifest list and manifest, and ask for every live file (I20).
        engine: ``spark``, ``local``, or ``auto``: Spark on
            other machines for large lakehouses.
    """

    versions: str | int = NEWEST
    definitions: bool = False
    engine: str = "auto"
    tables: float | None = None
    deep: bool = False
    oldest: int = 0

    def __post_init__(self) -> None:
        refuse_unknown(self.engine)
        refuse_no_share(self.tables)
        if self.deep:
            refuse_no_iceberg()
            if self.tables is None:
                raise InvalidInput("deep is about the files of tables: give the share of the tables, too")
        number = plain_number(str(self.versions))
        if number is not None:
            object.__setattr__(self, "versions", number)
        elif self.versions not in {NEWEST, ALL}:
            raise InvalidInput(f"versions must be {NEWEST!r}, {ALL!r} or a number, not {self.versions!r}")


@dataclass(frozen=True, slots=True, repr=False)
class Report(ShortRepr):
    """The findings. ``versions`` are the versions that were verified; ``nodes_read`` counts each shared node once.

    ``nodes_named`` of them contain their own path. ``definitions_read`` is 0 unless definitions are verified;
    ``definitions_proved`` of them end with a checksum. Older files have neither, and gain both when they are rewritten.
    The metadata files of ``tables_checked`` were searched; those of ``tables_unknown`` could not be, for want of a
    client. Of tables ``unseen`` a store gave no answer, or refused our credentials: each is named with the store, and
    with one of them the verification is not ``ok``. ``table_files`` counts the distinct files that ``deep`` examined,
    by kind. The versions ``lost`` are marked as such (``mend``), and were left out.
    """

    root: str
    engine: str
    versions: list[int]
    ok: bool = True
    findings: list[Finding] = field(default_factory=list)
    unseen: list[Finding] = field(default_factory=list)
    more: int = 0
    nodes_read: int = 0
    nodes_named: int = 0
    definitions_read: int = 0
    definitions_proved: int = 0
    tables_checked: int = 0
    tables_unknown: int = 0
    table_files: dict[str, int] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def summary(self) -> Iterator[str]:
        """Yield what was found, and how much was written before nodes knew their names and definitions their sums."""
        if len(self.versions) == 1:
            shown = f"version {self.versions[0]}"
        else:
            shown = f"{len(self.versions)} versions"
        if self.unseen:
            yield f"not proved, because a store gave no answer: {count(len(self.unseen), 'table')}"
        if not self.ok:
            yield f"{shown} checked; findings: {self.count_findings()}"
            return
        yield f"{shown} checked: every invariant holds"
        if self.lost:
            yield f"left out, marked as lost: {first_of([f'version {each}' for each in self.lost], _SHOWN)}"
        if self.nodes_named < self.nodes_read:
            yield f"{self.nodes_named} of {self.nodes_read} nodes know their own path; the others are older"
        if self.definitions_proved < self.definitions_read:
            yield f"{self.definitions_proved} of {self.definitions_read} definitions carry a checksum"
        if self.table_files:
            there = {kind: number for kind, number in self.table_files.items() if kind != FILES_UNKNOWN}
            counts = [count(number, kind) for kind, number in there.items()]
            yield f"every file of tables is there: {', '.join(counts)}"
        elif self.tables_checked:
            yield f"{self.tables_checked} tables have their metadata files"
        if self.tables_unknown:
            yield f"the metadata files of {count(self.tables_unknown, 'table')} cannot be looked for from here"
        unknown = self.table_files.get(FILES_UNKNOWN)
        if unknown:
            yield f"{count(unknown, 'file')} of tables elsewhere cannot be looked for from here"

    def concerns_snapshots_only(self) -> bool:
        """Return whether there are findings, and all of them are in snapshots: none that is not shown, either."""
        return not self.ok and not self.more and all(each.snapshot for each in [*self.findings, *self.unseen])

    def count_findings(self) -> str:
        """Return the number of findings, and whether all of them are in snapshots."""
        text = str(len(self.findings))
        if self.more:
            text += f" and {self.more} more"
        if self.concerns_snapshots_only():
            text += ", all of them in snapshots"
        return text

    def summary_tables(self) -> Iterator[Table]:
        """Yield the findings."""
        yield findings_table([*self.findings, *self.unseen], self.more)


def run(
    lake: Lakehouse | Storage,
    config: Config | None = None,
    spark: Session = None,
    *,
    progress: Progress | None = None,
) -> Report:
    """Verify versions of a lakehouse. Pass a storage where the newest version cannot be opened.

    Costs two ``get`` per version, a third where roots are large or Spark reads them; one per lakehouse definition, one
    per node of all versions together, one per node that differs between two versions, on both sides; one
    ``list`` for a thousand roots; with ``definitions`` one per definition; with ``tables`` one ``head`` per table, too;
    with ``deep`` instead what ``prove_table_files`` costs.

    Raises:
        NotALakehouse, VersionNotFound, VersionExpired: there is nothing to verify.
        StorageError: the storage failed; there is no result.
    """
    if isinstance(lake, Lakehouse):
        storage = lake.storage
    else:
        storage = lake
    return _Verification(
        spark=spark,
        storage=storage,
        config=config or Config(),
        progress=progress or silent,
    ).run()


class _Verification:
    def __init__(
        self,
        spark: Session,
        storage: Storage,
        config: Config,
        progress: Progress,
    ) -> None:
        self.config = config
        self.progress = progress
        self.versions = Versions(storage)
        self.found = Found()
        self.newest = self.find_newest()
        how = config.engine
        if self.newest is None:
            self.engine = open_engine(how, spark)
        else:
            self.engine = choose_engine_for_all(how, spark, self.newest)
        self.nodes_read = 0
        self.lost: list[int] = []
        self.snapshots = self.find_snapshots()
        self.table_files: dict[str, int] = {}
        self.watch = Stopwatch()

    def find_newest(self) -> Root | None:
        """Return the newest root; a damaged one is a finding like any other."""
        try:
            return self.versions.latest()
        except Corrupt as error:
            path = error.path or self.versions.storage.root
            self.found.add(violation(error.invariant, path, str(error)), None)
            return None

    def choose_versions(self) -> list[int]:
        if isinstance(self.config.versions, int):
            return [self.config.versions]
        if self.newest is not None and self.config.versions == NEWEST:
            return [self.newest.version]
        if self.newest is not None:
            newest = self.newest.version
            kept = self.versions.kept_from(newest)
            recorded = self.newest.oldest_version
            first = kept
            if recorded <= newest:  # a damaged root may record what cannot be
                first = max(kept, recorded)
            first = min(max(first, self.config.oldest), newest)
            with suppress(Corrupt, InvalidDefinition):  # the passes report it
                definition = self.versions.definition(self.newest)
                self.lost = self.versions.marked_lost(definition, range(first, newest))
            return [each for each in range(first, newest + 1) if each not in self.lost]
        boundary = self.versions.boundary()
        if self.config.versions == NEWEST:
            return []
        return sorted(each for each in listed_versions(self.versions) if each >= boundary)

    def run(self) -> Report:
        chosen = self.choose_versions()
        shape = self.shape(chosen)
        checked_alone = chosen
        if shape is not None:
            checked_alone = self.of_one_shape(chosen, shape)
        self.one_by_one(checked_alone)
        self.lakehouse()
        versions = self.without_expired(chosen)
        findings, more = self.found.findings([*self.snapshots.values()])
        counts = self.found.counts
        return Report(
            root=self.versions.storage.root,
            engine=self.engine.name,
            versions=versions,
            ok=not findings,
            findings=[each for each in findings if each.invariant != UNSEEN],
            unseen=[each for each in findings if each.invariant == UNSEEN],
            more=more,
            nodes_read=self.nodes_read,
            nodes_named=counts[NODES_NAMED],
            definitions_read=counts[DEFINITIONS],
            definitions_proved=counts[DEFINITIONS_PROVED],
            tables_checked=counts[TABLES],
            tables_unknown=counts[TABLES_UNKNOWN],
            table_files=self.table_files,
            lost=self.lost,
            seconds=self.watch.seconds,
        )

    def shape(self, chosen: Sequence[int]) -> Shape | None:
        """Return order and name sizes that the versions share, or ``None`` for another generation of the format."""
        if isinstance(self.config.versions, int):
            with suppress(Corrupt):  # the passes report it
                self.versions.root(self.config.versions)
        if self.newest is None:
            newest = []
        else:
            newest = [self.newest.version]
        for version in [*(newest if len(chosen) > 1 else []), *reversed(chosen)]:
            try:
                root = self.versions.try_root(version)
                if root is not None and (self.versions.sdk or not root.node.canonical or root.node.height is None):
                    return None
                if root is not None:
                    return Shape.of(self.versions.definition(root))
            except (Corrupt, InvalidDefinition):
                continue
        return None

    def of_one_shape(self, chosen: Sequence[int], shape: Shape) -> list[int]:
        """Verify the versions that share a shape, in three passes; return the others."""
        storage = self.versions.storage
        checks = Checks(
            engine=self.engine,
            storage=storage,
            shape=shape,
            found=self.found,
            progress=self.progress,
        )
        others = set(checks.roots(chosen))
        self.watch.lap("roots")
        alike = []
        for version in chosen:
            if version not in others:
                alike.append(version)
        starts = [
            row_of_root(self.versions.path(version), version, version) for version in alike
        ] + self.snapshot_starts()
        share = self.config.tables
        definitions = self.config.definitions or share is not None
        tables = None if self.config.deep else share
        if alike:
            first = alike[0]
        else:
            first = _NO_VERSION
        known = None
        if self.newest is not None and self.newest.version == first:
            known = self.newest
        content = GatheredContent(
            shape.codec,
            version=first,
            read_definitions=definitions,
            root=known,
            tables=tables,
        )

        def prove_tables(walked: Walk) -> None:
            self.watch.lap("nodes")
            self.table_files = prove_table_files(walked, self.found, self.progress, share or 0.0)
            self.watch.lap("tables")

        also = None
        if self.config.deep:
            also = prove_tables
        self.nodes_read = checks.nodes(starts, content, also=also)
        self.watch.lap("nodes")
        checks.contents(alike, definitions=definitions, tables=tables)
        self.watch.lap("contents")
        return sorted(others)

    def find_snapshots(self) -> dict[str, str]:
        """Return the names of the snapshots that are verified, by their roots: of one version only its own."""
        found: dict[str, str] = {}
        if self.newest is None:
            return found
        try:
            snapshots = self.versions.definition(self.newest).snapshots
        except (Corrupt, InvalidDefinition):  # the pass over the roots reports it
            return found
        for name, snapshot in sorted(snapshots.items()):
            is_asked = self.config.versions in {ALL, NEWEST, snapshot.version}
            if is_asked and not snapshot.target_uri:
                found.setdefault(snapshot.root_node_file_path, name)
        return found

    def place_of(self, path: str) -> int:
        """Return what stands for a snapshot, by its root, in the place of a first version."""
        return IN_SNAPSHOT + [*self.snapshots].index(path)

    def snapshot_starts(self) -> list[dict[str, object]]:
        if self.config.versions != ALL:
            return []
        starts: list[dict[str, object]] = []
        for path in self.snapshots:
            with suppress(InvalidLocation):  # a violation of I17, reported elsewhere
                starts.append(row_of_root(validate_path(path), self.place_of(path), OF_NO_VERSION))
        return starts

    def one_by_one(self, chosen: Sequence[int]) -> None:
        """Verify versions that older generations wrote, or of another order, one tree after another."""
        versions = VersionsReadOnce(self.versions.storage)
        versions.sdk = self.versions.sdk
        for done, version in enumerate(chosen):
            self.progress("versions", done, len(chosen))
            for each in check_version(versions, version, definitions=self.config.definitions):
                self.found.add(each, version)
        if chosen:
            self.watch.lap("one by one")

    def lakehouse(self) -> None:
        """Check boundary, newest versions and snapshots."""
        if self.newest is None:
            return
        try:
            for each in check_lakehouse(self.versions, self.newest, only=self.snapshots):
                if each.file in self.snapshots:
                    self.found.add(each, self.place_of(each.file), OF_NO_VERSION)
                else:
                    self.found.add(each, None)
        except (Corrupt, InvalidDefinition) as error:
            path = getattr(error, "path", None) or self.newest.path
            self.found.add(violation("I13", path, str(error)), self.newest.version)

    def without_expired(self, chosen: list[int]) -> list[int]:
        """Drop findings in versions that have expired since: their files may be gone rightly. Return the rest."""
        if isinstance(self.config.versions, int):
            return chosen
        if self.newest is None:
            boundary = self.versions.boundary()
        else:
            boundary = self.versions.kept_from(self.newest.version)
        self.found.forget_below(boundary)
        return [version for version in chosen if version >= boundary]
