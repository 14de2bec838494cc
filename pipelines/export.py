"""Export: copy one version, or all retained versions, to another root URI (format, section 6).

The four steps: what the version reaches (**walk**), what both roots hold (**list**), the difference
(**minus**), and **act**: files of tables where wanted, definitions, nodes, roots last. A node is copied only when all
below it is there. So a killed export leaves a target that is not a lakehouse yet, or still the one it was. Files that
are there already are not copied again: repeated, an export is an incremental backup.

Without history the target holds the one version, under its number, and not the snapshots that its
definition names: these are other versions. So where there are any, the target has a definition without them,
and a root that points to that one; everything else has the bytes it has at the source. With history the
target holds every root from the boundary up, byte for byte, and the snapshots with all they reach. A root
that cannot be read, left behind by a rollback, is no exception. The content of its tree is not copied, and the plan
reports that. So it does each node and definition that older versions or snapshots need and neither side has: the rest
is copied. What the newest version needs is never left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from pipelines.copy.copying import refuse_near
from pipelines.copy.damaged_files import why_damaged
from pipelines.copy.destination import Destination, inspect, make_root_without_snapshots
from pipelines.copy.plan import DEFINITION, NODE, OF_TABLES, CopyPlan, FilesToCopy, LostFile, looked_up
from pipelines.engine import Engine
from pipelines.engine.choice import choose_engine, work_in
from pipelines.job import (
    NEVER_CANCELLED,
    Cancel,
    JobRun,
    Meter,
    Progress,
    Review,
    Session,
    refuse_unknown,
    silent,
)
from pipelines.reach.table_files import refuse_no_iceberg
from pipelines.reach.walk import IN_SNAPSHOT, OF_NO_VERSION, Start
from pipelines.reports.summary import DRY_RUN, Table, count, human_bytes
from trinitylake_core import Lakehouse
from trinitylake_core.commits.commit import require_writable
from trinitylake_core.errors import (
    Corrupt,
    CorruptDefinition,
    CorruptNode,
    FileMissing,
    InvalidInput,
    Refused,
    StorageError,
)
from trinitylake_core.locations import parse, root_path, validate_path
from trinitylake_core.short_repr import first_of
from trinitylake_core.storage import Storage, storage_at
from trinitylake_core.versions import LOST_MARK, Versions


@dataclass(frozen=True, slots=True)
class Config:
    """The options of an export.

    Attributes:
        version: the version to export; by default the newest one.
        history: export every version that is kept, and the snapshots, instead of one version.
        tables: also copy the files of MANAGED Iceberg tables, of every version that is exported.
        engine: ``spark``, ``local`` or ``auto``: Spark on other machines from ``spark_from_files`` files on.
        spark_from_files: where ``auto`` changes from this process to Spark.
    """

    version: int | None = None
    history: bool = False
    tables: bool = False
    engine: str = "auto"
    spark_from_files: int = 400_000

    def __post_init__(self) -> None:
        refuse_unknown(self.engine)
        if self.tables:
            refuse_no_iceberg()
        if self.history and self.version is not None:
            raise InvalidInput("history exports all retained versions; do not give a version")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A version that cannot be copied, because its root cannot be read: a rollback leaves such a root behind.

    Attributes:
        version: its number.
        file: the path of its root.
        why: what is wrong with the file.
        at_target: whether the target can read it: it was copied before it was damaged.
    """

    version: int
    file: str
    why: str
    at_target: bool


