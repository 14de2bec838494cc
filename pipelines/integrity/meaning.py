"""What one version means, proved from what a walk kept of its nodes: no node is read a second time.

Of a key's messages and row the one in the highest node counts. Every table and view has its namespace (I12), and with
``definitions`` every definition is read and parses (I15).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipelines.engine.model import LONG, READ_AHEAD, TEXT, Row
from pipelines.engine.spark import collect, collect_one, map_rows, on_disk, table, tasks_for
from pipelines.files.tablefiles import TABLES, TABLES_UNKNOWN, TableFiles, in_sample
from pipelines.integrity.examine import SETTLED, UNREADABLE
from pipelines.integrity.findings import DEFINITIONS, DEFINITIONS_PROVED, VIOLATION, Found
from pipelines.trees.sparklevels import SparkLevels
from trinitylake_core.check import Named, VersionContent, Violation, check_definitions, objects_without_namespace
from trinitylake_core.definitions import TableDef
from trinitylake_core.keys import KeyCodec
from trinitylake_core.storage import Storage
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.versions import Root, Versions

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame, SparkSession

_SUMS: Final = {"read": DEFINITIONS, "proved": DEFINITIONS_PROVED, "tables": TABLES, "unknown": TABLES_UNKNOWN}
"""What tasks count: columns by the names of the counts."""
_NAMED: Final = pa.schema({"kind": TEXT, "label": TEXT, "path": TEXT})
_SUMMED: Final = (*_SUMS, "bytes", *SETTLED)
_PROVED: Final = pa.schema(
    {**dict.fromkeys(VIOLATION, TEXT), "exists": TEXT, "needed": TEXT, **dict.fromkeys(_SUMMED, LONG)}
)
"""A finding, or a namespace that exists or is needed, or how much was read, and how many objects of each kind."""


def proved_definitions(
    storage: Storage, named: Iterable[Named], counts: Counter[str], tables: float | None = None
) -> Iterator[Violation]:
    """Yield what is wrong with definitions. One ``get`` each, in parallel.

    ``counts`` grows by how many were read and how many of them were proved by a checksum of their own. Of the share
    ``tables`` of all tables, the metadata file is looked for, too: one ``head`` each.
    """
    remaining, files = iter(named), TableFiles(storage, counts)
    while part := list(islice(remaining, READ_AHEAD)):
        counts[DEFINITIONS] += len(part)
        found: list[tuple[str, str, TableDef]] = []

        def sampled(label: str, path: str, table: TableDef, found: list[Any] = found) -> None:
            if tables is not None and in_sample(path, tables):
                found.append((label, path, table))

        yield from check_definitions(storage, part, lambda _: counts.update((DEFINITIONS_PROVED,)), sampled)
        yield from files.missing(found)


@dataclass(slots=True)
class Meaning(VersionContent):
    """What is gathered of one version.

    Attributes:
        version: the first version of a walk.
        read_definitions: whether definitions are read.
        tables: of which share of the tables the metadata file is looked for; ``None``: of none.
        root: of the version, if it was read.
        counts: of definitions read and proved; ``bytes`` are those that tasks read of them.
    """

    version: int = -1
    read_definitions: bool = False
    root: Root | None = None
    tables: float | None = None
    counts: Counter[str] = field(default_factory=Counter)
    bytes: int = 0

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
            root = next(Versions(storage).readable_roots([self.version]))
        if root is not None:
            yield from self.miscounted(root)
            for namespace in self.lost():
                yield from objects_without_namespace(store, root, self.codec, namespace)


# -- in this process -------------------------------------------------------------------------------------


def entries_of(rows: Iterable[Row], meaning: Meaning, found: Found) -> Iterator[tuple[str, str | None]]:
    """Yield key and meaning of each key in the rows of a walk, highest first; findings of nodes go to ``found``.

    Of a key's messages and row the first to come counts: they come from the highest node down. Holds the keys above the
    leaves, not the leaves. Stops as soon as there are findings enough.
    """
    above: set[str] = set()
    for row in rows:
        found.rows(row["found"])
        if found.enough():
            return
        if row["height"] == UNREADABLE and row["first"] == meaning.version:
            meaning.whole = False
        for entry in row["entries"]:
            if entry["key"] not in above:
                yield entry["key"], entry["value"]
                if row["height"] > 0:
                    above.add(entry["key"])


# -- on Spark --------------------------------------------------------------------------------------------


def prove_on_spark(walk: SparkLevels, meaning: Meaning, found: Found) -> None:
    """Prove what the entries of a walk mean, in tasks; only findings and missing namespaces come to the driver."""
    from pyspark.sql import functions as f

    if found.violations():  # a node that cannot be read is a finding
        unreadable = (f.col("height") == UNREADABLE) & (f.col("first") == meaning.version)
        meaning.whole = not collect(walk.rows().where(unreadable).select("path").limit(1))
    entries = walk.rows().select("height", f.inline("entries")).groupBy("key")
    newest = entries.agg(f.max_by("value", "height").alias("value")).where("value is not null")
    work = partial(
        _proved,
        version=meaning.version,
        codec=meaning.codec,
        definitions=meaning.read_definitions,
        tables=meaning.tables,
    )
    proved = on_disk(map_rows(newest, work, _PROVED, walk.storage))
    meaning.bytes = _sum_up(proved, found, meaning.version, meaning.kinds)
    meaning.kinds.update({name: walk.sums[name] for name in SETTLED})

    def all_names(which: str) -> DataFrame:
        settled = walk.rows().select(f.explode(which).alias("name"))
        return proved.where(f.col(which).isNotNull()).select(f.col(which).alias("name")).union(settled)

    lost = all_names("needed").distinct().join(all_names("exists"), "name", "left_anti")
    meaning.needed = {row["name"] for row in collect(lost.limit(found.most))}
    proved.unpersist()


def definitions_on_spark(
    spark: SparkSession,
    storage: Storage,
    named: Sequence[Named],
    found: Found,
    version: int,
    tables: float | None = None,
) -> int:
    """Prove definitions in tasks, one ``get`` each, and one ``head`` for a share of tables; return the bytes read."""
    rows = [dict(zip(_NAMED.names, each, strict=True)) for each in named]
    frame = table(spark, rows, _NAMED).repartition(tasks_for(spark, len(rows)))
    proved = on_disk(map_rows(frame, partial(_proved_named, tables=tables), _PROVED, storage))
    nbytes = _sum_up(proved, found, version)
    proved.unpersist()
    return nbytes


def _sum_up(proved: DataFrame, found: Found, version: int, kinds: Counter[str] | None = None) -> int:
    """Add the findings, as many as there is room for, and count definitions and objects; return the bytes read."""
    from pyspark.sql import functions as f

    sums = [f.sum(name).alias(name) for name in _SUMMED]
    total = collect_one(proved.agg(f.count("invariant").alias("found"), *sums))
    if total["found"]:
        rows = collect(proved.where("invariant is not null").select(*VIOLATION).limit(found.room()))
        for row in rows:
            found.add(Violation(**row), version)
        found.count_more(total["found"] - len(rows))
    found.counts.update({counted: total[name] or 0 for name, counted in _SUMS.items()})
    if kinds is not None:
        kinds.update({name: total[name] or 0 for name in SETTLED})
    return total["bytes"] or 0


def _proved(
    rows: Iterator[Row], storage: Storage, *, version: int, codec: KeyCodec, definitions: bool, tables: float | None
) -> Iterator[Row]:
    meaning = Meaning(codec, version=version, read_definitions=definitions, tables=tables)
    yield from _as_rows(storage, meaning.prove(storage, ((row["key"], row["value"]) for row in rows)), meaning.counts)
    yield _row(dict(meaning.kinds))
    yield from (_row({"exists": name}) for name in sorted(meaning.exists))
    yield from (_row({"needed": name}) for name in sorted(meaning.needed))


def _proved_named(rows: Iterator[Row], storage: Storage, *, tables: float | None) -> Iterator[Row]:
    counts: Counter[str] = Counter()
    named = ((row["kind"], row["label"], row["path"]) for row in rows)
    yield from _as_rows(storage, proved_definitions(storage, named, counts, tables), counts)


def _as_rows(storage: Storage, found: Iterable[Violation], counts: Counter[str]) -> Iterator[Row]:
    before = storage.counts.snapshot()
    for each in found:
        yield _row({name: getattr(each, name) for name in VIOLATION})
    nbytes = (storage.counts - before).bytes_read
    yield _row({name: counts[counted] for name, counted in _SUMS.items()} | {"bytes": nbytes})


def _row(values: dict[str, Any]) -> Row:
    return dict.fromkeys(_PROVED.names) | values
