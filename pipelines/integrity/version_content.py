"""What one version means, proved from what a walk kept of its nodes: no node is read a second time.

Of a key's messages and row the one in the highest node counts. Every table and view has its namespace (I12), and with
``definitions`` every definition is read and parses (I15).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa

from pipelines.engine import Engine, Rows
from pipelines.engine.counting import (
    MARK,
    ask_of_given,
    ask_of_kept,
    keep_mapped,
    refuse_other_sum,
    stream_counted,
)
from pipelines.engine.model import BINARY, INT, LONG, READ_AHEAD, TEXT, MadeRow, Row, Table
from pipelines.integrity.examine import (
    ENTRY,
    EXISTS,
    KIND,
    NEEDED,
    NO_FINDING,
    IntArray,
    hashes_of,
)
from pipelines.integrity.findings import DEFINITIONS, DEFINITIONS_PROVED, VIOLATION, Found, columns_of
from pipelines.reach.table_files import TABLES, TABLES_UNKNOWN, TableFiles, in_sample
from pipelines.reach.walk import Walk
from trinitylake_core.check import (
    MALFORMED,
    Named,
    VersionContent,
    Violation,
    objects_without_namespace,
    read_definitions,
)
from trinitylake_core.definitions import TableDef
from trinitylake_core.keys import NAMESPACE, TABLE, VIEW, KeyCodec
from trinitylake_core.storage import Storage
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.versions import Root, Versions

_NAMED: Final = pa.schema({"kind": TEXT, "label": TEXT, "path": TEXT})
_PROVED: Final = pa.schema({"role": INT, "path": TEXT, "size": LONG, **dict.fromkeys(VIOLATION, TEXT)})
"""A finding, an object or namespaces as in a row of ``KEPT``, or a figure (``COUNT``) by its name."""
_COUNT: Final = 7
_BYTES: Final = "bytes"
_BYTES_READ: Final = "bytes_read"
_MARKS_OF_NAMESPACES: Final = "marks_of_namespaces"
_KINDS: Final = {NAMESPACE: "namespaces", TABLE: "tables", VIEW: "views", MALFORMED: "malformed"}
_COUNTED: Final = {
    DEFINITIONS: "definitions",
    DEFINITIONS_PROVED: "proved_by_checksum",
    TABLES: "tables_examined",
    TABLES_UNKNOWN: "tables_not_known",
    _BYTES: _BYTES_READ,
}
"""What is summed up, and the columns of the sums."""
FINDINGS: Final = f"""count(invariant) AS findings,
    coalesce(sum(CASE WHEN invariant IS NOT NULL THEN {MARK} END), 0) AS marks_of_findings"""
"""The columns that say how many findings are among rows, and the sum of their marks."""
_ABOVE_MOST: Final = 4 << 20
"""Entries above the leaves whose hashes are brought together: 16 MB of them."""
_HASHED: Final = 8_192
_HASHES: Final = pa.schema({"hashes": BINARY})
_NEWEST: Final = f"""FROM walked e WHERE role = {ENTRY} AND value IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM above a WHERE a.path = e.path AND a.height > e.height)"""
"""Of a key's messages and row the one in the highest node counts."""
_EVERY: Final = f"""(SELECT role, path, size, {MARK} FROM walked
    UNION ALL SELECT role, path, size, {MARK} FROM proved)"""
"""What is known of entries, among all other rows: of all of them the sum of the marks is known."""
_OF_NAMESPACE: Final = f"role IN ({EXISTS}, {NEEDED})"
_NAMESPACES: Final = f"""(SELECT path, max(CASE WHEN role = {EXISTS} THEN 1 ELSE 0 END) AS is_there,
    sum({MARK}) AS marks FROM {_EVERY} e WHERE {_OF_NAMESPACE} GROUP BY path)"""