@dataclass(frozen=True, slots=True)
class Damage:
    """A node or a definition that neither the lakehouse nor the copy has, so that it is not copied.

    Attributes:
        file: its path.
        why: what is wrong with it here.
        first_version: the first version that needs it; ``None``: only snapshots do.
        last_version: the last one that does.
        snapshot: the name of a snapshot that needs it, if no version does.
    """

    file: str
    why: str
    first_version: int | None
    last_version: int | None
    snapshot: str | None

    @property
    def place(self) -> str:
        """What needs the file, in words."""
        if self.snapshot is not None:
            return f"snapshot {self.snapshot}"
        if self.first_version == self.last_version:
            return f"version {self.first_version}"
        return f"versions {self.first_version} to {self.last_version}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What an export would do, exactly. Versions ``first`` to ``version`` become those of the target.

    Attributes:
        definitions: files to copy; likewise ``nodes`` and ``roots``.
        bytes: what they hold together.
        files_there: files that are at the target already.
        roots_removed: older versions that the target will not hold any more.
        snapshots_left_out: snapshots in the definition that are not exported.
        target_version: the newest version at the target before; ``None`` if there is no lakehouse.
        unreadable: versions of the history that cannot be copied, because their roots cannot be read.
        table_files: files of tables to copy; ``table_files_elsewhere`` lie outside the root and are not.
        tables_lacking: tables of which the copy will lack files, by label, each with a reason.
        kept: files that are missing or damaged here, and sound at the target, where they stay: nodes and roots. When
            the export has ended, definitions, too, and each that is another file here than at the target, which proves
            by its checksum what it is.
        lost: versions that are marked as lost (``mend``): of these only the roots are copied.
        damaged: files that neither the lakehouse nor the copy has, and the newest version does not need. When the
            export has ended, definitions that are damaged, too.
    """

    version: int
    first: int
    engine: str
    definitions: int
    nodes: int
    roots: int
    bytes: int
    files_there: int
    roots_removed: int
    snapshots_left_out: int
    target_version: int | None
    unreadable: list[Unreadable] = field(default_factory=list)
    table_files: int = 0
    table_files_elsewhere: int = 0
    tables_lacking: dict[str, str] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    damaged: list[Damage] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether the copy lacks nothing that the lakehouse has, or had."""
        is_lacking = self.tables_lacking or self.damaged
        return not is_lacking and all(each.at_target for each in self.unreadable)

    def describe_gaps(self, source: str, target: str) -> Iterator[str]:
        """Yield what the copy lacks, and what it has that the lakehouse has lost."""
        if self.snapshots_left_out:
            yield f"{count(self.snapshots_left_out, 'snapshot')} left out: --history exports them, too"
        for each in self.unreadable:
            if each.at_target:
                then = "the copy has it from before"
            else:
                then = (
                    "the copy has the same unreadable root, opens at every other version, and loses it when it expires"
                )
            yield f"version {each.version} cannot be copied: {each.why}; {then}"
        if self.kept:
            names = first_of(self.kept, _NAMED)
            yield (
                f"missing or damaged here, and sound in the copy, which keeps them: {count(len(self.kept), 'file')}: "
                f"{names}; `trinitylake mend {source} --from {target} --reason REASON` puts them back"
            )
        for damage in self.damaged[:_NAMED]:
            yield (
                f"{damage.place} cannot be copied whole: neither the lakehouse nor the copy has a file that it needs: "
                f"{damage.file}: {damage.why}"
            )
        more = len(self.damaged) - _NAMED
        if more > 0:
            yield f"neither has {count(more, 'file')} more"
        if self.damaged:
            yield _GIVE_UP
        if self.lost:
            yield f"marked as lost, and not copied: the content of {count(len(self.lost), 'version')}"
        if self.table_files_elsewhere:
            yield f"outside the root, and not copied: {count(self.table_files_elsewhere, 'file')} of tables"
        if self.tables_lacking:
            labels = list(self.tables_lacking)
            tables = f"{count(len(labels), 'table')}: {', '.join(labels[:_NAMED])}"
            yield f"missing or damaged here, so that the copy lacks files of {tables}"
            yield _REMEDY


