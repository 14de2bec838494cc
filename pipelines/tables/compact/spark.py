"""The engine of Spark: Iceberg's own procedures, through an endpoint, and a proof of every snapshot that they made.

For deletes, format version 3, large partitions and sorts. ``rewrite_data_files`` applies deletes,
``rewrite_position_delete_files`` drops those that apply to nothing any more, ``rewrite_manifests`` merges manifests.
They report what they believe; what counts is the table before and after.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from pipelines.job import Cancel, Session, start_spark
from pipelines.reach.table_files import why_unreadable
from pipelines.session import abandon_session, missing_iceberg, on_one_machine
from pipelines.tables.compact import model
from pipelines.tables.compact.model import Outcome, PlannedTable, Settings, TableEngine
from pipelines.tables.compact.predicate import MOST_PARTITIONS, NoPredicate, column_names, partitions_predicate
from pipelines.tables.compact.statements import (
    DELEGATION,
    SparkCatalog,
    StatementFailed,
    StatementTimeout,
    quote_name,
    quote_text,
)
from trinitylake_core import Lakehouse
from trinitylake_core.commits.frozen import refuse_frozen
from trinitylake_core.errors import AlreadyExists, FileMissing, InvalidInput, LakehouseFrozen, TrinityLakeError
from trinitylake_core.extras import install_command
from trinitylake_core.iceberg.reading.references import DescribedFile
from trinitylake_core.iceberg.reading.snapshot_files import SnapshotReader
from trinitylake_core.table_places import Located

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import SparkSession

_GROUP_BYTES: Final = 1 << 30
"""Spark rewrites so many bytes as one job at the least; Iceberg's own default is 100 GB, which fills disks."""
_LONGEST: Final = 300
_WITH_LINEAGE: Final = 3
"""From this version of the table format on each row has an ID."""
_LINEAGE: Final = ("_row_id", "_last_updated_sequence_number")
_OLD_ICEBERG: Final = (
    "its manifests were left: an Iceberg before 1.12, or on a server, gives rows of format version 3 other IDs there"
)
KEPT_PREFIX: Final = "before-compaction-"
"""Snapshots of the lakehouse that keep what an unproved rewrite replaced begin so; the version follows."""
_RACES: Final = (
    "CommitFailedException", "ValidationException", "Cannot commit", "Missing required files", "NoSuchTableException",
    "TABLE_OR_VIEW_NOT_FOUND", "NotFoundException",
)  # fmt: skip
"""The last one is about a file: a cleaning has removed it."""
_MEMORY: Final = ("OutOfMemoryError", "No space left on device")
_S3_FILES: Final = "org.apache.iceberg.aws.s3.S3FileIO"
"""Opens files of S3 alone. By itself Iceberg takes what fits the scheme of each URI, and opens files of this disk."""


class RowsDiffer(Exception):
    """The rows after a rewrite are not those before it."""


class StartIsGone(Exception):
    """The table no longer has the snapshot that a rewrite began at."""


