"""The engine in this process: files of a partition that need no translation become few, and many tables one version.

For tables of format versions 1 and 2, and for Parquet files of the table's current schema to which no deletes apply.
Everything else is Spark's, which is seen in part when the files are read: what is left is handed on. Files stay in the
partition spec that they were written by.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipelines.job import Cancel
from pipelines.reach.table_files import why_unreadable
from pipelines.tables.compact import model
from pipelines.tables.compact.model import Outcome, PlannedGroup, PlannedTable, Settings, TableEngine
from pipelines.tables.compact.proof import (
    ClaimedColumns,
    ProofFailed,
    RowsHash,
    hash_files,
    refuse_other_counts,
    refuse_other_rows,
)
from trinitylake_core import Lakehouse
from trinitylake_core.errors import Corrupt, FileMissing, InvalidInput, LakehouseFrozen, StorageDenied
from trinitylake_core.iceberg.reading.parquet_pages import MOST_BYTES, TooLarge, Unpacked
from trinitylake_core.table_places import Located

if TYPE_CHECKING:
    from trinitylake_core.iceberg import TrinityLakeCatalog
    from trinitylake_core.iceberg.rewriting.data_files import DataFileReader
    from trinitylake_core.iceberg.rewriting.rewritten import DataFile, FileRewrite

    _Content = tuple[DataFile, bytes, Unpacked]
    """A file, what is in it, and what it takes to unpack that."""

GROUP_BYTES: Final = 512 << 20
"""Larger groups are Spark's: the new files of a group are in memory until they are proved."""
_LARGE_GROUP: Final = GROUP_BYTES // 2
"""Of groups that are larger only one is rewritten at a time."""
_ASK_SECONDS: Final = 0.2
"""A table that waits for its turn asks so often whether the run goes on."""
TOGETHER: Final = 100
"""Tables of one version at the most: a conflict over one of them repeats the commit of the others."""
_WAIT_SECONDS: Final = 30.0
"""What is rewritten waits no longer for other tables of its version: each second is a chance for a writer."""
_BATCH_BYTES: Final = 2 << 30
MOST_UNPACKED: Final = 8 << 30
"""Bytes of rows, unpacked, that are read of one group of files."""
_HASHED_BYTES: Final = 8 << 20
"""So many bytes of old files are hashed at once; smaller files wait in memory for others."""
_NEWEST_FORMAT: Final = 2
_DELETES: Final = "delete files apply to its files, which needs engine 'spark'"
_FACTS: Final = {"engine-name": "trinitylake"}


@dataclass
class _Rewritten:
    """A table whose new files are stored, and wait for their commit."""

    table: PlannedTable
    rewrite: FileRewrite
    outcome: Outcome


@dataclass
class _Begun:
    """A table of which some groups are rewritten by now.

    Attributes:
        files: the data files of the plan, by URI.
        groups: the groups that were rewritten: ``replaced`` files became those that were ``added``.
        left: the groups that need Spark, and ``why`` the first of them does.
    """

    files: Mapping[str, DataFile]
    groups: list[PlannedGroup] = field(default_factory=list)
    added: list[DataFile] = field(default_factory=list)
    left: list[PlannedGroup] = field(default_factory=list)
    why: str = ""

    def old_files(self) -> tuple[DataFile, ...]:
        """Return the files that go."""
        return tuple(self.files[path] for group in self.groups for path in group.paths)


@dataclass
class _Batch:
    """Tables that wait for one commit."""

    tables: list[_Rewritten] = field(default_factory=list)
    began: float = 0.0

    def is_full(self) -> bool:
        size = sum(each.outcome.bytes for each in self.tables)
        waited = time.monotonic() - self.began
        return len(self.tables) >= TOGETHER or size >= _BATCH_BYTES or waited >= _WAIT_SECONDS


