"""Which files that trees at one root URI reach are to be copied to another: walk, list both sides, compare.

A file counts as there when it has the size that it has at the source: files are immutable. Files of tables are those
that the metadata of MANAGED tables name below the root. What is missing or damaged among them is named, and not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pipelines.copy.copying import BATCH, NEW, copy_new
from pipelines.copy.damaged_files import check_file
from pipelines.engine.counting import (
    CountedWork,
    GivenRows,
    ask_of_given,
    ask_of_kept,
    keep_counted,
    keep_given,
    list_counted,
    refuse_lost,
    refuse_other_sum,
    stream_counted,
    sum_counts,
    with_counts,
)
from pipelines.engine.model import LONG, TEXT, Engine, Row, Rows
from pipelines.job import Progress
from pipelines.reach.listing import everything, table_shards
from pipelines.reach.table_walk import (
    ALIAS,
    DOUBT,
    LIST,
    LIVE,
    MANIFEST,
    METADATA,
    OF_OUTSIDE,
    OUTSIDE,
    UNKNOWN,
    UNREADABLE,
    UNSEEN,
    TableWalk,
    key_files,
)
from pipelines.reach.walk import FOREVER, FROM_COPY, LOST, NAMED, Start, TreeSource, Walk, walk
from pipelines.reach.walk import NODE as WALKED_NODE
from trinitylake_core.errors import CorruptDefinition, FileMissing, InvalidLocation, NotAFile, StorageError
from trinitylake_core.locations import parse, validate_path
from trinitylake_core.storage import Storage

PREFIXES: Final = (*(f"{number:04b}/" for number in range(16)), "_lakehouse_def_")
"""Where all files but roots lie whose names this library chose."""
_SHOWN: Final = 10
_PREFIX: Final = pa.schema({"prefix": TEXT})
_PATH: Final = pa.schema({"path": TEXT})
_LISTING: Final = pa.schema({"path": TEXT, "size": LONG})
_LOOKED_UP: Final = pa.schema({"path": TEXT, "size": LONG, "there": LONG})
DEFINITION: Final = "definition"
NODE: Final = "node"
DATA: Final = "data file"
TABLE_METADATA: Final = "metadata file"
OF_TABLES: Final = (DATA, TABLE_METADATA)
_OF_TREES: Final = f"role IN ({WALKED_NODE}, {NAMED})"
_NOT_ABSENT: Final = "NOT EXISTS (SELECT 1 FROM absent a WHERE a.path = e.path)"
_UNREAD: Final = (UNREADABLE, UNKNOWN, UNSEEN)
_OF_TABLES: Final = (METADATA, LIST, MANIFEST, LIVE)
"""The same, by the roles of a walk."""
_TASKS: Final = 256
"""Tasks of a listing."""
_MEANT: Final = pa.schema({"path": TEXT, "size": LONG, "role": TEXT, "named": TEXT})
_SIZE: Final = "max(CASE WHEN size >= 0 THEN size END)"
"""The size that a file of a table should have; what is below zero is none."""
_DIFFERS: Final = "(there IS NULL OR there <> size)"
_LOST: Final = f"(kind = {DEFINITION!r} AND size IS NULL AND there IS NOT NULL)"
"""A definition that is missing here: that of the copy is to be proved."""
_TO_COPY: Final = f"((here = size AND {_DIFFERS}) OR {_LOST})"
_OWN_NAME: Final = " OR ".join(f"substr(path, 1, {len(each)}) = {each!r}" for each in PREFIXES)
_NO_LISTING: Final = f"here IS NULL OR (kind IN ({DEFINITION!r}, {NODE!r}) AND NOT ({_OWN_NAME}))"


@dataclass(frozen=True, slots=True)
class _Named:
    """What names files: a walk of trees (``ask`` queries it), one of tables, and names that ``meant`` a file here."""

    ask: Callable[[str], Rows]
    tables: TableWalk
    meant: Rows
    absent: Rows


class _Listing(NamedTuple):
    """What a storage has below some prefixes.

    Attributes:
        files: path and size of each, kept, beside the counts of the work that listed them.
        asked: what that work was to list.
    """

    files: Rows
    asked: GivenRows


class LostFile(NamedTuple):
    """A file that one side, or neither, has, and the first and the last version that reach it."""

    path: str
    first: int
    last: int

    @property
    def is_node(self) -> bool:
        """Whether it is no definition."""
        parsed = parse(self.path)
        return parsed is not None and parsed.kind in {"node", "root"}

    def is_of(self, versions: Container[int]) -> bool:
        """Return whether all that need it are among some versions."""
        if self.last < 0:
            return False
        needed_by = range(self.first, self.last + 1)
        return all(each in versions for each in needed_by)


@dataclass(frozen=True, slots=True)
class FilesToCopy:
    """Which files to copy, in a table of an engine.

    Attributes:
        files: how many of each kind, of ``bytes`` together.
        there: how many files are at the target.
        requests: those that tasks made so far, 0 where the work was done in this process.
        lacking: tables of which the copy will lack files, by label, each with one of the reasons.
        elsewhere: files of tables that lie outside the root, which are not copied.
        kept: nodes and roots that cannot be read here, and can at the target: what the target has, counts.
        lost: nodes and definitions that neither side has. The newest version reaches none of these nodes.
    """

    files: dict[str, int]
    bytes: int
    there: int
    requests: int
    lacking: dict[str, str]
    elsewhere: int
    kept: list[str]
    lost: list[LostFile]
    _compared: Rows
    _asked: dict[str, GivenRows]
    _plan: CopyPlan

    def copy(self, *kinds: str) -> tuple[int, int, int]:
        """Copy the files of kinds, one kind after the other; return files, bytes, and requests of tasks.

        Adds to ``kept`` what is missing or damaged here, and sound at the target, and to ``lost`` what neither has.
        """
        done = []
        for kind in kinds:
            asked = self._asked.get(kind, GivenRows(0))
            done.append(self._plan.copy(self._compared, kind, asked, self))
        files = sum(each[0] for each in done)
        size = sum(each[1] for each in done)
        requests = sum(each[2] for each in done)
        return files, size, requests


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What roots of a source reach, compared with what the target holds; both in tables of ``engine``.

    Attributes:
        newest: the newest version that is copied, of which nothing may be lost.
        given_up: versions that are marked as lost: what only they reach is kept at the target without a word.
    """

    engine: Engine
    source: Storage
    target: Storage
    order: int
    newest: int
    given_up: Container[int]
    progress: Progress

    def compare(self, starts: Sequence[Start], left_out: AbstractSet[str], *, tables: bool = False) -> FilesToCopy:
        """Return the files to copy. One ``get`` per node, and a listing of both sides.

        With ``tables`` also one ``get`` for each definition of a table, metadata file, manifest list and manifest, a
        listing of the directories of tables at both sides, and two ``head`` for each file that none of these shows.

        Raises:
            Corrupt: a node is missing or damaged, or a definition missing.
        """
        trees = TreeSource(self.source, self.order, figures=False, copy=self.target, needed=self.newest)
        walked = walk(self.engine, trees, starts, self.progress)
        from_copy = _list_damaged(walked, FROM_COPY, walked.from_copy)
        kept = [each.path for each in from_copy if not each.is_of(self.given_up)]
        lost = _list_damaged(walked, LOST, walked.lost)
        here, there = (self._listing(each, tables=tables) for each in (self.source, self.target))
        walk_of_tables = TableWalk(self.engine, self.source, self.progress, managed=True, copy=self.target)
        if tables:
            walk_of_tables.follow(walked.levels)
        meant = self._find_respelled(walk_of_tables, here)
        named = _Named(walked.ask, walk_of_tables, meant, self._leave_out(starts, left_out))
        reached = self._find_reached(named).keep(repeatable=True)
        listed = self.engine.sql(
            """SELECT r.path, r.kind, r.times, r.first, r.last, coalesce(r.size, h.size) AS size,
            coalesce(r.walked, h.size) AS here, t.size AS there
            FROM reached r LEFT JOIN here h ON h.path = r.path LEFT JOIN target t ON t.path = r.path""",
            reached=reached,
            here=here.files,
            target=there.files,
        ).keep(repeatable=True)
        compared = listed
        kinds = self._sum_kinds(named, compared)
        unlisted = sum(each["unlisted"] for each in kinds)
        if unlisted:  # hardly ever; looking none up takes four jobs of Spark
            others = self.engine.sql(f"SELECT path FROM listed WHERE {_NO_LISTING}", listed=listed)
            others.learn_count(unlisted)
            looked_up = self.engine.map(_look_up, others, _LOOKED_UP, self.source, self.target).keep("path")
            compared = self.engine.sql(
                """SELECT l.path, l.kind, l.times, l.first, l.last, coalesce(l.size, o.size) AS size,
                coalesce(l.here, o.size) AS here, coalesce(l.there, o.there) AS there
                FROM listed l LEFT JOIN others o ON o.path = l.path""",
                listed=listed,
                others=looked_up,
            ).keep(repeatable=True)
            kinds = self._sum_kinds(named, compared)
        walked.drop()
        missing = sum(each["lost"] for each in kinds if each["kind"] == DEFINITION)
        lost += self._list_missing(compared, missing)
        of_listings = 2 * len(PREFIXES)
        of_look_ups = 2 * unlisted
        of_tables = sum(walk_of_tables.read.values())
        in_tasks = walked.nodes_read + of_listings + of_look_ups + of_tables
        lacking, elsewhere = self._lacking(walk_of_tables, compared, meant)
        walk_of_tables.drop()
        return FilesToCopy(
            files={row["kind"]: row["missing"] for row in kinds},
            bytes=sum(row["bytes"] for row in kinds),
            there=sum(row["there"] for row in kinds),
            requests=self.engine.not_counted(in_tasks),
            lacking=lacking,
            elsewhere=elsewhere,
            kept=kept,
            lost=lost,
            _compared=compared,
            _asked={row["kind"]: GivenRows(row["missing"], row["missing_keys"]) for row in kinds},
            _plan=self,
        )

    def _find_respelled(self, tables: TableWalk, here: _Listing) -> Rows:
        """Return the files here that tables mean by another spelling: path, size, role, and ``named`` as they are.

        A file that the listing lost would be left out: no look-up is by another spelling. Raises ``StorageError``.
        """
        if not tables.has(ALIAS):
            return self.engine.table((), _MEANT).keep("named", repeatable=True)
        query = f"""SELECT path, about AS named, max(label) AS role, {_SIZE} AS size FROM found
            WHERE role = {ALIAS!r} AND label <> {OUTSIDE!r} GROUP BY path, about"""
        aliases = tables.keep_asked("names", query, "path, named, role, size")
        counts, _ = sum_counts(self.engine, here.files)
        refuse_lost("listings", here.asked, counts)
        query = "SELECT path, size FROM here WHERE path IS NOT NULL"
        keyed = key_files(self.engine, keep_counted(self.engine, "files", query, "path, size", here=here.files))
        query = """SELECT k.path, coalesce(a.size, k.size) AS size, a.role, a.named
            FROM keyed k JOIN aliases a ON a.path = k.key"""
        return keep_counted(self.engine, "names", query, "named, path, size, role", keyed=keyed, aliases=aliases)

    def _lacking(self, tables: TableWalk, compared: Rows, meant: Rows) -> tuple[dict[str, str], int]:
        """Return the tables of which files are missing or damaged here, and not there; and how many lie elsewhere."""
        if not tables.found:
            return {}, 0
        query = f"""SELECT count(DISTINCT f.path) AS files FROM found f WHERE f.role IN {_OF_TABLES}
            AND f.path LIKE '%://%' AND NOT EXISTS (SELECT 1 FROM meant m WHERE m.named = f.path)"""
        elsewhere = tables.ask(query, meant=meant).one()["files"]
        kinds = ", ".join(repr(each) for each in OF_TABLES)
        query = f"""SELECT path, max(CASE WHEN here IS NULL THEN 'a file is missing: ' ELSE 'a file has a wrong size: '
            END) AS about FROM compared WHERE kind IN ({kinds}) AND (here IS NULL OR here <> size) AND {_DIFFERS}
            GROUP BY path"""
        unread = f"""SELECT path, about FROM found WHERE role IN {_UNREAD} {OF_OUTSIDE}
            AND NOT EXISTS (SELECT 1 FROM found o WHERE o.role = x.label AND o.path = x.path)
            AND NOT EXISTS (SELECT 1 FROM meant m WHERE m.named = x.path)"""
        lost = tables.keep_asked(
            "files that a copy lacks", f"{query} UNION ALL {unread}", "path, about", compared=compared, meant=meant
        )
        if not lost.count() and not tables.has(DOUBT):
            return {}, elsewhere
        every = [f"SELECT label, about FROM found WHERE role = {DOUBT!r} AND path = ''"]
        needed = {}
        if lost.count():
            about = "CASE WHEN l.about LIKE '%: ' THEN l.about || l.path ELSE l.about END"
            every.append(f"SELECT o.label, {about} AS about FROM owners o JOIN lost l ON l.path = o.origin")
            needed = {"owners": tables.owners(lost), "lost": lost}
        query = f"SELECT label, min(about) AS about FROM ({' UNION ALL '.join(every)}) e GROUP BY label"
        what = "tables of which a copy lacks files"
        rows = list_counted(self.engine, what, query, "label, about", found=tables.found, **needed)
        lacking = {row["label"]: row["about"] for row in rows}
        return dict(sorted(lacking.items())), elsewhere

    def _listing(self, storage: Storage, *, tables: bool) -> _Listing:
        names = list(PREFIXES)
        if tables:
            names += table_shards(storage, everything).prefixes
        prefixes = [{"prefix": each} for each in names]
        at_once = 1 + len(names) // _TASKS
        work = CountedWork(_list_prefixes, _LISTING, "prefix")
        table = self.engine.table(prefixes, _PREFIX)
        files = self.engine.map(work, table, with_counts(_LISTING), storage, each=at_once)
        return _Listing(files.keep("path"), ask_of_given(prefixes, "prefix"))

    def _leave_out(self, starts: Sequence[Start], left_out: AbstractSet[str]) -> Rows:
        """Return the paths that are not copied with the others: roots, and what is left out."""
        absent = set(left_out)
        for each in starts:
            found = parse(each.path)
            if found is not None and found.kind == "root":
                absent.add(each.path)
        paths = [{"path": path} for path in sorted(absent)]
        return keep_given(self.engine, "roots", paths, _PATH)

    def _find_reached(self, named: _Named) -> Rows:
        """Return every file that is reached, but for what is left out.

        ``size`` is the one that it should have, and ``walked`` the one that a walk found; ``None`` where a listing
        shows it. ``times`` is how often it is named, ``first`` and ``last`` are the versions that reach it.
        """
        query = f"""SELECT path, CASE WHEN max(size) IS NULL THEN {DEFINITION!r} ELSE {NODE!r} END AS kind,
            max(size) AS size, max(size) AS walked, count(*) AS times, min(first) AS first, max(last) AS last
            FROM walked WHERE {_OF_TREES} GROUP BY path"""
        every = [named.ask(query)]
        if named.tables.found:
            query = f"""SELECT path, CASE WHEN max(role) = {LIVE!r} THEN {DATA!r} ELSE {TABLE_METADATA!r} END AS kind,
                {_SIZE} AS size, CAST(NULL AS BIGINT) AS walked, count(*) AS times, CAST(NULL AS BIGINT) AS first,
                CAST(NULL AS BIGINT) AS last FROM named GROUP BY path"""
            every.append(self.engine.sql(query, named=self._names_of_tables(named, "path, size, role")))
        return self.engine.sql(
            f"SELECT e.* FROM every e WHERE {_NOT_ABSENT}",
            every=every,
            absent=named.absent,
        )

    def _sum_kinds(self, named: _Named, compared: Rows) -> list[dict[str, Any]]:
        """Return of each kind of files how many are there, are missing there, are lost here, or not in a listing.

        They are sums of all rows, those that rows were grouped from and those that two joins came to: each row says
        how many names it stands for. So a row that was lost on the way, or is another one's copy, is missing in the
        sum of names, which a query of its own asks for. Raises ``StorageError``.
        """
        query = f"""SELECT kind, sum(times) AS names, sum(times * crc32(path)) AS keys,
            sum(CASE WHEN size IS NULL AND there IS NULL THEN 1 ELSE 0 END) AS lost,
            sum(CASE WHEN {_TO_COPY} THEN 1 ELSE 0 END) AS missing,
            sum(CASE WHEN {_NO_LISTING} THEN 1 ELSE 0 END) AS unlisted,
            sum(CASE WHEN {_TO_COPY} THEN crc32(path) ELSE 0 END) AS missing_keys,
            sum(CASE WHEN {_TO_COPY} THEN coalesce(size, 0) ELSE 0 END) AS bytes,
            sum(CASE WHEN {_DIFFERS} THEN 0 ELSE 1 END) AS there FROM compared GROUP BY kind"""
        kinds = self.engine.sql(query, compared=compared).list()
        names = sum(row["names"] for row in kinds)
        keys = sum(row["keys"] for row in kinds)
        refuse_other_sum("names of files", self._ask_for_names(named), GivenRows(names, keys))
        return kinds

    def _ask_for_names(self, named: _Named) -> GivenRows:
        """Return how many names of files there are that :meth:`_find_reached` is to find. One query."""
        every = [named.ask(f"SELECT path FROM walked WHERE {_OF_TREES}")]
        if named.tables.found:
            every.append(self._names_of_tables(named, "path"))
        names = self.engine.sql(
            f"SELECT e.path FROM every e WHERE {_NOT_ABSENT}",
            every=every,
            absent=named.absent,
        )
        return ask_of_kept(self.engine, names, "path")

    def _names_of_tables(self, named: _Named, columns: str) -> Rows:
        """Return what the metadata of tables name below the root, and could be read."""
        tables = named.tables
        unread = tables.ask(f"SELECT DISTINCT path FROM found WHERE role = {UNREADABLE!r}").keep(
            "path", repeatable=True
        )
        query = f"""SELECT {columns} FROM found f WHERE role IN {_OF_TABLES} AND path NOT LIKE '%://%'
            AND NOT EXISTS (SELECT 1 FROM unread u WHERE u.path = f.path)
            UNION ALL SELECT {columns} FROM meant"""
        return tables.ask(query, unread=unread, meant=named.meant)

    def _list_missing(self, compared: Rows, count: int) -> list[LostFile]:
        """Return the ``count`` definitions that neither side has."""
        if not count:
            return []
        query = f"""SELECT path, first, last FROM compared WHERE kind = {DEFINITION!r} AND size IS NULL
            AND there IS NULL"""
        found = [LostFile(**row) for row in self.engine.sql(query, compared=compared).list()]
        if len(found) != count:
            raise StorageError(f"{count} definitions are missing, and {len(found)} were listed; run it again")
        return found

    def copy(self, compared: Rows, kind: str, asked: GivenRows, found: FilesToCopy) -> tuple[int, int, int]:
        """Copy the files of a kind that are not at the target; return files, bytes, requests of tasks.

        Files that stay as they are there, because they cannot be read here, are added to what is ``kept`` or ``lost``.
        """
        count = asked.rows
        self.progress(f"copy {kind}s", 0, count)
        if not count:
            return 0, 0, 0
        query = f"""SELECT path, coalesce(size, there) AS size, there, first, last FROM compared
            WHERE kind = {kind!r} AND {_TO_COPY}"""
        files = self.engine.sql(query, compared=compared)
        files.learn_count(count)
        needed = self.newest
        if kind == DEFINITION:  # who means it is asked later
            needed = FOREVER
        work = partial(copy_new, check=check_file, needed=needed)
        sums = dict.fromkeys(("copied", "bytes", "requests"), 0)
        sides = (self.source, self.target)
        for row in stream_counted(self.engine, f"{kind}s to copy", work, files, "path", asked, NEW, *sides, each=BATCH):
            for name in sums:
                sums[name] += row[name]
            if row["last"] is not None:
                found.lost.append(LostFile(row["left"], row["first"], row["last"]))
            elif row["left"] is not None:
                found.kept.append(row["left"])
            self.progress(f"copy {kind}s", sums["copied"], count)
        return sums["copied"], sums["bytes"], self.engine.not_counted(sums["requests"])