class SparkRewriter(TableEngine):
    """Has Iceberg's procedures rewrite tables. Spark is started when the first table needs it."""

    name = "spark"

    def __init__(
        self,
        lake: Lakehouse,
        settings: Settings,
        spark: Session,
        cancel: Cancel,
    ) -> None:
        super().__init__(lake, settings, cancel)
        self._session = spark
        self._held = ExitStack()
        self._lock = Lock()
        self._catalog: SparkCatalog | None = None

    def why_not(self, table: PlannedTable) -> str | None:
        """Return why this engine cannot rewrite a table: for want of Spark, its packages, or a type for a column."""
        if table.foreign_to_spark:  # whatever this Spark lacks: no other one could, either
            return f"Spark cannot read the table: it has a column of type {table.foreign_to_spark}"
        return self._lacks

    @cached_property
    def _lacks(self) -> str | None:
        return self.what_is_missing()

    def what_is_missing(self) -> str | None:
        """Return why nothing can be rewritten by this engine. Starts nothing."""
        if self._session is None:
            return "there is no Spark session"
        if find_spec("pyspark") is None:
            return f"Spark is not installed: {install_command('spark')}"
        if find_spec("starlette") is None:
            return f"the endpoint is not installed: {install_command('rest')}"
        return missing_iceberg(self._session)

    def rewrite(self, tables: Sequence[PlannedTable]) -> Iterator[Outcome]:
        """Have each table rewritten, some at the same time; yield what became of it."""
        for outcome in self.map_tables(self._rewrite_table, tables):
            self.versions += outcome.commits
            yield outcome

    def _rewrite_table(self, table: PlannedTable) -> Outcome:
        """Rewrite a table. Where Spark ended meanwhile, the next has a new one, if we may start it."""
        with self._lock:
            catalog = self._connect()
        outcome = _TableRewrite(self._lake, catalog, self, table).run()
        if outcome.outcome == model.ENDED and callable(self._session):
            with self._lock:
                if self._catalog is catalog:  # no other table has noticed it before
                    self.close()
                    abandon_session(catalog.session)
        return outcome

    def close(self) -> None:
        """Stop the endpoint, and take its token out of the session."""
        self._held.close()
        self._catalog = None

    def _connect(self) -> SparkCatalog:
        """Return the lakehouse as a catalog of Spark, started if need be. Raises ``InvalidInput``."""
        if self._catalog is None:
            spark = start_spark(self._session)
            if ".connect." in type(spark).__module__ and self.settings.endpoint is None:
                raise InvalidInput(
                    "a Spark Connect server cannot reach an endpoint in this process: start `trinitylake serve` where "
                    "the server reaches it, and name it"
                )
            self._catalog = SparkCatalog(spark, self._serve(spark), self.cancel, self.time.is_over)
            self._held.callback(self._catalog.close)
        return self._catalog

    def _serve(self, spark: SparkSession) -> Mapping[str, str]:
        """Return the properties of the catalog, at an endpoint that is there or that this process starts.

        That one signs each request for a file if it belongs to the table; executors elsewhere cannot ask it.
        """
        found: dict[str, str] = {}
        if self._lake.root.startswith("s3://"):
            found["io-impl"] = _S3_FILES
        if self.settings.endpoint is not None:
            return found | self.settings.endpoint.properties()
        from trinitylake_core.rest import endpoint

        signs = on_one_machine(spark)
        if signs:
            found[DELEGATION] = "remote-signing"
        why = {"reason": self.settings.reason or ""}
        served = self._held.enter_context(endpoint(self._lake, properties=why, signs=signs))
        return found | served.properties()


@dataclass
class _Run:
    """Snapshots that this engine made, one after the other: ``parent`` is the one below them."""

    parent: int
    last: int