def proved_definitions(
    storage: Storage,
    named: Iterable[Named],
    counts: Counter[str],
    tables: float | None,
) -> Iterator[Violation]:
    """Yield what is wrong with definitions. One ``get`` each, in parallel.

    ``counts`` grows by how many were read and how many of them were proved by a checksum of their own. Of the share
    ``tables`` of all tables, the metadata file must exist, too: one ``head`` each.
    """
    remaining = iter(named)
    files = TableFiles(storage, counts)
    while part := list(islice(remaining, READ_AHEAD)):
        counts[DEFINITIONS] += len(part)
        sampled: list[tuple[str, str, TableDef]] = []
        for each in read_definitions(storage, part):
            if each.defect is not None:
                yield each.defect
            if each.has_checksum:
                counts[DEFINITIONS_PROVED] += 1
            if isinstance(each.definition, TableDef) and tables is not None and in_sample(each.path, tables):
                sampled.append((each.label, each.path, each.definition))
        yield from files.missing(sampled)


@dataclass(slots=True)
class GatheredContent(VersionContent):
    """What is gathered of one version.

    Attributes:
        version: the first version of a walk.
        read_definitions: whether definitions are read.
        tables: the share of the tables whose metadata file must exist; ``None``: none.
        root: of the version, if it was read.
        counts: of definitions read and proved.
    """

    version: int = -1
    read_definitions: bool = False
    root: Root | None = None
    tables: float | None = None
    counts: Counter[str] = field(default_factory=Counter)

    def prove(self, storage: Storage, entries: Iterable[tuple[str, str | None]]) -> Iterator[Violation]:
        """Note the objects of entries, each key once; yield what is wrong with definitions, one ``get`` each."""
        live = ((key, path) for key, path in entries if path is not None)
        if self.read_definitions:
            yield from proved_definitions(storage, self.definitions(live), self.counts, self.tables)
        else:
            for key, _ in live:
                self.note(key)

    def wrong(self, storage: Storage, store: NodeStore) -> Iterator[Violation]:
        """Yield what is wrong with the version as a whole: object counts (I9), objects without a namespace (I12).

        REQUIRES: all entries were noted. At most one ``get``, and the nodes of namespaces that are lost.
        """
        root = self.root
        if root is None and self.version >= 0:
            root = next(Versions(storage).read_roots([self.version]))
        if root is not None:
            yield from self.check_object_counts(root)
            for namespace in self.missing_namespaces():
                yield from objects_without_namespace(store, root, self.codec, namespace)


# -- from what a walk kept -------------------------------------------------------------------------------


def above_leaves(walk: Walk) -> IntArray | None:
    """Return the hashes of all keys in nodes above the leaves, also of messages; ``None`` if they are too many.

    Leaves contain nearly all entries of a lakehouse, and most of their keys are in no node above. Only the entries of
    keys that are also in nodes above have to be brought together from several nodes. 4 bytes for each entry above the
    leaves come to this process.
    """
    query = f"SELECT path FROM walked WHERE role = {ENTRY} AND height > 0"
    # By a query of its own: a row that the engine loses of one of both is in the other one.
    asked = ask_of_kept(walk.engine, walk.ask(query), "path")
    if asked.rows > _ABOVE_MOST:
        return None
    above = walk.ask(query)
    above.learn_count(asked.rows)
    hashes = [np.empty(0, np.int32)]
    for row in stream_counted(walk.engine, "keys above the leaves", _hash_paths, above, "path", asked, _HASHES):
        hashes.append(np.frombuffer(row["hashes"], np.int32))
    return np.unique(np.concatenate(hashes))


def _hash_paths(rows: Iterator[Row]) -> Iterator[tuple[bytes]]:
    while some := list(islice(rows, _HASHED)):
        hashes = hashes_of(row["path"] for row in some)
        yield (np.unique(hashes).tobytes(),)


