"""One table whose files are gone, damaged or not what they should be: each job names it, and does the sound one.

What metadata files may be that no writer makes: tests/hostile.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import fastavro
import pytest

from pipelines import backup, compaction, export, tables_clean, tables_expire, tables_health, verify
from tests.support.icebergs import ids, new_iceberg, opened, rows, with_table
from tests.support.lakes import FAST
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog

BAD: Final = "sales.bad"
GOOD: Final = "sales.good"
SECRET: Final = "SECRET"
HISTORY: Final = export.Config(engine="local", tables=True, history=True)
EVERYTHING: Final = verify.Config("all", engine="local", tables=1.0, deep=True)
METADATA, LIST, MANIFEST, DATA = "*.metadata.json", "snap-*.avro", "*-m0.avro", "*.parquet"


class Kept(NamedTuple):
    """The place of a lakehouse that each test gets as it was made, its copy, and an export from before any damage."""

    place: Path
    copy: Path
    exported: Path


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Two tables with two snapshots and an abandoned append each; no message waits."""
    directory = tmp_path_factory.mktemp("damaged")
    catalog = new_iceberg(directory / "place")
    for name in (BAD, GOOD):
        with_table(catalog, name, 1).append(rows(2))
        catalog.load_table(name).transaction().append(rows(3))
    compaction.run(catalog.lakehouse, compaction.Config(engine="local"))
    shutil.copytree(directory / "place", directory / "copy")
    export.run(catalog.lakehouse, (directory / "exported").as_uri(), HISTORY, storage_options=FAST)
    return Kept(directory / "place", directory / "copy", directory / "exported")


@pytest.fixture
def catalog(kept: Kept) -> Iterator[TrinityLakeCatalog]:
    """The lakehouse at the place that its metadata name, as it was made."""
    shutil.rmtree(kept.place)
    shutil.copytree(kept.copy, kept.place)
    time.sleep(0.02)  # longer than a tick of the file system's clock
    return opened((kept.place / "lake").as_uri())


def paths_below(root: Path, name: str) -> set[str]:
    """Return the files of a table, by their paths below the root."""
    return {str(each.relative_to(root)) for each in root.glob(f"tables/sales/{name}-*/*/*")}


# -- what may be done to a file --------------------------------------------------------------------------------