class _TableRewrite:
    """One table: the procedures, what they did, and the proof."""

    def __init__(self, lake: Lakehouse, catalog: SparkCatalog, engine: SparkRewriter, table: PlannedTable) -> None:
        from trinitylake_core.iceberg import TrinityLakeCatalog

        self._own: TrinityLakeCatalog = TrinityLakeCatalog.over(lake)
        self._lake = lake
        self._catalog = catalog
        self._engine = engine
        self._settings = engine.settings
        self._table = table
        self._failed = Outcome(table.name, model.UNREADABLE, engine.name)
        self._began_at = lake.version
        self._has_merged = False

    def run(self) -> Outcome:
        """Rewrite the table; what its own files and writers cause is its outcome."""
        self._engine.cancel.check()
        if self._engine.time.is_over():
            why = "the time was used up before it; the next run goes on"
            return replace(self._failed, outcome=model.TIMEOUT, reason=why)
        began = time.monotonic()
        outcome = self._rewrite()
        return replace(outcome, seconds=round(time.monotonic() - began, 3))

    def _rewrite(self) -> Outcome:
        from trinitylake_core.iceberg.errors import REFUSED, NotThere

        try:
            before = self._read()
            self._began_at = self._own.lakehouse.version
            if before.uuid != self._table.uuid or before.current is None:
                return replace(self._failed, outcome=model.LOST, reason="another table has its name now")
            before.refuse_odd_files(before.current)
            stopped = self._call_procedures(before)
            return self._judge(before, before.current, stopped)
        except NoPredicate as error:
            return replace(self._failed, outcome=model.UNSUPPORTED, reason=str(error))
        except StartIsGone as error:
            return replace(self._failed, outcome=model.LOST, reason=f"{error}")
        except FileMissing as error:
            return replace(self._failed, outcome=model.LOST, reason=why_unreadable(error))
        except NotThere:
            return replace(self._failed, outcome=model.LOST, reason=model.GONE)
        except (TrinityLakeError, *REFUSED) as error:
            return replace(self._failed, reason=why_unreadable(error))

    def _read(self, before: SnapshotReader | None = None) -> SnapshotReader:
        location = self._own.metadata_location(self._table.identifier)
        return SnapshotReader(Located(self._lake.storage), location, before)

    # -- procedures --------------------------------------------------------------------------------

    def _call_procedures(self, before: SnapshotReader) -> Outcome | None:
        """Call the procedures one after the other; return what failed. What is committed by then stays."""
        failed = 0
        try:
            if self._table.groups:
                failed = self._rewrite_files(before)
            if self._merges_manifests():
                [(rewritten, *_)] = self._call("rewrite_manifests", "use_caching => false")
                self._has_merged = rewritten > 0
        except StatementTimeout as error:
            return replace(self._failed, outcome=model.TIMEOUT, reason=str(error))
        except StatementFailed as error:
            return self._outcome_of(error)
        if not failed:
            return None
        why = f"Spark could not rewrite files ({failed:,}), damaged or too large for its memory: its log says why"
        return replace(self._failed, reason=why)

    def _merges_manifests(self) -> bool:
        """Whether manifests are written again: not if that would give the rows of other files new IDs."""
        return self._table.format_version < _WITH_LINEAGE or self._catalog.keeps_rows_of_manifests()

    def _rewrite_files(self, before: SnapshotReader) -> int:
        """Have the files of the plan rewritten, and delete files that apply to nothing any more dropped.

        Return how many files Spark could not rewrite: with partial progress that is no error. Commits that are lost
        are not among them.
        """
        failed = 0
        for table in self._tables_of_calls():
            where = self._name_partitions(table, before)
            only_these = [f"where => {quote_text(where)}"] if where else []
            arguments = self._arguments(table, before, is_exact=bool(where))
            [(_, _, _, of_groups, *_)] = self._call("rewrite_data_files", *arguments, *only_these)
            failed += of_groups
            if table.delete_files:
                # Without `rewrite-all` it leaves up to four delete files of a partition, also if nothing is below them.
                self._call("rewrite_position_delete_files", "options => map('rewrite-all', 'true')", *only_these)
        return failed

    def _tables_of_calls(self) -> Iterator[PlannedTable]:
        """Yield the table with the groups whose deletes go, and with the others: one call treats all files alike."""
        groups = self._table.groups
        going = tuple(each for each in groups if each.decision.deletes)
        others = tuple(each for each in groups if not each.decision.deletes)
        for some in (going, others):
            if some:
                yield replace(self._table, groups=some)

    def _call(self, procedure: str, *arguments: str) -> list[tuple[Any, ...]]:
        # Of two parts Iceberg takes the first for a catalog if there is one of that name, so ours is named, too.
        name = self._catalog.table(self._table.identifier)
        given = ", ".join((f"table => {quote_text(name)}", *arguments))
        return self._catalog.run(f"CALL {self._catalog.name}.system.{procedure}({given})")

    def _arguments(self, table: PlannedTable, before: SnapshotReader, *, is_exact: bool) -> list[str]:
        """Return what tells Iceberg how to rewrite files; ``is_exact``: a predicate says of which partitions.

        Raises ``NoPredicate``: the table has no order to sort by.
        """
        options = {
            "target-file-size-bytes": table.target,
            "max-file-group-size-bytes": max(_GROUP_BYTES, 4 * table.target),
            "min-input-files": 2 if is_exact else max(2, min(len(each.paths) for each in table.groups)),
            "max-files-to-rewrite": max(1, sum(len(each.paths) for each in table.groups)),
            "rewrite-job-order": "files-desc",
            "partial-progress.enabled": str(self._settings.partial > 1).lower(),
            "partial-progress.max-commits": self._settings.partial,
        }
        if any(each.decision.deletes for each in table.groups):
            options["delete-file-threshold"] = 1
        if table.equality_deletes:
            options["remove-dangling-deletes"] = "true"
        pairs = ", ".join(f"{quote_text(name)}, {quote_text(str(value))}" for name, value in options.items())
        return [f"options => map({pairs})", *self._strategy(before)]

    def _strategy(self, before: SnapshotReader) -> list[str]:
        """Return the arguments of a sort. Raises ``NoPredicate``: the table has no order to sort by."""
        if self._settings.strategy == model.BINPACK:
            return ["strategy => 'binpack'"]
        orders = {each["order-id"]: each["fields"] for each in before.document.get("sort-orders") or ()}
        fields = orders.get(before.document.get("default-sort-order-id", 0)) or []
        if not fields:
            raise NoPredicate("it has no sort order; set one (ALTER TABLE ... WRITE ORDERED BY), or choose binpack")
        if self._settings.strategy == model.SORT:
            return ["strategy => 'sort'"]
        names = column_names(before.document)
        columns = ", ".join(names[each["source-id"]] for each in fields)
        return ["strategy => 'sort'", f"sort_order => {quote_text(f'zorder({columns})')}"]

    def _name_partitions(self, table: PlannedTable, before: SnapshotReader) -> str:
        """Return the predicate of the partitions of the plan; empty where there are too many, or no partitions."""
        specs = {each["spec-id"]: each["fields"] for each in before.document.get("partition-specs") or ()}
        groups = table.groups
        if len(groups) > MOST_PARTITIONS or not any(specs.get(each.spec_id) for each in groups):
            return ""
        # The plan does not have the values of a partition: Spark knows those of each file, and one file tells them.
        firsts = {each.paths[0].rpartition("/")[2]: each.spec_id for each in groups}
        names = ", ".join(quote_text(each) for each in firsts)
        found = self._catalog.run(
            f"SELECT file_path, partition FROM {self._catalog.table(self._table.identifier)}.files "
            f"WHERE content = 0 AND substring_index(file_path, '/', -1) IN ({names})"
        )
        partitions = [(firsts[path.rpartition("/")[2]], values.asDict()) for path, values in found]
        return partitions_predicate(before.document, self._catalog.name, partitions)

    def _outcome_of(self, error: StatementFailed) -> Outcome:
        """Return the outcome that a failure of Spark tells."""
        message = f"{error}"
        if error.has_ended:
            return replace(self._failed, outcome=model.ENDED, reason=f"{message}; the next run goes on")
        reason = _reason_in(message)[:_LONGEST]
        kind = model.UNREADABLE
        if "before the last cleaning of tables" in message:
            kind = model.VOID
        elif "frozen" in message:
            kind = model.FROZEN
        elif any(each in message for each in _RACES):
            kind = model.LOST
        elif any(each in message for each in _MEMORY):
            kind = model.TOO_LARGE
        return replace(self._failed, outcome=kind, reason=reason, conflicts=int(kind == model.LOST))

    # -- what they did -----------------------------------------------------------------------------

    def _judge(self, read: SnapshotReader, before: int, stopped: Outcome | None) -> Outcome:
        """Return what became of the table, by the snapshots that were made, and prove them."""
        after = self._read(read)
        if after.since(before) is None and any(map(self._is_ours, after.document.get("snapshots") or ())):
            why = f"it was rewritten, and snapshot {before}, at which that began, has expired: nothing proves its rows"
            return replace(self._failed, outcome=model.UNPROVEN, reason=f"{why}; {self._keep_old_files()}")
        runs, is_alone = self._runs_since(after, before)
        left = self._groups_left(after)
        if not runs:
            return stopped or self._say_why_nothing(left)
        removed, added = self._files_changed_by(after, runs)
        done = replace(
            stopped or replace(self._failed, outcome=model.DONE),
            partitions=len(self._table.groups) - left,
            files=len(removed),
            after=len(added),
            bytes=sum(each.size for each in removed.values()),
            bytes_after=sum(each.size for each in added.values()),
            commits=sum(self._is_ours(each) for each in after.since(before) or ()),
            manifests=self._table.manifests if self._has_merged else 0,
        )
        if not (done.reason or self._merges_manifests()):
            done = replace(done, reason=_OLD_ICEBERG)
        if left and not stopped:
            why = f"{left} of {len(self._table.groups)} partitions were lost to writers"
            done = replace(done, outcome=model.LOST, reason=why, conflicts=left)
        if self._settings.prove == model.UNPROVED:
            return done
        try:
            for each in runs:
                self._prove(after, each)
        except RowsDiffer as error:
            return replace(
                done, outcome=model.WRONG, reason=self._take_back(after, before, is_alone=is_alone, why=str(error))
            )
        except (StatementFailed, StatementTimeout) as error:
            kind = model.UNPROVEN
            why = f"it was rewritten, and what would prove it failed: {error}"[:_LONGEST]
            why = f"{why}; compare it with snapshot {before}; {self._keep_old_files()}"
            return replace(done, outcome=kind, reason=why)
        return replace(done, proved=self._settings.prove)

    def _groups_left(self, after: SnapshotReader) -> int:
        """Return how many groups of the plan are as they were, although Iceberg would have rewritten them.

        With partial progress it ignores commits that fail, and reports no failure of theirs. Of files that only
        deletes concern nothing can be told: it rewrites those to which a delete applies by its sequence number.
        """
        if after.current is None:
            return 0
        live = after.files(after.current).data.keys()
        left = 0
        for group in self._table.groups:
            would_be_rewritten = group.decision.merge is not None or len(group.paths) > 1
            if would_be_rewritten and not group.decision.deletes and live >= set(group.paths):
                left += 1
        return left

    def _say_why_nothing(self, left: int) -> Outcome:
        """Return the outcome of a table of which no snapshot was made, and no error was raised."""
        if not left and not self._table.groups and not self._merges_manifests():
            return replace(self._failed, outcome=model.UNSUPPORTED, reason=_OLD_ICEBERG)
        if not left:
            return replace(self._failed, outcome=model.DONE, reason="nothing was left to rewrite")
        try:
            refuse_frozen(self._lake.backend)
        except LakehouseFrozen as error:
            return replace(self._failed, outcome=model.FROZEN, reason=str(error))
        why = "Spark rewrote files, and each of its commits was lost to a writer; the next run tries again"
        return replace(self._failed, outcome=model.LOST, reason=why, conflicts=left)

    def _is_ours(self, snapshot: Mapping[str, Any]) -> bool:
        summary = snapshot.get("summary") or {}
        return summary.get("operation") == "replace" and summary.get("app-id") == self._catalog.application_id

    def _runs_since(self, after: SnapshotReader, before: int) -> tuple[list[_Run], bool]:
        """Return the snapshots of ours since one, and whether nobody else has made any since."""
        since = after.since(before)
        if since is None:
            raise StartIsGone("the snapshot that the rewrite began at has expired, or was rolled back")
        runs: list[_Run] = []
        parent = before
        for each in since:
            number = each["snapshot-id"]
            if self._is_ours(each):
                if runs and runs[-1].last == parent:
                    runs[-1].last = number
                else:
                    runs.append(_Run(parent, number))
            parent = number
        return runs, all(self._is_ours(each) for each in since)

    def _files_changed_by(
        self, after: SnapshotReader, runs: Sequence[_Run]
    ) -> tuple[dict[str, DescribedFile], dict[str, DescribedFile]]:
        """Return the data files that went, and those that came."""
        removed: dict[str, DescribedFile] = {}
        added: dict[str, DescribedFile] = {}
        for each in runs:
            old = after.files(each.parent).data
            new = after.files(each.last).data
            for uri in old.keys() - new.keys():
                removed[uri] = old[uri]
            for uri in new.keys() - old.keys():
                added[uri] = new[uri]
        return removed, added

    # -- the proof ---------------------------------------------------------------------------------

    def _prove(self, after: SnapshotReader, run: _Run) -> None:
        """Compare the rows of a table before and after snapshots of ours. Raises ``RowsDiffer``.

        By manifests where no deletes apply; else Spark counts the rows of both. At ``hash`` it reads all rows of both.
        """
        old, new = after.files(run.parent), after.files(run.last)
        had = sum(each.rows for each in old.data.values())
        has = sum(each.rows for each in new.data.values())
        if has > had:
            raise RowsDiffer(f"there were {had:,} rows, deleted ones among them, and {has:,} were written")
        if not old.deletes and had != has:
            raise RowsDiffer(f"there were {had:,} rows, and {has:,} were written")
        if self._settings.prove == model.HASH:
            questions = _hashes_of_rows(after, run)
        elif old.deletes:
            questions = ("count(*)", "count(*)")
        else:
            return
        first = self._ask(questions[0], run.parent)
        second = self._ask(questions[1], run.last)
        if first[0] != second[0]:
            raise RowsDiffer(f"there were {first[0]:,} rows, and now there are {second[0]:,}")
        if first != second:
            raise RowsDiffer(f"the rows are not the same: {first[0]:,} rows have another hash")

    def _ask(self, columns: str, snapshot: int) -> tuple[Any, ...]:
        table = self._catalog.table(self._table.identifier)
        [row] = self._catalog.run(f"SELECT {columns} FROM {table} VERSION AS OF {snapshot}")
        return row

    def _take_back(self, after: SnapshotReader, before: int, *, is_alone: bool, why: str) -> str:
        """Take the snapshots back if nobody wrote since; return what a person is told."""
        from trinitylake_core.iceberg.errors import REFUSED

        if is_alone and after.current is not None:
            try:
                self._own.take_snapshots_back(self._table.identifier, after.current, before)
            except REFUSED:
                is_alone = False
        if is_alone:
            return f"{why}; the table is at snapshot {before} again"
        why = f"{why}; others have written since, so it stays: compare it with snapshot {before}, and roll it back"
        return f"{why}; {self._keep_old_files()}"

    def _keep_old_files(self) -> str:
        """Have the version at which the rewrite began stay, until a person drops it; return what the person is told.

        Else the old files, which alone could prove the rows or bring them back, would go with that version. One
        commit: a snapshot of the lakehouse, the same for all tables that began at one version.
        """
        name = f"{KEPT_PREFIX}{self._began_at}"
        try:
            with suppress(AlreadyExists):
                self._lake.create_snapshot(name, version=self._began_at, reason="a compaction was not proved")
        except TrinityLakeError as error:
            return f"its old files go when their version expires: {error}"
        return f"snapshot {name} of the lakehouse keeps its old files until you drop it"