@dataclass(frozen=True, slots=True)
class Report:
    """The result of an export."""

    source: str
    target: str
    dry_run: bool
    plan: Plan
    definitions_copied: int = 0
    nodes_copied: int = 0
    roots_created: int = 0
    roots_removed: int = 0
    bytes_copied: int = 0
    requests: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    table_files_copied: int = 0

    def summary(self) -> Iterator[str]:
        """Yield what the export copied, or would copy."""
        plan = self.plan
        if plan.first == plan.version:
            which = f"version {plan.version}"
        else:
            which = f"versions {plan.first} to {plan.version}"
        there = ""
        if plan.files_there:
            there = f"; {count(plan.files_there, 'file')} there already"
        if not (plan.definitions or plan.nodes or plan.roots or plan.roots_removed or plan.table_files):
            yield f"nothing to copy: {self.target} holds {which} already, {count(plan.files_there, 'file')}"
        elif self.dry_run:
            yield f"{DRY_RUN}: {self.target} would hold {which}"
            copies = _copies(plan.definitions, plan.nodes, plan.roots, plan.table_files)
            yield f"to copy: {copies}, {human_bytes(plan.bytes)}{there}"
        else:
            yield f"{self.target} holds {which}"
            copied = _copies(self.definitions_copied, self.nodes_copied, self.roots_created, self.table_files_copied)
            yield f"copied, read back and compared: {copied}, {human_bytes(self.bytes_copied)}{there}"
        removed = self.roots_removed
        if self.dry_run:
            removed = plan.roots_removed
        if removed:
            yield f"{count(removed, 'older version')} {'would be ' * self.dry_run}removed there"
        yield from plan.describe_gaps(self.source, self.target)

    def summary_tables(self) -> Iterator[Table]:
        """Yield the tables of which the copy lacks files."""
        rows = [[table, reason] for table, reason in self.plan.tables_lacking.items()]
        yield Table("lacking", ("table", "reason"), rows)


_REMEDY: Final = "`verify --tables --deep` names the files; bring them back, or roll back, restore or drop the tables"
_GIVE_UP: Final = (
    "everything else is copied; `mend --from` puts files back that another copy has, `mend --lost V` gives up a "
    "version, `snapshot drop` a snapshot"
)
_NAMED: Final = 5


def _copies(definitions: int, nodes: int, roots: int, table_files: int) -> str:
    parts = [
        count(definitions, "definition"),
        count(nodes, "node"),
        count(roots, "root"),
    ]
    if table_files:
        of_tables = count(table_files, "file")
        parts.append(f"{of_tables} of tables")
    return ", ".join(parts)


def run(
    lake: Lakehouse,
    target_root: str | Storage,
    config: Config | None = None,
    spark: Session = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    review: Review[Report] | None = None,
    cancel: Cancel | None = None,
    progress: Progress | None = None,
) -> Report:
    """Export a lakehouse; it is only read.

    The arguments are those of every job (:mod:`pipelines.job`), and:
        target_root: root URI of the copy: empty, or an older export of the same lakehouse.
        storage_options: the storage options of the target.
        review: called with the plan of the copy, before anything is written; ``False`` writes nothing.
        cancel: checked before roots are created at the target, and before older ones are removed there.

    Raises:
        VersionNotFound, VersionExpired, InvalidInput.
        AlreadyExists: another lakehouse is at the target, or an export that was written to since.
        Refused: the target is newer, or holds a history.
        Corrupt: a file that the newest version needs is missing or damaged; the message names it.
        ReadOnly, UnsafeStorage, StorageError.
    """
    config = config or Config()
    named = config.version is not None
    if named:
        source = lake.at(version=config.version)
    else:
        source = Lakehouse(lake.backend, lake.backend.newest())
    if not named:
        source.backend.versions.refuse_hole(source.version)
    target = storage_at(target_root, storage_options)
    refuse_near(target.root, source.root)
    require_writable(source.backend, source.root_node)
    call = (source, config, spark, review, cancel or NEVER_CANCELLED, progress or silent)
    return _Export(*call, target=target).run()