def cut_in_half(path: Path) -> None:
    """Leave the first half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_the_end(path: Path) -> None:
    """Leave out three bytes."""
    path.write_bytes(path.read_bytes()[:-3])


def cut_behind_the_header(path: Path) -> None:
    """Leave a sound Avro file without rows."""
    data = path.read_bytes()
    sync = data[-16:]
    path.write_bytes(data[: data.index(sync) + len(sync)])


def cut_where_a_block_ends(path: Path) -> None:
    """Leave one of two manifests to the list of the second snapshot: a sound Avro file."""
    _, second, _ = sorted(path.parent.glob(LIST), key=lambda each: each.stat().st_mtime_ns)
    with second.open("rb") as file:
        listed = fastavro.reader(file)
        first, _ = listed
    with second.open("wb") as file:
        fastavro.writer(file, listed.writer_schema, [first], metadata=listed.metadata)


def garble(path: Path) -> None:
    """Write what begins like an Avro file."""
    path.write_bytes(b"Obj\x01" + SECRET.encode() + b"\xff" * 400)


def make_pipe(path: Path) -> None:
    """Put a pipe in its place."""
    path.unlink()
    os.mkfifo(path)


def make_directory(path: Path) -> None:
    """Put a directory in its place."""
    path.unlink()
    path.mkdir()


def lead_out(path: Path) -> None:
    """Put a link in its place that leads out of the lakehouse."""
    outside = path.parents[5] / "outside"
    outside.write_text(SECRET)
    path.unlink()
    path.symlink_to(outside)


Damage = Callable[[Path], None]
DAMAGES: Final[dict[str, tuple[str, Damage, str]]] = {
    "old metadata that are gone": (METADATA, Path.unlink, "its metadata file {uri} is missing"),
    "old metadata that are cut": (METADATA, cut_in_half, "its metadata file {uri} cannot be read"),
    "a list that is gone": (LIST, Path.unlink, "its manifest list {uri} is missing"),
    "a list that is cut": (LIST, cut_in_half, "its manifest list {uri} cannot be read"),
    "a list that is no Avro file": (LIST, garble, "its manifest list {uri} cannot be read"),
    "a list that was cut behind its header": (LIST, cut_behind_the_header, "its manifest list {uri} "),
    "a list that was cut where a block ends": (LIST, cut_where_a_block_ends, "its manifest list "),
    "a pipe as a list": (LIST, make_pipe, "its manifest list {uri} "),
    "a directory as a list": (LIST, make_directory, "its manifest list {uri} "),
    "a link as a list": (LIST, lead_out, "its manifest list {uri} "),
    "a manifest that is gone": (MANIFEST, Path.unlink, "its manifest {uri} is missing"),
    "a manifest that is cut": (MANIFEST, cut_in_half, "its manifest {uri} cannot be read"),
    "a manifest that ends early": (MANIFEST, cut_the_end, "its manifest {uri} "),
    "a manifest that was cut behind its header": (MANIFEST, cut_behind_the_header, "its manifest {uri} "),
    "a manifest of nothing": (MANIFEST, garble, "its manifest {uri} cannot be read"),
    "a pipe as a manifest": (MANIFEST, make_pipe, "its manifest {uri} "),
    "data that are gone": (DATA, Path.unlink, "its file {uri} is missing"),
    "data that are cut": (DATA, cut_in_half, "and the manifest says"),
    "a pipe as data": (DATA, make_pipe, "its file {uri} "),
    "a directory as data": (DATA, make_directory, "its file {uri} "),
    "a link as data": (DATA, lead_out, "its file {uri} "),
}
"""What becomes of the oldest file of a kind, and what a verification says of it."""


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_one_tables_fault(name: str, catalog: TrinityLakeCatalog, kept: Kept, tmp_path: Path) -> None:
    pattern, damage, said = DAMAGES[name]
    lake, root = catalog.lakehouse, kept.place / "lake"
    path = min(root.glob(f"tables/sales/bad-*/*/{pattern}"), key=lambda each: each.stat().st_mtime_ns)
    damage(path)
    told = [
        *_health_and_expiration_name_it(lake, reads_it=pattern in {LIST, MANIFEST}),
        _verification_names_it(lake, pattern, said.format(uri=path.as_uri())),
        *_a_copy_lacks_it(catalog, kept, tmp_path, pattern),
        *_a_cleaning_deletes_nothing_of_it(lake, root, pattern),
    ]
    assert not [each for each in told if SECRET in each]
    assert [1, 2] == ids(catalog.load_table(GOOD))


def _health_and_expiration_name_it(lake: Lakehouse, *, reads_it: bool) -> list[str]:
    health = tables_health.run(lake)
    assert GOOD in {each.table for each in health.tables}
    assert ([BAD] if reads_it else []) == [*health.failures]
    expired = tables_expire.run(lake, tables_expire.Config(older_than_seconds=0), review=lambda _: False)
    assert GOOD in {each.table for each in expired.expired}
    assert {*expired.failures} <= {BAD}
    return [*health.failures.values(), *expired.failures.values()]


def _verification_names_it(lake: Lakehouse, pattern: str, said: str) -> str:
    """With the table, the versions that need it, and what to do."""
    (found,) = verify.run(lake.storage, EVERYTHING).findings
    assert ("I19" if pattern == METADATA else "I20") == found.invariant
    assert found.message.startswith(f"table '{BAD}': ")
    assert said in found.message
    assert "roll back" in found.hint or "restore" in found.hint
    assert (found.first_version or 0) < (found.last_version or 0)
    assert (pattern != METADATA) == (lake.version == found.last_version), "the newest version has other metadata"
    return found.message


def _a_copy_lacks_it(catalog: TrinityLakeCatalog, kept: Kept, directory: Path, pattern: str) -> Iterator[str]:
    """Of one that was made before no good file is lost."""
    new, old = directory / "new", directory / "old"
    made = export.run(catalog.lakehouse, new.as_uri(), HISTORY, storage_options=FAST)
    assert ["sales-bad"] == [*made.plan.tables_lacking]
    assert any("the copy lacks files of 1 table" in line for line in made.summary())
    assert [1, 2] == ids(opened(new.as_uri()).load_table(GOOD))
    assert SECRET not in "".join(each.read_text("latin-1") for each in new.glob("tables/sales/bad-*/*/*"))
    proved = backup.run(catalog.lakehouse, new.as_uri(), backup.Config(engine="local", tables=True))
    assert not proved.ok
    shutil.copytree(kept.exported, old)
    whole = paths_below(old, "*")
    again = export.run(catalog.lakehouse, old.as_uri(), HISTORY, storage_options=FAST)
    assert (pattern != DATA) == bool(again.plan.tables_lacking), "of data the copy has the good file"
    assert whole == paths_below(old, "*")
    yield from [*made.summary(), *made.plan.tables_lacking.values(), *proved.problems]


def _a_cleaning_deletes_nothing_of_it(lake: Lakehouse, root: Path, pattern: str) -> Iterator[str]:
    """Nor of any other table, unless its owner vouches that it names no file but its own. Data are not read."""
    everything = tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True)
    before = paths_below(root, "bad"), paths_below(root, "good")
    if pattern != DATA:
        stopped = tables_clean.run(lake, everything)
        (directory,) = {each.directory for each in stopped.doubts}
        assert {True} == {each.stops_all for each in stopped.doubts}
        assert before == (paths_below(root, "bad"), paths_below(root, "good"))
        assert {"roll back or restore", "nothing at all was deleted"} <= set(_sayings(stopped))
        yield from (each.reason for each in stopped.doubts)
        apart = tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True, apart=(directory,))
        done = tables_clean.run(lake.refresh(), apart)
        assert (3, {False}) == (done.deleted, {each.stops_all for each in done.doubts})
        assert before[0] == paths_below(root, "bad")
    else:
        done = tables_clean.run(lake, everything)
        assert (6, ()) == (done.deleted, done.doubts)
    assert before[1] > paths_below(root, "good")
    yield from done.summary()


def _sayings(report: tables_clean.Report) -> Iterator[str]:
    text = "\n".join(report.summary())
    yield from (each for each in ("roll back or restore", "nothing at all was deleted") if each in text)