def _reason_in(message: str) -> str:
    """Return what a message of Spark says in its first line, and what caused that in the end."""
    lines = [line.strip().removeprefix(": ") for line in message.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("An error occurred while calling")]
    if not told:
        return "Spark does not say why"
    causes = [line.removeprefix(_CAUSED) for line in told if line.startswith(_CAUSED)]
    return f"{told[0]}, because of {causes[-1]}" if causes else told[0]


_CAUSED: Final = "Caused by: "


def _hashes_of_rows(reader: SnapshotReader, run: _Run) -> tuple[str, str]:
    """Return what asks for the rows and the sums of two hashes of each, before and after.

    Each snapshot is read by its own schema, so columns go by their IDs: those that both have. Columns of the same ID
    may have another name, or have become wider; one of a nested type that was changed is left out.
    """
    old, new = (_columns_of(reader, number) for number in (run.parent, run.last))
    first: list[str] = []
    second: list[str] = []
    for number, (name, kind) in new.items():
        if number not in old:
            continue
        old_name, old_kind = old[number]
        if kind != old_kind:
            if not isinstance(kind, str):
                continue
            old_name = f"CAST({old_name} AS {_SQL_TYPES.get(kind, kind)})"
        first += _hash_terms(old_name, kind)
        second += _hash_terms(name, kind)
    if reader.document["format-version"] >= _WITH_LINEAGE and _has_lineage(reader, run.parent):
        first += _LINEAGE
        second += _LINEAGE
    return _sums_of(first), _sums_of(second)