def _list_damaged(walked: Walk, role: int, count: int) -> list[LostFile]:
    """Return the nodes that a walk could read at the target only, or at neither side."""
    if not count:
        return []
    query = f"SELECT path, first, last FROM walked WHERE role = {role}"
    rows = keep_counted(walked.engine, "nodes", query, "path, first, last", walked=walked.levels)
    return sorted(LostFile(**row) for row in rows.list())


def _list_prefixes(rows: Iterator[Row], storage: Storage) -> Iterator[tuple[str, int]]:
    for file in storage.list_many([row["prefix"] for row in rows]):
        yield file.path, file.size


def _look_up(rows: Iterator[Row], source: Storage, target: Storage) -> Iterator[tuple[str, int | None, int | None]]:
    """Yield path and sizes at both sides of files that no listing showed: others chose their names."""
    paths = [row["path"] for row in rows]
    here = dict(looked_up(source, paths))
    there = dict(looked_up(target, paths))
    for path in paths:
        yield path, here.get(path), there.get(path)


def looked_up(storage: Storage, paths: list[str]) -> Iterator[tuple[str, int]]:
    """Yield path and size of files that no listing showed, if they are there. One ``head`` each, in parallel.

    Raises:
        CorruptDefinition: what a tree names as the path of a definition leads outside the lakehouse.
    """

    def size(path: str) -> int | None:
        try:
            return storage.info(validate_path(path)).size
        except (FileMissing, NotAFile):  # a link or a directory is no file that can be copied
            return None
        except InvalidLocation as error:
            raise CorruptDefinition(f"{error}; nothing was changed", path=path, invariant="I11") from None

    for path, found in zip(paths, storage.map(paths, size), strict=True):
        if found is not None:
            yield path, found