@dataclass(eq=False, kw_only=True)
class _Export(JobRun[Config, Report]):
    target: Storage

    def __post_init__(self) -> None:
        source = self.source = self.lake
        self.order = source.definition.order
        self.version = source.version
        if self.config.history:
            self.first = self.boundary()
        else:
            self.first = self.version
        self.root = bytes(source.root_node.data)
        self.definition: tuple[str, bytes] | None = None
        if source.definition.snapshots and not self.config.history:
            self.root, self.definition = make_root_without_snapshots(source)
        self.requests = 0
        self.lost = source.backend.versions.marked_lost(source.definition, range(self.first, self.version))
        self.half_lost: list[int] = []
        self.to_mark: set[int] = set()
        self.looked_at: set[str] = set()
        self.unreadable: list[Unreadable] = []
        self.garbage: dict[int, bytes] = {}
        self.snapshots = sorted(source.definition.snapshots)
        self.damaged: list[Damage] = []

    def boundary(self) -> int:
        root = self.source.root_node
        backend = self.source.backend
        found = max(backend.versions.kept_from(self.version), root.oldest_version)
        if found <= self.version:
            return found
        if found <= backend.newest().version:
            raise Refused(f"version {self.version} has expired since the lakehouse was opened; run it again")
        message = f"the boundary {found} lies beyond version {self.version}; nothing was changed"
        raise Corrupt(message, path=root.path, invariant="I16")

    # -- running -----------------------------------------------------------------------------------------

    def run(self) -> Report:
        try:
            return self.copy_reviewed()
        except Corrupt as error:
            self.refuse_gone(error)
            raise

    def refuse_gone(self, error: Corrupt | None = None) -> None:
        """Raise ``Refused`` if files may be gone rightly: versions expired, or a snapshot was dropped. Some ``get``."""
        now = self.source.backend.versions.boundary()
        if now > self.first:
            what = f"versions before {now} expired while the export ran, which began with version {self.first}"
            raise Refused(f"{what}; run it again") from error
        dropped = self.dropped_snapshot()
        if dropped is not None:
            raise Refused(f"snapshot {dropped!r} was dropped while the export ran; run it again") from error

    def dropped_snapshot(self) -> str | None:
        """Return the name of a snapshot that the newest version no longer has, so that its files may be gone rightly.

        Some ``get``, after a failure only.
        """
        backend = self.source.backend
        ours = self.source.definition.snapshots
        if self.config.history:
            now = backend.definition(backend.newest()).snapshots
        else:
            now = ours
        gone = (name for name in ours if name not in now or now[name] != ours[name])
        return next(gone, None)

    def copy_reviewed(self) -> Report:
        meter = Meter(self.source.storage, self.target)
        to = inspect(self.target, self.source, self.first, history=self.config.history)
        self.watch.lap("look")
        objects = work_in(self.source.root_node)
        chosen = choose_engine(self.config.engine, self.spark, objects, self.config.spark_from_files)
        with closing(chosen) as engine:
            todo = self.compared_readable(engine)
            self.requests += todo.requests
            plan = self.make_plan(engine.name, to, todo)
            self.watch.lap("plan")
            if self.review is not None:
                planned = self.make_report(plan, meter, dry_run=True)
                if not self.review(planned):
                    return planned
            copied = self.act(to, todo)
        return self.make_report(plan, meter, **copied)

    def make_report(
        self,
        plan: Plan,
        meter: Meter,
        *,
        dry_run: bool = False,
        **copied: Any,
    ) -> Report:
        return Report(
            source=self.source.root,
            target=self.target.root,
            dry_run=dry_run,
            plan=plan,
            requests=self.requests + meter.requests(),
            seconds=dict(self.watch.seconds),
            **copied,
        )

    def compared_readable(self, engine: Engine) -> FilesToCopy:
        """Return the files to copy; where one is damaged, without the versions whose roots cannot be read."""
        self.leave_out(self.lost)
        todo = self.compare_files(engine)
        roots = []
        for path in todo.kept:
            parsed = parse(path)
            if parsed is not None and parsed.version is not None:
                roots.append(parsed.version)
        self.leave_out(roots)
        if not todo.lost:
            return todo
        before = len(self.garbage)
        known = {*self.lost, *roots}
        self.leave_out([each for each in range(self.first, self.version) if each not in known])
        if len(self.garbage) > before:
            todo = self.compare_files(engine)
        self.note_damage(todo)
        if self.to_mark:  # what they reach is of no interest then, and hides what else needs the same
            self.half_lost = [each for each in self.half_lost if each not in self.to_mark]
            self.damaged.clear()
            self.looked_at.clear()
            todo = self.compare_files(engine)
            self.note_damage(todo)
        return todo

    def note_damage(self, todo: FilesToCopy) -> None:
        """Note what neither side has, each file with what needs it, unless that was given up. A ``get`` each.

        Raises:
            Refused: it may be gone rightly.
            Corrupt: the newest version needs it, or it is a root.
        """
        files = [each for each in todo.lost if each.path not in self.looked_at]
        if files:
            self.refuse_gone()
        for each in files:
            self.looked_at.add(each.path)
            last: int | None = each.last
            if not each.is_node:
                last = self.find_last_meaning(each)
            if last is not None:
                self.note_file(each.path, each.first, last)

    def note_file(self, path: str, first: int, last: int) -> None:
        """Note a file that neither side has, with the first and the last version that need it. Raises ``Corrupt``."""
        why = why_damaged(self.source.storage, path)
        parsed = parse(path)
        if last >= self.version:
            raise CorruptDefinition(f"{why}; nothing was changed", path=path, invariant="I15")
        if parsed is not None and parsed.version is not None:
            if parsed.version in self.half_lost:  # another export has marked it meanwhile
                return
            raise CorruptNode(f"{why}; nothing was changed", path=path, invariant="I14")
        if first >= IN_SNAPSHOT:
            name = self.snapshots[first - IN_SNAPSHOT]
            self.damaged.append(Damage(path, why, None, None, name))
            return
        needed_by = set(range(first, last + 1))
        self.to_mark |= needed_by.intersection(self.half_lost)
        if needed_by.difference(self.lost):
            self.damaged.append(Damage(path, why, first, last, None))

    def find_last_meaning(self, lost: LostFile) -> int | None:
        """Return the last version in which an object has a definition; ``None``: in each it has got another one since.

        Then a message that waits, or what it replaces, names the file still. Reads the nodes of the last version that
        names it, and what differs in those before.
        """
        if lost.first >= IN_SNAPSHOT:
            return lost.last
        last = lost.last
        try:
            lake = self.source.at(version=last)
            if lost.path in (each.path for each in lake.objects()):
                return last
            while last > lost.first:
                last -= 1
                changes = lake.diff(last, last + 1)
                if lost.path in (each.old_path for each in changes):
                    return last
        except Corrupt:  # nobody knows what it means
            return last
        return None

    def leave_out(self, versions: Sequence[int]) -> None:
        """Note those versions whose roots cannot be read. Costs as :func:`unreadable_roots`."""
        for each, data in unreadable_roots(self.source.backend.versions, self.target, versions):
            self.garbage[each.version] = data
            if each.version not in self.lost:
                self.unreadable.append(each)
            elif each.at_target:  # copied before anybody gave it up: perhaps whole
                self.half_lost.append(each.version)

    def compare_files(self, engine: Engine) -> FilesToCopy:
        plan = CopyPlan(
            engine=engine,
            source=self.source.storage,
            target=self.target,
            order=self.order,
            newest=self.version,
            given_up=self.lost,
            progress=self.progress,
        )
        if self.definition is None:
            left_out = set()
        else:
            left_out = {self.source.root_node.definition_path}
        return plan.compare(self.starts(), left_out, tables=self.config.tables)

    def make_plan(self, engine: str, to: Destination, todo: FilesToCopy) -> Plan:
        sizes = 0
        if to.missing:
            sizes = sum(len(data) for _, data in self.roots(to.missing))
        own = self.definition_missing()
        return Plan(
            version=self.version,
            first=self.first,
            engine=engine,
            definitions=todo.files.get(DEFINITION, 0) + (own > 0),
            nodes=todo.files.get(NODE, 0),
            roots=len(to.missing),
            bytes=todo.bytes + sizes + own,
            files_there=todo.there + (self.version - self.first + 1 - len(to.missing)),
            roots_removed=len(to.older),
            snapshots_left_out=0 if self.config.history else len(self.source.definition.snapshots),
            target_version=None if to.newest is None else to.newest.version,
            unreadable=self.unreadable,
            table_files=sum(todo.files.get(each, 0) for each in OF_TABLES),
            table_files_elsewhere=todo.elsewhere,
            tables_lacking=todo.lacking,
            kept=todo.kept,
            lost=self.lost,
            damaged=self.damaged,
        )

    def definition_missing(self) -> int:
        """Return the size of the definition without snapshots if the target needs it and does not have it."""
        if self.definition is None:
            return 0
        path, data = self.definition
        there = dict(looked_up(self.target, [path]))
        if there.get(path) == len(data):
            return 0
        return len(data)

    def roots(self, versions: list[int]) -> Iterator[tuple[str, bytes]]:
        """Yield path and bytes of roots as they are at the target, oldest first; last those that cannot be read.

        If one of these were the newest, even for a moment, the target could not be opened.
        """
        garbage = []
        older = []
        for version in versions:
            if version in self.garbage:
                garbage.append(version)
            elif version != self.version:
                older.append(root_path(version))
        for path, data in self.source.storage.read_many(older):
            if isinstance(data, FileMissing):
                raise Refused(f"root {path!r} expired while the export ran; run it again")
            yield path, data
        if self.version in versions:
            yield root_path(self.version), self.root
        for version in garbage:
            yield root_path(version), self.garbage[version]

    def act(self, to: Destination, todo: FilesToCopy) -> dict[str, Any]:
        table_files, heavy, requests = todo.copy(*OF_TABLES)
        self.watch.lap("tables")
        definitions, size, again = todo.copy(DEFINITION)
        self.requests += requests + again
        if self.definition is not None and self.definition_missing():
            self.target.write_many([self.definition])
            definitions += 1
            size += len(self.definition[1])
        self.watch.lap("definitions")
        nodes, more, again = todo.copy(NODE)
        self.requests += again
        self.watch.lap("nodes")
        self.note_damage(todo)
        self.cancel.check()
        rest = self.create_roots(to)
        self.cancel.check()
        removed = to.finish()
        self.mark_lost()
        self.watch.lap("roots")
        return {
            "definitions_copied": definitions,
            "nodes_copied": nodes,
            "roots_created": len(to.missing),
            "roots_removed": removed,
            "table_files_copied": table_files,
            "bytes_copied": heavy + size + more + rest,
        }

    def mark_lost(self) -> None:
        """Mark what was given up here, and is not whole at the target either: else its proof fails for ever.

        A ``get`` and a ``put`` for each version.
        """
        for version in sorted(self.to_mark):
            path = root_path(version)
            data = self.target.read(path)
            if not data.startswith(LOST_MARK):  # another export may have
                self.target.replace(path, LOST_MARK + data)

    def create_roots(self, to: Destination) -> int:
        """Create the roots that are missing; return their bytes."""
        to.prepare()
        size = 0
        count = len(to.missing)
        for done, (path, data) in enumerate(self.roots(to.missing)):
            self.progress("roots", done, count)
            to.create(path, data)
            size += len(data)
        return size

    # -- what is to be copied ----------------------------------------------------------------------------

    def starts(self) -> list[Start]:
        starts = []
        for version in range(self.first, self.version):
            is_left_out = version in self.garbage or version in self.lost
            if not is_left_out or version in self.half_lost:
                starts.append(Start(root_path(version), version, version))
        starts.append(Start(self.source.root_node.path, self.version, self.version))
        if not self.config.history:
            return starts
        for number, name in enumerate(self.snapshots):
            snapshot = self.source.definition.snapshots[name]
            if not snapshot.target_uri:
                path = validate_path(snapshot.root_node_file_path)
                starts.append(Start(path, IN_SNAPSHOT + number, OF_NO_VERSION))
        return starts


def unreadable_roots(source: Versions, target: Storage, wanted: Sequence[int]) -> Iterator[tuple[Unreadable, bytes]]:
    """Yield the versions whose roots are there and cannot be read, and the bytes of these: they are copied as they are.

    Where a root is missing, a search for the newest version would end. So is a root whose lakehouse definition is not
    there, such as that of another lakehouse. Two ``get`` for each version, and for each that is found two more, one of
    them at the target, and a ``head``.

    Raises:
        StorageError: a file is not the same each time it is read; an answer that was cut short proves nothing.
    """
    paths = [root_path(version) for version in wanted]
    for version, (path, data) in zip(wanted, source.storage.read_many(paths), strict=True):
        if isinstance(data, FileMissing):
            continue
        try:
            source.definition_file(source.decode(version, path, data))
        except Corrupt as error:
            why = str(error)
        else:
            continue
        if source.storage.read(path) != data or source.storage.info(path).size != len(data):
            raise StorageError(f"{path} was read differently each time, as if the storage cut answers short; try again")
        try:
            at_target = Versions(target).try_root(version) is not None
        except Corrupt:
            at_target = False
        yield (
            Unreadable(
                version=version,
                file=path,
                why=why,
                at_target=at_target,
            ),
            data,
        )
