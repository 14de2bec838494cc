"""List, mark, minus and act over the files of Iceberg tables: the same sweep, over another area and by other marks.

The area is one directory for each table below ``tables/``. Marked is what the metadata that retained versions name
refer to: their manifest lists, manifests, data and delete files, statistics, and they themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pipelines.engine.model import TEXT, Engine, Rows
from pipelines.job import Progress
from pipelines.sweep.listing import TABLE_FILES, Listed, Wanted, table_shards
from pipelines.sweep.sweep import Sweep, Totals
from pipelines.tables.walk import BY_WISH, CLAIM, DOUBT, UNKNOWN, UNREADABLE, TableWalk, directory_of
from pipelines.trees.walk import Start, walk
from trinitylake_core.storage import Storage

_PATHS: Final = pa.schema({"path": TEXT})
_SHARED: Final = "another table claims this directory, too"


@dataclass(frozen=True, slots=True)
class Doubt:
    """A directory of which nothing is deleted.

    Attributes:
        table: the table, as far as it is known.
        directory: the directory; empty where it is not known, or lies elsewhere.
        reason: why.
    """

    table: str
    directory: str
    reason: str

    @property
    def is_wanted(self) -> bool:
        """Whether its owner wants this, so that no action is needed."""
        return self.reason in BY_WISH


class TableSweep(Sweep):
    """The state of one sweep over the files of tables.

    Attributes:
        doubts: directories of which nothing is deleted, by the last marking.
    """

    candidates = TABLE_FILES

    def __init__(self, engine: Engine, storage: Storage, order: int, progress: Progress, wanted: Wanted) -> None:
        super().__init__(engine, storage, order, progress)
        self.doubts: list[Doubt] = []
        self._wanted = wanted
        self._levels: list[Rows] = []
        self._tables = TableWalk(engine, storage, progress)

    def _may_go(self, boundary: int) -> str:
        return super()._may_go(0)

    def may_go(self, file: Listed, boundary: int) -> bool:
        """Return whether a file of this name may ever be deleted: no root is one of a table."""
        return super().may_go(file, 0)

    # -- list ----------------------------------------------------------------------------------------

    def _first_listing(self) -> Rows:
        return self._in_shards(table_shards(self._storage, self._wanted))

    def _note_transactions(self) -> None:
        self.list_transactions()  # none lies in the area

    # -- mark ----------------------------------------------------------------------------------------

    def mark(self, starts: Sequence[Start], paths: AbstractSet[str], *, afresh: bool = False) -> None:
        """Mark the files of the tables in the trees of roots; what is marked already is not read again.

        A file that is missing or cannot be read is a doubt about its table. Raises ``Corrupt`` for a node or a
        definition, for then the table is unknown.
        """
        del paths  # what a saved transaction changed is in the tree of its running root
        if afresh:
            self._forget_marks()
        walked = walk(self.engine, self._trees, starts, self._mark_progress, self._levels)
        self.nodes_read += walked.nodes_read
        self._levels += walked.levels
        self._live += self._tables.follow(walked.levels)
        self._protect()

    def remove_live(self) -> Totals:
        """Take off the orphans what was marked, and what was written again since it was listed; return the totals.

        A client whose answer was lost sends a file once more, under its name: its commit then meets a young file.
        """
        super().remove_live()
        query = """SELECT o.* FROM orphans o JOIN again a ON a.path = o.path
            WHERE a.modified_millis = o.modified_millis AND a.bytes = o.bytes"""
        again = self._first_listing().keep("path")
        return self._keep_orphans(self.engine.sql(query, orphans=self._doomed, again=again))

    @property
    def read(self) -> dict[str, int]:
        """How many distinct files of each kind were read to mark."""
        return self._tables.read

    def _protect(self) -> None:
        """Mark every file in a directory that is in doubt."""
        if not self._tables.found:
            return
        query = f"SELECT DISTINCT path, label, about FROM found WHERE role = {DOUBT!r}"
        doubts = [Doubt(row["label"], row["path"], row["about"]) for row in self._tables.ask(query).list()]
        claimed = f"""SELECT path, min(label) AS one, max(label) AS other FROM found WHERE role = {CLAIM!r}
            GROUP BY path HAVING min(about) <> max(about)"""
        shared = self._tables.ask(claimed).list()
        doubts += [Doubt(f"{row['one']}, {row['other']}", row["path"], _SHARED) for row in shared]
        doubts = [*{*doubts, *self._unreadable()}]
        self.doubts = sorted(doubts, key=lambda each: (each.directory, each.table, each.reason))
        directories = sorted({each.directory for each in doubts if each.directory})
        if directories:
            table = self.engine.table([{"path": each} for each in directories], _PATHS)
            query = "SELECT f.path FROM files f JOIN held h ON substr(f.path, 1, length(h.path)) = h.path"
            self._live.append(self.engine.sql(query, files=self._listed, held=table).keep("path"))

    def _unreadable(self) -> list[Doubt]:
        """Return the doubts of files that are missing or cannot be read: about each table that needs one of them."""
        query = f"SELECT DISTINCT path, about FROM found WHERE role IN ({UNREADABLE!r}, {UNKNOWN!r})"
        lost = self._tables.ask(query).keep("path")
        if not lost.count():
            return []
        claims = self._tables.ask(f"SELECT DISTINCT path, parent FROM found WHERE role = {CLAIM!r}").keep("parent")
        query = """SELECT DISTINCT o.label, o.metadata, l.about, c.path AS directory FROM owners o
            JOIN lost l ON l.path = o.origin LEFT JOIN claims c ON c.parent = o.metadata"""
        rows = self.engine.sql(query, owners=self._tables.owners(lost), lost=lost, claims=claims).list()
        return [Doubt(row["label"], row["directory"] or directory_of(row["metadata"]), row["about"]) for row in rows]

    def _forget_marks(self) -> None:
        for rows in self._levels:
            rows.drop()
        self._levels = []
        self._tables.drop()
        super()._forget_marks()
