"""The engine in this process: PyIceberg reads a group of files, pyarrow writes it, and many tables become one version.

For tables of format versions 1 and 2, and for groups without delete files: a rewrite that applies deletes needs the
sequence number at which it began. Files stay in the partition spec that they were written by.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipelines.job import Cancel
from pipelines.tables.compact import model
from pipelines.tables.compact.model import Outcome, PlannedGroup, PlannedTable, Settings
from pipelines.tables.compact.proof import ProofFailed, RowsHash, hash_rows, refuse_other_counts, refuse_other_rows
from trinitylake_core import Lakehouse
from trinitylake_core.errors import Corrupt, FileMissing, InvalidInput, LakehouseFrozen, StorageDenied
from trinitylake_core.tables import Located

if TYPE_CHECKING:
    from trinitylake_core.iceberg import TrinityLakeCatalog
    from trinitylake_core.iceberg.data_files import RowReader
    from trinitylake_core.iceberg.rewritten import DataFile, FileRewrite

GROUP_BYTES: Final = 256 << 20
"""Larger groups are Spark's: their rows may take ten times as much memory."""
SORT_BYTES: Final = 64 << 20
"""The same where a group is sorted, all of it in memory."""
TOGETHER: Final = 100
"""Tables of one version at the most: a conflict over one of them repeats the commit of the others."""
_WAIT_SECONDS: Final = 30.0
"""What is rewritten waits no longer for other tables of its version: each second is a chance for a writer."""
_BATCH_BYTES: Final = 2 << 30
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
class _Batch:
    """Tables that wait for one commit."""

    tables: list[_Rewritten] = field(default_factory=list)
    began: float = 0.0

    def is_full(self) -> bool:
        size = sum(each.outcome.bytes for each in self.tables)
        waited = time.monotonic() - self.began
        return len(self.tables) >= TOGETHER or size >= _BATCH_BYTES or waited >= _WAIT_SECONDS