class LocalRewriter(TableEngine):
    """Rewrites in this process."""

    name = "local"

    def __init__(self, lake: Lakehouse, settings: Settings, cancel: Cancel) -> None:
        from trinitylake_core.iceberg import TrinityLakeCatalog

        super().__init__(lake, settings, cancel)
        self._large_turn = Lock()
        self._catalog: TrinityLakeCatalog = TrinityLakeCatalog.over(lake, reason=settings.reason or "")

    def why_not(self, table: PlannedTable) -> str | None:
        """Return why this engine cannot rewrite a table as planned."""
        if table.format_version > _NEWEST_FORMAT:
            return f"it is of format version {table.format_version}, which needs engine 'spark'"
        if self.settings.strategy != model.BINPACK:
            return "sorting needs engine 'spark'"
        if table.manifests:
            return "merging manifests needs engine 'spark'"
        if table.delete_files:
            return _DELETES
        if any(each.deletes_elsewhere for each in table.groups):
            return "position deletes by another partition spec may apply to its files, which needs engine 'spark'"
        if any(each.decision.bytes > GROUP_BYTES for each in table.groups):
            return f"a partition has more than {GROUP_BYTES >> 20} MiB to rewrite, which needs engine 'spark'"
        return None

    def rewrite(self, tables: Sequence[PlannedTable]) -> Iterator[Outcome]:
        """Replace the files of tables: some at the same time, and many in one version."""
        batch = _Batch()
        for found in self.map_tables(self._rewrite_table, tables):
            if isinstance(found, Outcome):
                yield found
                continue
            if not batch.tables:
                batch.began = time.monotonic()
            batch.tables.append(found)
            if batch.is_full():
                yield from self._commit(batch.tables)
                batch = _Batch()
        yield from self._commit(batch.tables)

    # -- writing -----------------------------------------------------------------------------------

    def _rewrite_table(self, table: PlannedTable) -> _Rewritten | Outcome:
        """Write the new files of a table, and prove them; what its own files cause is its outcome."""
        from trinitylake_core.iceberg.errors import REFUSED, NotThere

        self.cancel.check()
        failed = Outcome(table.name, model.UNREADABLE, self.name)
        try:
            return self._rewrite(table)
        except _Stopped as error:
            return replace(failed, outcome=error.outcome, reason=str(error))
        except NotThere:
            return replace(failed, outcome=model.LOST, reason=model.GONE)
        except TooLarge as error:
            why = f"{error}; --engine spark rewrites it, if its writer is to be trusted"
            return replace(failed, outcome=model.TOO_LARGE, reason=why)
        except ProofFailed as error:
            return replace(failed, outcome=model.WRONG, reason=f"{error}; nothing of it was committed")
        except FileMissing as error:
            return replace(failed, outcome=model.LOST, reason=why_unreadable(error))
        except (Corrupt, InvalidInput, StorageDenied, *REFUSED) as error:
            return replace(failed, reason=why_unreadable(error))

    def _rewrite(self, table: PlannedTable) -> _Rewritten | Outcome:
        """Write the new files of a table. Costs a ``get`` for each file, and a ``put`` for each new one."""
        from trinitylake_core.iceberg.rewriting.replacing import live_files, may_concern
        from trinitylake_core.iceberg.rewriting.rewritten import FileRewrite

        began = time.monotonic()
        self._refuse_late("the time was used up before it; the next run goes on")
        _, stored = self._catalog.stored_table(table.identifier)
        metadata = stored.metadata
        if str(metadata.table_uuid) != table.uuid or metadata.current_snapshot_id != table.snapshot_id:
            raise _Stopped(model.LOST, "it has changed since the plan was made")
        live = live_files(Located(self._lake.storage), stored)
        wanted = frozenset(path for group in table.groups for path in group.paths)
        done = _Begun({each.uri: each for each in live.data_files(wanted)})
        for deletes in live.list_delete_files():
            if may_concern(deletes, list(done.files.values())):
                raise InvalidInput(_DELETES)
        self._rewrite_groups(metadata, live.located, table, done)
        if done.left:
            self.left[table.name] = replace(table, groups=tuple(done.left))
        if not done.groups:
            return Outcome(table.name, model.UNSUPPORTED, self.name, done.why)
        rewrite = FileRewrite(
            uuid=table.uuid,
            snapshot_id=table.snapshot_id,
            replaced=done.old_files(),
            added=tuple(done.added),
            delete_files=live.list_delete_uris(),
            facts=_FACTS,
        )
        outcome = Outcome(
            table.name,
            model.UNSUPPORTED if done.left else model.DONE,
            self.name,
            f"{len(done.left):,} of {len(table.groups):,} partitions are left: {done.why}" if done.left else "",
            partitions=len(done.groups),
            files=len(rewrite.replaced),
            after=len(rewrite.added),
            bytes=sum(each.size for each in rewrite.replaced),
            bytes_after=sum(each.size for each in rewrite.added),
            seconds=round(time.monotonic() - began, 3),
            proved="" if self.settings.prove == model.UNPROVED else self.settings.prove,
        )
        return _Rewritten(table, rewrite, outcome)

    def _rewrite_groups(self, metadata: Any, located: Located, table: PlannedTable, done: _Begun) -> None:
        """Write the new files of each group that needs no translation; note the others."""
        from trinitylake_core.iceberg.rewriting.data_files import DataFileReader, NeedsSpark

        reader = DataFileReader(metadata, located)
        for group in table.groups:
            self.cancel.check()
            old = [done.files[path] for path in group.paths]
            try:
                with self._take_turn(group):
                    new = self._rewrite_group(metadata, reader, group, old, table.target)
                    located.write((file.uri, data) for file, data in new)
            except NeedsSpark as error:
                done.left.append(group)
                done.why = done.why or f"{error}, which needs engine 'spark'"
            else:
                done.added += [file for file, _ in new]
                done.groups.append(group)

    @contextmanager
    def _take_turn(self, group: PlannedGroup) -> Iterator[None]:
        """Have no other large group in memory inside of the block, if this one is large. Raises as what stops a run."""
        if group.decision.bytes <= _LARGE_GROUP:
            yield
            return
        while not self._large_turn.acquire(timeout=_ASK_SECONDS):
            self.cancel.check()
            self._refuse_late()
        try:
            yield
        finally:
            self._large_turn.release()

    def _rewrite_group(
        self,
        metadata: Any,
        reader: DataFileReader,
        group: PlannedGroup,
        old: Sequence[DataFile],
        target: int,
    ) -> list[tuple[DataFile, bytes]]:
        """Write the new files of a group, in memory, and prove them."""
        from trinitylake_core.iceberg.rewriting.data_files import NeedsSpark, RowWriter, open_parquet
        from trinitylake_core.iceberg.rewriting.file_figures import claims_of, column_figures

        writer = RowWriter(metadata)
        columns = [each.field_id for each in metadata.schema().fields]
        proves_rows = self.settings.prove == model.HASH
        before = RowsHash()
        made: list[tuple[DataFile, bytes]] = []
        room = 2 * GROUP_BYTES

        def hash_old(files: Sequence[_Content]) -> None:
            if proves_rows and files:
                self._hash_files(files, columns, before)

        parts = _Parts(self._read(reader, old, hash_old), sum(each.rows for each in old), group.decision.after, target)
        for part in parts.files():
            found = writer.write(part, old[0], parts.note_written)
            if found is not None:
                made.append(found)
                room -= len(found[1])
            if room < 0:  # what packed well before is written without a codec
                raise NeedsSpark(f"a partition would become more than {2 * GROUP_BYTES >> 20} MiB")
        if self.settings.prove != model.UNPROVED:
            new = [file for file, _ in made]
            refuse_other_counts(column_figures(metadata, old), column_figures(metadata, new))
        if proves_rows:
            after = RowsHash()
            for file, data in made:
                claimed = ClaimedColumns(claims_of(metadata, file))
                _, unpacked = open_parquet(file.uri, data)
                self._hash_files([(file, data, unpacked)], columns, after, claimed)
            refuse_other_rows(before, after)
        return made

    def _read(
        self, reader: DataFileReader, files: Sequence[DataFile], note_read: Callable[[Sequence[_Content]], object]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files; ``note_read`` gets the files that were read, some at a time."""
        contents = zip(files, self._lake.storage.map(files, reader.content), strict=True)
        left = MOST_UNPACKED
        unnoted: list[_Content] = []
        waiting = 0
        for file, data in contents:
            opened = reader.open(file, data)
            for batch in reader.rows(file, opened):
                self._refuse_late()
                left -= batch.nbytes
                if left < 0:
                    raise TooLarge(f"a partition unpacks to more than {MOST_UNPACKED:,} bytes")
                yield batch
            unnoted.append((file, data, opened[1]))
            waiting += file.size
            if waiting >= _HASHED_BYTES:
                note_read(unnoted)
                unnoted = []
                waiting = 0
        note_read(unnoted)

    def _hash_files(
        self,
        files: Sequence[_Content],
        columns: Sequence[int],
        total: RowsHash,
        claimed: ClaimedColumns | None = None,
    ) -> None:
        """Add the rows of files to a hash."""
        self._refuse_late()
        for file, _, unpacked in files:
            if unpacked.largest_group > MOST_BYTES:
                why = f"a row group unpacks to more than {MOST_BYTES:,} bytes, too many to be proved"
                raise TooLarge(f"{file.uri}: {why}")
        contents = [data for _, data, _ in files]
        least = min(unpacked.batch_rows for _, _, unpacked in files)
        hash_files(contents, columns, total, claimed, batch_rows=least)

    def _refuse_late(self, why: str = "the time was used up, and nothing of it was committed") -> None:
        """Raise :class:`_Stopped` once the time of the run, or of the table, is used up."""
        if self.time.is_over():
            raise _Stopped(model.TIMEOUT, why)

    # -- committing --------------------------------------------------------------------------------

    def _commit(self, batch: Sequence[_Rewritten]) -> Iterator[Outcome]:
        """Make rewrites one version, without those that a writer came before; yield what became of each."""
        from trinitylake_core.iceberg.commit_rules.added import TableFilesVoid
        from trinitylake_core.iceberg.errors import REFUSED
        from trinitylake_core.iceberg.rewriting.replacing import RewriteLost

        waiting = [list(batch)] if batch else []
        while waiting:
            some = waiting.pop()
            self.cancel.check()
            try:
                self._catalog.replace_files({each.table.identifier: each.rewrite for each in some})
            except RewriteLost as error:
                lost = {name.identifier: why for name, why in error.tables.items()}
                for each in some:
                    if each.table.identifier in lost:
                        yield _outcome_of_lost(each, model.LOST, lost[each.table.identifier])
                left = [each for each in some if each.table.identifier not in lost]
                waiting += [left] if left else []
            except (Corrupt, *REFUSED) as error:
                half = len(some) // 2
                cause = error.__cause__
                if half and not isinstance(cause, LakehouseFrozen):
                    waiting += [some[half:], some[:half]]
                    continue
                kind = model.VOID if isinstance(cause, TableFilesVoid) else model.LOST
                kind = model.FROZEN if isinstance(cause, LakehouseFrozen) else kind
                for each in some:
                    yield _outcome_of_lost(each, kind, f"{error}")
            else:
                self.versions += 1
                for each in some:
                    yield replace(each.outcome, commits=1)


class _Stopped(Exception):
    """A table is not rewritten: it is not what was planned, or the time of the run is used up."""

    def __init__(self, outcome: str, why: str) -> None:
        super().__init__(why)
        self.outcome = outcome


def _outcome_of_lost(each: _Rewritten, outcome: str, why: str) -> Outcome:
    """Return the outcome of a table that was rewritten for nothing: its new files are orphans."""
    return Outcome(each.table.name, outcome, each.outcome.engine, why, seconds=each.outcome.seconds, conflicts=1)


class _Parts:
    """Deals rows out to files: to as many as are planned, or to fewer, if the rows take less when they are written."""

    def __init__(self, batches: Iterable[pa.RecordBatch], rows: int, files: int, target: int) -> None:
        """Begin with so many rows for so many files, of about ``target`` bytes each."""
        self._source = iter(batches)
        self._left: list[pa.RecordBatch] = []
        self._rows = rows
        self._files = files
        self._target = target
        self._room = 0
        self._dealt = 0

    def files(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield the batches of one file after the other. Each must be used up before the next."""
        while True:
            first = self._next()
            if first is None:
                return
            self._left.append(first)
            self._dealt = 0
            self._room = max(1, -(-self._rows // self._files))
            yield self._one_file()
            self._rows -= self._dealt
            self._files = max(1, self._files - 1)

    def note_written(self, size: int) -> None:
        """Make the current file larger if the rows that were dealt to it by now took few bytes, ``size``."""
        if self._room <= 0:  # it is whole
            return
        size_of_rest = size * self._rows // max(1, self._dealt)
        # Rounded to the nearer number: of a size and a quarter two files would be small, and merged again.
        enough = max(1, round(size_of_rest / max(1, self._target)))
        if enough < self._files:
            self._files = enough
            self._room = max(self._room, -(-self._rows // enough) - self._dealt)

    def _next(self) -> pa.RecordBatch | None:
        return self._left.pop() if self._left else next(self._source, None)

    def _one_file(self) -> Iterator[pa.RecordBatch]:
        while self._room > 0:
            batch = self._next()
            if batch is None:
                return
            if batch.num_rows > self._room:
                self._left.append(batch.slice(self._room))
                batch = batch.slice(0, self._room)
            self._room -= batch.num_rows
            self._dealt += batch.num_rows
            yield batch