def prove_entries(walk: Walk, content: GatheredContent, found: Found) -> None:
    """Prove what the entries of a walk mean; only findings and missing namespaces come to the driver."""
    newest, above = _newest_entries(walk, "path, value")
    # By tables of its own: a row that the engine loses of one of both is in the other one.
    counted, above_counted = _newest_entries(walk, "path")
    asked = ask_of_kept(walk.engine, counted, "path")
    above_counted.drop()
    newest.learn_count(asked.rows)
    work = partial(
        _prove_content,
        version=content.version,
        codec=content.codec,
        definitions=content.read_definitions,
        tables=content.tables,
    )
    more = [FINDINGS]
    proved, counts, findings = keep_mapped(
        walk.engine, "objects", work, newest, "path", asked, _PROVED, walk.storage, more=more
    )
    add_findings(walk.engine, proved, findings, found, content.version)
    sums = _sum_up(walk.engine, _EVERY, walk.sum_of_marks() + counts.marks, proved=proved, walked=walk.levels)
    _count_definitions(found, sums)
    for kind, column in _KINDS.items():
        content.kinds[kind] += sums[column]
    content.needed = _find_lost_namespaces(walk, proved, sums[_MARKS_OF_NAMESPACES], found.most)
    for each in (above, proved):
        each.drop()


def _find_lost_namespaces(walk: Walk, proved: Rows, marks: int, most: int) -> set[str]:
    """Return the first namespaces that objects lie in and that are not there; most often one query says: none.

    ``marks`` is the sum of the marks of all rows that name one. Raises ``StorageError``: the engine lost rows.
    """
    query = f"""SELECT coalesce(sum(marks), 0) AS marks, coalesce(sum(1 - is_there), 0) AS lost
        FROM {_NAMESPACES} n"""
    sums = walk.ask(query, proved=proved).one()
    refuse_other_sum("names of namespaces", marks, sums["marks"])
    if not sums["lost"]:
        return set()
    query = f"SELECT path FROM {_NAMESPACES} n WHERE is_there = 0 ORDER BY path LIMIT {most}"
    rows = walk.ask(query, proved=proved).list()
    lost = {row["path"] for row in rows}
    wanted = min(sums["lost"], most)
    refuse_other_sum("namespaces", wanted, len(lost))
    return lost


def _newest_entries(walk: Walk, columns: str) -> tuple[Rows, Rows]:
    """Return the entries of a walk that count, and what they were found with: kept entries above the leaves."""
    above = walk.ask(f"SELECT path, height FROM walked WHERE role = {ENTRY} AND height > 0")
    kept = above.keep("path", repeatable=True)
    newest = walk.ask(f"SELECT {columns} {_NEWEST}", above=kept)
    return newest, kept


def prove_definitions(
    engine: Engine,
    storage: Storage,
    named: Iterable[Named],
    found: Found,
    tables: float | None,
) -> int:
    """Prove definitions, one ``get`` each, and one ``head`` for a share of tables; return the bytes read."""
    definitions = []
    for kind, label, path in named:
        definitions.append({"kind": kind, "label": label, "path": path})
    rows = engine.table(definitions, _NAMED)
    work = partial(_proved_named, tables=tables, most=found.most)
    asked = ask_of_given(definitions, "path")
    more = [FINDINGS]
    proved, counts, findings = keep_mapped(engine, "objects", work, rows, "path", asked, _PROVED, storage, more=more)
    add_findings(engine, proved, findings, found, 0)
    sums = _sum_up(engine, "(SELECT * FROM proved)", counts.marks, proved=proved)
    _count_definitions(found, sums)
    proved.drop()
    return sums[_BYTES_READ]


def add_findings(
    engine: Engine,
    rows: Table,
    sums: Mapping[str, int],
    found: Found,
    version: int | None = None,
) -> None:
    """Add the findings among rows, as many as are kept, and count the others.

    They are those in ``version``, or in the versions that the rows contain. ``sums`` has the columns of
    :data:`FINDINGS`. Raises ``StorageError``: the engine lost rows. REQUIRES: all rows are in the sums.
    """
    total = sums["findings"]
    if not total:
        return
    columns: tuple[str, ...] = (*VIOLATION, MARK)
    if version is None:
        columns += ("first", "last")
    query = f"SELECT {', '.join(columns)} FROM rows r WHERE r.invariant IS NOT NULL LIMIT {found.most}"
    taken = engine.sql(query, rows=rows).list()
    wanted = min(total, found.most)
    refuse_other_sum("findings", wanted, len(taken))
    marks = sum(row.pop(MARK) for row in taken)
    if wanted == total:
        refuse_other_sum("findings", sums["marks_of_findings"], marks)
    if version is not None:
        taken = [row | {"first": version, "last": version} for row in taken]
    found.rows(taken)
    found.count_more(total - len(taken))