class LocalEngine:
    """Rewrites in this process."""

    name = "local"

    def __init__(self, lake: Lakehouse, settings: Settings, cancel: Cancel) -> None:
        from trinitylake_core.iceberg import TrinityLakeCatalog

        self.versions = 0
        self._lake = lake
        self._settings = settings
        self._ends = None if settings.seconds is None else time.monotonic() + settings.seconds
        self._cancel = cancel
        self._catalog: TrinityLakeCatalog = TrinityLakeCatalog.over(lake)

    def why_not(self, table: PlannedTable) -> str | None:
        """Return why this engine cannot rewrite a table as planned."""
        if table.format_version > _NEWEST_FORMAT:
            return f"it is of format version {table.format_version}, which needs engine 'spark'"
        if self._settings.strategy == model.ZORDER:
            return "z-order needs engine 'spark'"
        if table.delete_files:
            return _DELETES
        if any(each.deletes_elsewhere for each in table.groups):
            return "position deletes by another partition spec may apply to its files, which needs engine 'spark'"
        most = SORT_BYTES if self._settings.strategy == model.SORT else GROUP_BYTES
        if any(each.decision.bytes > most for each in table.groups):
            return f"a partition has more than {most >> 20} MiB to rewrite, which needs engine 'spark'"
        return None

    def rewrite(self, tables: Sequence[PlannedTable]) -> Iterator[Outcome]:
        """Replace the files of tables: some at the same time, and many in one version."""
        batch = _Batch()
        for found in self._each(tables):
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

    def close(self) -> None:
        """Nothing is held."""

    # -- writing -----------------------------------------------------------------------------------

    def _each(self, tables: Sequence[PlannedTable]) -> Iterator[_Rewritten | Outcome]:
        """Yield the tables as they are rewritten, not yet committed."""
        with ThreadPoolExecutor(self._settings.at_once, thread_name_prefix="compact") as threads:
            try:
                yield from threads.map(self._rewrite_table, tables)
            except BaseException:
                threads.shutdown(wait=True, cancel_futures=True)
                raise

    def _rewrite_table(self, table: PlannedTable) -> _Rewritten | Outcome:
        """Write the new files of a table, and prove them; what its own files cause is its outcome."""
        from trinitylake_core.iceberg.errors import REFUSED, NotThere, words_of
        from trinitylake_core.iceberg.references import UnreadableTable

        self._cancel.check()
        began = time.monotonic()
        if self._ends is not None and began > self._ends:
            return Outcome(table.name, model.TIMEOUT, self.name, "the time was used up before it; the next run goes on")
        failed = Outcome(table.name, model.UNREADABLE, self.name)
        try:
            rewrite = self._rewrite(table)
        except _Moved as error:
            return replace(failed, outcome=model.LOST, reason=str(error))
        except NotThere:
            return replace(failed, outcome=model.LOST, reason=model.GONE)
        except ProofFailed as error:
            return replace(failed, outcome=model.WRONG, reason=f"{error}; nothing of it was committed")
        except FileMissing as error:
            return replace(failed, outcome=model.LOST, reason=f"a file is gone: {error}")
        except UnreadableTable as error:
            return replace(failed, reason=f"{error.path} cannot be read: {error}")
        except (Corrupt, InvalidInput, StorageDenied, *REFUSED) as error:
            return replace(failed, reason=words_of(error))
        done = Outcome(
            table.name,
            model.DONE,
            self.name,
            partitions=len(table.groups),
            files=len(rewrite.replaced),
            after=len(rewrite.added),
            bytes=sum(each.size for each in rewrite.replaced),
            bytes_after=sum(each.size for each in rewrite.added),
            seconds=round(time.monotonic() - began, 3),
            proved="" if self._settings.prove == model.UNPROVED else self._settings.prove,
            manifests=table.manifests,
        )
        return _Rewritten(table, rewrite, done)

    def _rewrite(self, table: PlannedTable) -> FileRewrite:
        """Write the new files of a table. Costs a ``get`` for each file, and a ``put`` for each new one."""
        from trinitylake_core.iceberg.data_files import RowReader
        from trinitylake_core.iceberg.replacing import live_files, may_concern
        from trinitylake_core.iceberg.rewritten import FileRewrite

        _, stored = self._catalog.stored_table(table.identifier)
        metadata = stored.metadata
        if str(metadata.table_uuid) != table.uuid or metadata.current_snapshot_id != table.snapshot_id:
            raise _Moved("it has changed since the plan was made")
        live = live_files(Located(self._lake.storage), stored)
        wanted = frozenset(path for group in table.groups for path in group.paths)
        files = {each.uri: each for each in live.data_files(wanted)}
        for deletes in live.delete_files():
            if may_concern(deletes, list(files.values())):
                raise InvalidInput(_DELETES)
        reader = RowReader(metadata, live.located)
        added: list[DataFile] = []
        for group in table.groups:
            self._cancel.check()
            old = [files[path] for path in group.paths]
            added += self._rewrite_group(metadata, reader, group, old, table.target)
        return FileRewrite(
            uuid=table.uuid,
            snapshot_id=table.snapshot_id,
            replaced=tuple(files[path] for group in table.groups for path in group.paths),
            added=tuple(added),
            delete_files=live.delete_uris(),
            merges_manifests=table.manifests > 0,
            facts=_FACTS,
        )

    def _rewrite_group(
        self, metadata: Any, reader: RowReader, group: PlannedGroup, old: Sequence[DataFile], target: int
    ) -> list[DataFile]:
        """Write the new files of a group, prove them, and store them."""
        from trinitylake_core.iceberg.data_files import RowWriter
        from trinitylake_core.iceberg.file_figures import column_figures

        writer = RowWriter(metadata)
        proves_rows = self._settings.prove == model.HASH
        before = RowsHash()
        made: list[tuple[DataFile, bytes]] = []

        def read() -> Iterator[pa.RecordBatch]:
            nonlocal before
            contents = zip(old, self._lake.storage.map(old, reader.content), strict=True)
            for file, data in contents:
                for batch in reader.rows(file, data):
                    if proves_rows:
                        before += hash_rows([batch])
                    yield batch

        rows = sum(each.rows for each in old)
        for part in _split(self._sort(metadata, read()), -(-rows // group.decision.after)):
            found = writer.write(part, old[0])
            if found is not None:
                made.append(found)
        if self._settings.prove != model.UNPROVED:
            new = [file for file, _ in made]
            refuse_other_counts(column_figures(metadata, old), column_figures(metadata, new))
        if proves_rows:
            after = RowsHash()
            for file, data in made:
                after += hash_rows(reader.rows(file, data))
            refuse_other_rows(before, after)
        self._store(made, reader.located)
        return [file for file, _ in made]

    def _sort(self, metadata: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows in the order that the strategy asks for."""
        if self._settings.strategy != model.SORT:
            return batches
        from trinitylake_core.iceberg.data_files import sort_keys

        keys = sort_keys(metadata)
        table = pa.Table.from_batches(list(batches))
        return iter(table.sort_by(keys).combine_chunks().to_batches()) if table.num_rows else iter(())

    def _store(self, made: Sequence[tuple[DataFile, bytes]], located: Located) -> None:
        """Write new files below the root, in the table's places. One ``put`` each; the commit makes them durable."""
        files: list[tuple[str, bytes]] = []
        for file, data in made:
            storage, path = located.find(file.uri)
            if storage is not self._lake.storage:
                raise InvalidInput("its files lie outside the lakehouse, where this engine writes nothing")
            files.append((path, data))
        self._lake.storage.write_many(files)

    # -- committing --------------------------------------------------------------------------------

    def _commit(self, batch: Sequence[_Rewritten]) -> Iterator[Outcome]:
        """Make rewrites one version, without those that a writer came before; yield what became of each."""
        from trinitylake_core.iceberg.added import TableFilesVoid
        from trinitylake_core.iceberg.errors import REFUSED
        from trinitylake_core.iceberg.replacing import RewriteLost

        waiting = [list(batch)] if batch else []
        while waiting:
            some = waiting.pop()
            self._cancel.check()
            try:
                self._catalog.replace_files({each.table.identifier: each.rewrite for each in some})
            except RewriteLost as error:
                lost = {".".join(name.identifier): why for name, why in error.tables.items()}
                for each in some:
                    if each.table.name in lost:
                        yield _outcome_of_lost(each, model.LOST, lost[each.table.name])
                left = [each for each in some if each.table.name not in lost]
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


class _Moved(Exception):
    """A table is not what was planned."""


def _outcome_of_lost(each: _Rewritten, outcome: str, why: str) -> Outcome:
    """Return the outcome of a table that was rewritten for nothing: its new files are orphans."""
    return Outcome(each.table.name, outcome, each.outcome.engine, why, seconds=each.outcome.seconds, conflicts=1)


def _split(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield the batches of one file after the other, of so many rows each. Each must be used up before the next."""
    source = iter(batches)
    left: list[pa.RecordBatch] = []

    def one_file() -> Iterator[pa.RecordBatch]:
        room = max(1, rows)
        while room:
            batch = left.pop() if left else next(source, None)
            if batch is None:
                return
            if batch.num_rows > room:
                left.append(batch.slice(room))
                batch = batch.slice(0, room)
            room -= batch.num_rows
            yield batch

    while True:
        first = left.pop() if left else next(source, None)
        if first is None:
            return
        left.append(first)
        yield one_file()
