"""List, mark, minus and act over the files of Iceberg tables: the same sweep, over another area and by other marks.

The area is one directory for each table below ``tables/``. Marked is what the metadata that retained versions name
refer to: their manifest lists, manifests, data and delete files, statistics, and they themselves.

What could not be read may name any file, whichever directory that lies in. So then the whole area is marked, unless the
operator says of the table that it shares no file with others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pipelines.engine.counting import keep_counted, keep_given, list_counted, refuse_other_names
from pipelines.engine.model import TEXT, Engine, Rows
from pipelines.job import Progress
from pipelines.reach.listing import TABLE_FILES, Listed, Wanted, table_shards
from pipelines.reach.sweep import Size, Sweep, Totals
from pipelines.reach.table_walk import (
    ALIAS,
    BY_WISH,
    CLAIM,
    DOUBT,
    LIVE,
    OF_OUTSIDE,
    OUTSIDE,
    UNKNOWN,
    UNREADABLE,
    UNSEEN,
    TableWalk,
    directory_of,
    key_files,
    uri_of,
)
from pipelines.reach.walk import Start, walk
from trinitylake_core.storage import Storage
from trinitylake_core.tables import DIRECTORY

_PATHS: Final = pa.schema({"path": TEXT})
_BELOW: Final = f"substr(o.path, {len(DIRECTORY) + 1})"
_BELOW_NAMESPACE: Final = f"substr({_BELOW}, instr({_BELOW}, '/') + 1)"
_OWN_DIRECTORY: Final = f"substr(o.path, 1, {len(DIRECTORY)} + instr({_BELOW}, '/') + instr({_BELOW_NAMESPACE}, '/'))"
"""The directory of the table with a file ``o``, in SQL: three names and their slashes."""
_UNREAD: Final = (UNREADABLE, UNKNOWN, UNSEEN)
_SHARED: Final = "another table claims this directory, too"


@dataclass(frozen=True, slots=True)
class Doubt:
    """A directory of which nothing is deleted.

    Attributes:
        table: the table, as far as it is known.
        directory: the directory; empty where it is not known, or lies elsewhere.
        reason: why.
        stops_all: whether it may concern files of every directory, so that nothing at all is deleted.
    """

    table: str
    directory: str
    reason: str
    stops_all: bool = False

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

    def __init__(
        self,
        engine: Engine,
        storage: Storage,
        order: int,
        progress: Progress,
        wanted: Wanted,
        apart: Sequence[str] = (),
    ) -> None:
        """``apart`` are URIs of directories of metadata whose tables share no file with others."""
        super().__init__(engine, storage, order, progress)
        self.doubts: list[Doubt] = []
        self._apart = tuple(apart)
        self._wanted = wanted
        self._levels: list[Rows] = []
        self._tables = TableWalk(engine, storage, progress)

    def _where_may_go(self, boundary: int) -> str:
        return super()._where_may_go(0)

    def may_go(self, file: Listed, boundary: int) -> bool:
        """Return whether a file of this name may ever be deleted: no root is one of a table."""
        return super().may_go(file, 0)

    # -- list ----------------------------------------------------------------------------------------

    def _first_listing(self) -> Rows:
        return self._in_shards(table_shards(self._storage, self._wanted))

    def _note_transactions(self, kinds: Mapping[str, Size]) -> None:
        self.list_transactions()  # none lies in the area

    # -- mark ----------------------------------------------------------------------------------------

    def mark(self, starts: Sequence[Start], paths: AbstractSet[str], *, afresh: bool = False) -> None:
        """Mark the files of the tables in the trees of roots; what is marked already is not read again.

        A file that is missing or cannot be read is a doubt about its table; of a definition, about the whole area.
        Raises ``Corrupt`` for a node.
        """
        del paths  # what a saved transaction changed is in the tree of its running root
        if afresh:
            self._forget_marks()
        walked = walk(self.engine, self._trees, starts, self._mark_progress, self._levels)
        try:
            found = self._tables.follow(walked.levels)
        except BaseException:
            walked.drop()
            raise
        self.nodes_read += walked.nodes_read
        self._levels += walked.levels
        self._live += found
        self._mark_aliases(found)
        self._protect()

    def _mark_aliases(self, found: Sequence[Rows]) -> None:
        """Mark listed files by the keys under which metadata may mean them. The listing is read only if there are any.

        So a mark costs nothing more where every URI has the usual spelling, and else a join, never a comparison of
        each name with each other.
        """
        if not found:
            return
        self._mark_encoded(found)
        if not self._tables.has(ALIAS):
            return
        query = f"SELECT path FROM found WHERE role = {ALIAS!r}"
        aliases = keep_counted(self.engine, "names", query, "path", found=found)
        if not aliases.count():
            return
        keyed = key_files(self.engine, self._listed_names("1 = 1"))
        query = "SELECT k.path FROM keyed k JOIN aliases a ON a.path = k.key"
        self._live.append(keep_counted(self.engine, "names", query, "path", keyed=keyed, aliases=aliases))

    def _mark_encoded(self, found: Sequence[Rows]) -> None:
        """Mark listed files whose names are encoded, by the path without percent signs: metadata may name that."""
        encoded = self._listed_names("instr(path, '%') > 0")
        if encoded.count():
            keyed = key_files(self.engine, encoded, plain=True)
            query = "SELECT k.path FROM keyed k JOIN named n ON n.path = k.key"
            self._live += [keep_counted(self.engine, "names", query, "path", keyed=keyed, named=each) for each in found]

    def _listed_names(self, where: str) -> Rows:
        """Return the listed files of which something is true, with their size, counted by a query of their own."""
        names = self.engine.sql(f"SELECT path, bytes AS size FROM files WHERE {where}", files=self._all_files)
        query = f"SELECT path FROM files WHERE {where}"
        refuse_other_names(self.engine, "listed files", names, "path", query, files=self._all_files)
        return names

    def remove_live(self) -> Totals:
        """Take off the orphans what was marked, and what was written again since it was listed; return the totals.

        A client whose answer was lost sends a file once more, under its name: its commit then meets a young file.
        """
        query = """SELECT o.* FROM orphans o JOIN again a ON a.path = o.path
            WHERE a.modified_millis = o.modified_millis AND a.bytes = o.bytes"""
        again = self._first_listing().keep("path", repeatable=True)
        return self._keep_orphans(self.engine.sql(query, orphans=self._unmarked_orphans(), again=again))

    @property
    def read(self) -> dict[str, int]:
        """How many distinct files of each kind were read to mark."""
        return self._tables.read

    def _protect(self) -> None:
        """Mark every file in a directory that is in doubt; all files, if a doubt may concern each of them."""
        if not self._tables.found:
            return
        doubts = {*self._doubts_of_walk(), *self._doubts_of_shared(), *self._doubts_of_unreadable()}
        self.doubts = sorted(doubts, key=lambda each: (each.directory, each.table, each.reason))
        held = {DIRECTORY if each.stops_all else each.directory for each in doubts} - {""}
        if DIRECTORY in held:
            query = "SELECT f.path FROM files f"
            self._live.append(keep_counted(self.engine, "files", query, "path", files=self._all_files))
        elif held:
            directories = [{"path": each} for each in sorted(held)]
            table = keep_given(self.engine, "directories in doubt", directories, _PATHS)
            query = "SELECT f.path FROM files f JOIN held h ON substr(f.path, 1, length(h.path)) = h.path"
            self._live.append(keep_counted(self.engine, "files", query, "path", files=self._all_files, held=table))

    def owners(self) -> dict[str, list[tuple[str, str, str]]]:
        """Return the tables in whose directories orphans lie, by directory: label, UUID and metadata file of each.

        Raises ``StorageError``: the engine lost rows.
        """
        if not self._tables.found:
            return {}
        query = f"SELECT path, label, about, parent FROM found WHERE role = {CLAIM!r}"
        claims = self._tables.keep_asked("claims of directories", query, "path, label, about, parent")
        query = f"SELECT {_OWN_DIRECTORY} AS path FROM orphans o"
        lying = keep_counted(self.engine, "directories", query, "path", orphans=self._orphan_rows)
        query = "SELECT c.path, c.label, c.about, c.parent FROM lying d JOIN claims c ON c.path = d.path"
        columns = "path, label, about, parent"
        found = list_counted(self.engine, "owners of directories", query, columns, lying=lying, claims=claims)
        owners: dict[str, list[tuple[str, str, str]]] = {}
        for path, *owner in sorted((row["path"], row["label"], row["about"], row["parent"]) for row in found):
            label, uuid, metadata = owner
            owners.setdefault(path, []).append((label, uuid, metadata))
        return owners

    def _doubts_of_walk(self) -> Iterator[Doubt]:
        """Yield the doubts that the walk found. One without a directory may concern every file."""
        if not self._tables.has(DOUBT):
            return
        query = f"SELECT path, label, about FROM found WHERE role = {DOUBT!r}"
        for row in list_counted(self.engine, "doubts", query, "path, label, about", found=self._tables.found):
            yield Doubt(row["label"], row["path"], row["about"], stops_all=not row["path"])

    def _doubts_of_shared(self) -> Iterator[Doubt]:
        """Yield the doubts about directories that two tables claim."""
        query = f"""SELECT path, min(label) AS one, max(label) AS other FROM found WHERE role = {CLAIM!r}
            GROUP BY path HAVING min(about) <> max(about)"""
        for row in list_counted(self.engine, "shared directories", query, "path, one, other", found=self._tables.found):
            yield Doubt(f"{row['one']}, {row['other']}", row["path"], _SHARED)

    def _doubts_of_unreadable(self) -> Iterator[Doubt]:
        """Yield the doubts of files that are missing or cannot be read: about each table that needs one of them."""
        if not self._tables.has(OUTSIDE, *_UNREAD):
            return
        query = f"""SELECT path, about FROM found WHERE role IN {_UNREAD} {OF_OUTSIDE}
            AND x.label <> {LIVE!r} AND NOT EXISTS (SELECT 1 FROM found r WHERE r.role = x.label AND r.path = x.path)"""
        lost = self._tables.keep_asked("files that cannot be read", query, "path, about")
        query = f"SELECT parent, path FROM found WHERE role = {CLAIM!r}"
        claims = self._tables.keep_asked("claims of directories", query, "parent, path")
        query = """SELECT o.label, o.metadata, l.about, c.path AS directory FROM lost l
            LEFT JOIN owners o ON o.origin = l.path LEFT JOIN claims c ON c.parent = o.metadata"""
        owners = self._tables.owners(lost)
        columns = "label, metadata, about, directory"
        for row in list_counted(self.engine, "doubts", query, columns, owners=owners, lost=lost, claims=claims):
            metadata = row["metadata"] or ""
            directory = row["directory"] or directory_of(metadata)
            yield Doubt(row["label"] or "", directory, row["about"], stops_all=not self._is_apart(metadata))

    def _is_apart(self, metadata: str) -> bool:
        """Whether the operator says that the table with these metadata shares no file with others."""
        return bool(metadata) and uri_of(self._storage.root, metadata).startswith(self._apart)

    def _forget_marks(self) -> None:
        for rows in self._levels:
            rows.drop()
        self._levels = []
        self._tables.drop()
        super()._forget_marks()