def _sum_up(engine: Engine, every: str, marks: int, **tables: Table) -> dict[str, int]:
    """Return the sums of what was counted in the rows of a query, by column. Those rows have the sum ``marks``.

    All sums are in one row: of several, one could be lost. Raises ``StorageError``: the engine lost rows.
    """
    columns = [
        f"coalesce(sum({MARK}), 0) AS marks",
        _sum_where(_OF_NAMESPACE, MARK, _MARKS_OF_NAMESPACES),
        *_sums_of_sizes(KIND, _KINDS),
        *_sums_of_sizes(_COUNT, _COUNTED),
    ]
    sums = engine.sql(f"SELECT {', '.join(columns)} FROM {every} e", **tables).one()
    refuse_other_sum("rows of objects", marks, sums.pop("marks"))
    return sums


def _count_definitions(found: Found, sums: Mapping[str, int]) -> None:
    """Add what was counted of definitions and tables to the counts of a verification."""
    for name, column in _COUNTED.items():
        if name != _BYTES and sums[column]:
            found.counts[name] += sums[column]


def _sums_of_sizes(role: int, columns: Mapping[str, str]) -> Iterator[str]:
    """Yield the columns of a query that sum the sizes of rows of a role, each by the name in ``path``."""
    for name, column in columns.items():
        yield _sum_where(f"role = {role} AND path = {name!r}", "size", column)


def _sum_where(condition: str, column: str, name: str) -> str:
    """Return the column of a query that sums a column of the rows that meet a condition."""
    return f"coalesce(sum(CASE WHEN {condition} THEN {column} END), 0) AS {name}"


def _prove_content(
    rows: Iterator[Row],
    storage: Storage,
    *,
    version: int,
    codec: KeyCodec,
    definitions: bool,
    tables: float | None,
) -> Iterator[MadeRow]:
    content = GatheredContent(codec, version=version, read_definitions=definitions, tables=tables)
    entries = ((row["path"], row["value"]) for row in rows)
    findings = content.prove(storage, entries)
    yield from _as_rows(storage, findings, content.counts)
    for kind, count in content.kinds.items():
        yield (KIND, kind, count, *NO_FINDING)
    for namespace in sorted(content.exists):
        yield (EXISTS, namespace, None, *NO_FINDING)
    for namespace in sorted(content.needed):
        yield (NEEDED, namespace, None, *NO_FINDING)


def _proved_named(
    rows: Iterator[Row],
    storage: Storage,
    *,
    tables: float | None,
    most: int,
) -> Iterator[MadeRow]:
    counts: Counter[str] = Counter()
    named = ((row["kind"], row["label"], row["path"]) for row in rows)
    findings = proved_definitions(storage, named, counts, tables)
    yield from _as_rows(storage, islice(findings, most), counts)
    deque(rows, maxlen=0)  # they count as given: nobody asked for more findings


def _as_rows(storage: Storage, found: Iterable[Violation], counts: Counter[str]) -> Iterator[MadeRow]:
    before = storage.counts.snapshot()
    for each in found:
        yield (None, None, None, *columns_of(each))
    for name, count in counts.items():
        if name not in _COUNTED:
            raise ValueError(f"nobody sums up {name!r}")
        yield (_COUNT, name, count, *NO_FINDING)
    bytes_read = (storage.counts - before).bytes_read
    yield (_COUNT, _BYTES, bytes_read, *NO_FINDING)