def _has_lineage(reader: SnapshotReader, number: int) -> bool:
    """Whether the rows of a snapshot have IDs: those of an older version of the format have none."""
    snapshot = reader.snapshot(number) or {}
    return "first-row-id" in snapshot


_SQL_TYPES: Final = {"long": "BIGINT"}
"""The names of types in SQL to which columns may be promoted, where Iceberg's are others."""


def _columns_of(reader: SnapshotReader, number: int) -> dict[int, tuple[str, Any]]:
    """Return the columns of a snapshot's schema by their IDs: names, ready for SQL, and types."""
    snapshot = reader.snapshot(number) or {}
    schemas = {each.get("schema-id", 0): each for each in reader.document.get("schemas") or ()}
    current = reader.document.get("current-schema-id", 0)
    fields = schemas[snapshot.get("schema-id", current)]["fields"]
    return {each["id"]: (quote_name(each["name"]), each["type"]) for each in fields}


def _hash_terms(column: str, kind: Any) -> list[str]:
    """Return what is hashed of a column. Spark's hash passes over nulls, so whether one is there is hashed, too."""
    is_plain = isinstance(kind, str) and kind != "variant"
    return [f"isnull({column})", column if is_plain else f"to_json(struct({column} AS c))"]


def _sums_of(parts: Sequence[str]) -> str:
    sums = (f"sum(CAST(xxhash64({seed}, {', '.join(parts)}) AS DECIMAL(20, 0)))" for seed in (1, 2))
    return ", ".join(("count(*)", *sums))
