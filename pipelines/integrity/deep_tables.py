"""The files of tables, proved one by one (I19, I20, I22): metadata are read, data is asked for; each file once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from itertools import combinations, islice
from operator import itemgetter
from typing import Final, NamedTuple

import pyarrow as pa

from pipelines.engine.counting import keep_counted, list_counted, refuse_other_sum
from pipelines.engine.model import READ_AHEAD, TEXT, Engine, Row, Rows
from pipelines.integrity.findings import Found
from pipelines.job import Progress
from pipelines.reach.table_files import TABLES, TABLES_UNKNOWN, finding_of_unseen
from pipelines.reach.table_walk import (
    ASTRAY,
    CLAIM,
    DOUBT,
    GROUND,
    LIST,
    LIVE,
    MANIFEST,
    METADATA,
    OF_OUTSIDE,
    OUTSIDE,
    UNKNOWN,
    UNREADABLE,
    UNSEEN,
    Lost,
    TableWalk,
    ask_for_file,
    uri_of,
)
from pipelines.reach.walk import FOREVER, NAMED, Walk
from trinitylake_core import Lakehouse
from trinitylake_core.check import violation
from trinitylake_core.errors import TrinityLakeError
from trinitylake_core.grounds import BELOW
from trinitylake_core.keys import TABLE
from trinitylake_core.storage import Storage
from trinitylake_core.table_places import Located

FILES: Final = "file"
"""What is counted besides metadata files, manifest lists and manifests: data and delete files, and statistics."""
FILES_UNKNOWN: Final = "unknown"
_READ: Final = {METADATA: "metadata file", LIST: LIST, MANIFEST: MANIFEST}
_ASKED: Final = pa.schema({"role": TEXT, "path": TEXT, "about": TEXT})
_NEEDED: Final = """SELECT o.label, o.metadata, o.definition, min(l.path) AS path, min(l.about) AS about, l.role,
    min(d.first) AS first, max(d.last) AS last
    FROM owners o JOIN lost l ON l.path = o.origin JOIN definitions d ON d.path = o.definition
    GROUP BY o.label, o.metadata, o.definition, l.role, l.named"""
"""A row for each file that is lost, and one for all files of a table that were not seen."""
_DEFINITIONS: Final = (
    f"SELECT path, min(first) AS first, max(last) AS last FROM walked WHERE role = {NAMED} GROUP BY path"
)
_FINDING: Final = "label, metadata, definition, path, about, role, first, last"


def prove_table_files(
    walked: Walk,
    found: Found,
    progress: Progress,
    share: float,
) -> dict[str, int]:
    """Prove the files of a share of the tables that a walk names; return how many of each kind were examined.

    One ``get`` for each distinct definition of a table, metadata file, manifest list and manifest, and one ``head`` for
    each other live file. Definitions that cannot be read are left out. Definitions in messages that wait are proved,
    too, until a compaction: the files that an overwritten one names belong to older versions.
    """
    engine = walked.engine
    storage = walked.storage
    tables = TableWalk(engine, storage, progress, share=share, lenient=True)
    tables.follow(walked.levels)
    if not tables.found:
        return {}
    query = f"SELECT path, max(size) AS size FROM found WHERE role = {LIVE!r} GROUP BY path"
    live = tables.keep_asked("names of files", query, "path, size")
    total = live.count()
    asked = engine.map(_ask_for_files, live, _ASKED, storage, each=READ_AHEAD)
    asked = asked.keep("path", repeatable=True, progress=lambda rows: progress("ask for files", rows, total))
    answers = _count_answers(engine, asked, total)
    if answers[UNREADABLE] or answers[UNSEEN] or tables.has(DOUBT, ASTRAY, OUTSIDE, UNREADABLE, UNSEEN):
        _add_findings(engine, walked, tables, asked, found)
    _add_pairs(engine, walked, tables, found)
    own, elsewhere = 0, answers[UNKNOWN]
    if tables.has(UNKNOWN):
        query = f"""SELECT (SELECT count(DISTINCT path) FROM ({_either(UNKNOWN)}) e) AS elsewhere, count(*) AS own
            FROM found WHERE role = {UNKNOWN!r} AND label <> ''"""
        unknown = tables.ask(query, asked=asked).one()
        own, elsewhere = unknown["own"], unknown["elsewhere"]
    found.counts[TABLES] = tables.read[METADATA] - own
    found.counts[TABLES_UNKNOWN] = own
    read = {kind: tables.read[role] for role, kind in _READ.items()}
    return {**read, FILES: total, FILES_UNKNOWN: elsewhere}


def _count_answers(engine: Engine, asked: Rows, total: int) -> dict[str, int]:
    """Return how many of ``total`` files have which role. Raises ``StorageError``: the engine lost rows."""
    roles = (UNREADABLE, UNKNOWN, UNSEEN)
    sums = [f"coalesce(sum(CASE WHEN role = {role!r} THEN 1 END), 0) AS {role}_files" for role in roles]
    query = f"SELECT count(*) AS every, count(DISTINCT path) AS names, {', '.join(sums)} FROM asked"
    answers = engine.sql(query, asked=asked).one()
    refuse_other_sum("files", (total, total), (answers["names"], answers["every"]))
    return {role: answers[f"{role}_files"] for role in roles}


def _either(role: str) -> str:
    """Return the query of files of a role, which they got when others were read or when they were asked for."""
    return f"""SELECT path, about FROM found WHERE role = {role!r}
        UNION ALL SELECT path, about FROM asked WHERE role = {role!r}"""


def _ask_for_files(rows: Iterator[Row], storage: Storage) -> Iterator[tuple[str | None, str, str | None]]:
    located = Located(storage)

    def ask(row: Row) -> tuple[str | None, str, str | None]:
        path = row["path"]
        size = row["size"]
        there = ask_for_file(path, located, lambda store, inside: store.info(inside).size)
        what = f"its file {uri_of(storage.root, path)}"
        if isinstance(there, Lost):
            return there.role, path, f"{what} {there.why}"
        if size is not None and there != size:
            return UNREADABLE, path, f"{what} has {there} bytes, and the manifest says {size}"
        return None, path, None

    while some := list(islice(rows, READ_AHEAD)):
        yield from storage.map(some, ask)


def _add_findings(
    engine: Engine,
    walked: Walk,
    tables: TableWalk,
    asked: Rows,
    found: Found,
) -> None:
    """Add what is missing or damaged, each with a table that needs it and its versions; as many as are kept."""
    definitions = keep_counted(engine, "names of definitions", _DEFINITIONS, "path, first, last", walked=walked.levels)
    wrong = f"""SELECT f.label, '' AS metadata, f.parent AS definition, f.parent AS path, f.about, f.role,
        d.first, d.last
        FROM found f JOIN definitions d ON d.path = f.parent WHERE f.role IN ({DOUBT!r}, {ASTRAY!r}) AND f.path = ''"""
    query = f"""SELECT path, about, {UNREADABLE!r} AS role, path AS named FROM ({_either(UNREADABLE)} {OF_OUTSIDE}) l
        UNION ALL SELECT path, about, {UNSEEN!r} AS role, '' AS named FROM ({_either(UNSEEN)}) u"""
    lost = tables.keep_asked("files that cannot be read", query, "path, about, role, named", asked=asked)
    needed = {}
    if lost.count():
        wrong = f"{wrong} UNION ALL {_NEEDED}"
        needed = {"owners": tables.owners(lost), "lost": lost}
    findings = tables.keep_asked("findings", wrong, _FINDING, definitions=definitions, **needed)
    query = f"SELECT * FROM findings ORDER BY definition, path LIMIT {found.room()}"
    rows = list_counted(engine, "findings", query, _FINDING, findings=findings)
    rows.sort(key=itemgetter("definition", "path"))
    names = _names(walked.storage, rows)
    for row in rows:
        table = names.get(row["definition"], row["label"])
        if row["role"] == UNSEEN:
            found.add(finding_of_unseen(row["path"], f"table {table!r}: {row['about']}"), row["first"], row["last"])
            continue
        missing_metadata = row["path"] == row["metadata"]
        if missing_metadata:
            invariant = "I19"
            file = row["definition"]
        else:
            invariant = "I20"
            file = row["path"]
        what = violation(invariant, file, f"table {table!r}: {row['about']}")
        found.add(what, row["first"], row["last"])
    found.count_more(findings.count() - len(rows))


def _add_pairs(
    engine: Engine,
    walked: Walk,
    tables: TableWalk,
    found: Found,
) -> None:
    """Add tables of one version that have one UUID or one directory, or of which one is in that of another (I22).

    Only where definitions of several names have it in one version, as those of a renamed table seem to while a message
    waits, is that version listed.
    """
    query = f"""SELECT c.about AS mark, m.label, m.parent AS definition, {CLAIM!r} AS part
        FROM found c JOIN found m ON m.path = c.parent
        WHERE c.role = {CLAIM!r} AND m.role = {METADATA!r} AND c.about <> ''
        UNION ALL SELECT path AS mark, label, parent AS definition, about AS part FROM found WHERE role = {GROUND!r}"""
    marks = tables.keep_asked("marks of tables", query, "mark, label, definition, part")
    query = f"""SELECT mark FROM marks GROUP BY mark
        HAVING min(label) <> max(label) AND max(CASE WHEN part = {BELOW!r} THEN 0 ELSE 1 END) = 1"""
    shared = keep_counted(engine, "marks of several tables", query, "mark", marks=marks)
    if not shared.count():
        return
    definitions = keep_counted(engine, "names of definitions", _DEFINITIONS, "path, first, last", walked=walked.levels)
    query = """SELECT k.mark, k.label, k.definition, k.part, d.first, d.last
        FROM marks k JOIN shared s ON s.mark = k.mark JOIN definitions d ON d.path = k.definition"""
    named = {"marks": marks, "shared": shared, "definitions": definitions}
    rows = list_counted(
        engine,
        "tables of one mark",
        query,
        "mark, label, definition, part, first, last",
        **named,
    )
    paths: set[str] = set()
    by_mark: dict[str, set[str]] = {}
    holders: dict[str, set[str]] = {}
    for row in rows:
        mark = row["mark"]
        path = row["definition"]
        paths.add(path)
        by_mark.setdefault(mark, set()).add(path)
        if row["part"] != BELOW:
            holders.setdefault(mark, set()).add(path)
    names_at: dict[int, dict[str, str]] = {}
    for mark, version in sorted(_meetings(rows)):
        if version not in names_at:
            names_at[version] = _names_at(walked.storage, version, paths)
        names = names_at[version]
        definitions_of_mark = sorted(by_mark[mark])
        here: set[str] = set()
        for path in definitions_of_mark:
            if path in names:
                here.add(repr(names[path]))
        is_held = not holders[mark].isdisjoint(names)
        if is_held and len(here) > 1:
            several = " and ".join(sorted(here))
            what = f"tables {several} have one UUID or directory, or one lies in that of another: {mark}"
            finding = violation("I22", definitions_of_mark[0], what)
            found.add(finding, version, version)


def _meetings(rows: Sequence[Row]) -> set[tuple[str, int]]:
    """Return the last version in which each two names may have a mark, as far as there is one."""
    spans: dict[str, dict[str, _Span]] = {}
    newest = 0
    for row in rows:
        mark = row["mark"]
        label = row["label"]
        span = _Span(row["first"], row["last"])
        of_mark = spans.setdefault(mark, {})
        known = of_mark.get(label, span)
        of_mark[label] = span.joined_with(known)
        if span.last < FOREVER:
            newest = max(newest, span.last)
    found: set[tuple[str, int]] = set()
    for mark, of_mark in spans.items():
        for one, other in combinations(of_mark.values(), 2):
            first = max(one.first, other.first)
            last = min(one.last, other.last, newest)
            if first <= last:
                meeting = (mark, last)
                found.add(meeting)
    return found


class _Span(NamedTuple):
    """The first and the last version that are known to name a table."""

    first: int
    last: int

    def joined_with(self, other: _Span) -> _Span:
        """Return the span from the beginning of the one to the end of the other."""
        first = min(self.first, other.first)
        last = max(self.last, other.last)
        return _Span(first, last)


def _names_at(storage: Storage, version: int, paths: AbstractSet[str]) -> dict[str, str]:
    """Return the names of those tables of a version that have some definitions; none where it cannot be read."""
    names: dict[str, str] = {}
    with suppress(TrinityLakeError):  # a damaged tree is a finding of its own
        lake = Lakehouse.open(storage).at(version=version)
        for each in lake.objects(kind=TABLE):
            if each.path in paths:
                names[each.path] = f"{each.namespace}.{each.name}"
    return names


def _names(storage: Storage, rows: Sequence[Row]) -> dict[str, str]:
    """Return the names of tables by their definitions, as far as the first version of each can be read."""
    names: dict[str, str] = {}
    first_versions = {row["definition"]: row["first"] for row in rows}
    versions = {version for version in first_versions.values() if version < FOREVER}
    for version in sorted(versions):
        names |= _names_at(storage, version, first_versions.keys())
    return names
