"""Maintenance is nobody's deputy: what a job opens for a table lies in the places of that table.

A writer of one table may put any text into its manifests, and has maintenance, which may read everything, open what it
names. So what was opened counts here, and not what a job says of itself.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from pyiceberg.exceptions import ForbiddenError, ValidationError
from pyiceberg.table import Table

from pipelines import expire, export, tables_clean, tables_compact, tables_expire, tables_health, verify
from pipelines.session import SessionConfig, get_session
from pipelines.session.iceberg import TESTED
from pipelines.tables.compact import model
from pipelines.tables.compact.decision import GroupRules
from tests.hostile.lakehouse import with_fields
from tests.support.icebergs import SCHEMA, ids, new_iceberg, opened, rows, with_table
from tests.support.lakes import FAST
from tests.support.opened_files import watched
from tests.support.respelled import local, respell_data, respell_lists, respell_manifests, rewrite_avro
from tests.support.writers import pool
from trinitylake_core import Lakehouse
from trinitylake_core.errors import InvalidInput, TrinityLakeError
from trinitylake_core.iceberg import ALLOWED_LOCATIONS, TrinityLakeCatalog
from trinitylake_core.iceberg.reading.snapshot_files import SnapshotReader
from trinitylake_core.iceberg.registration import register_all
from trinitylake_core.iceberg.rights.locations import Locations
from trinitylake_core.storage import open_storage
from trinitylake_core.table_index import Grounds
from trinitylake_core.table_places import Located, TablePlaces

_MINE: Final = "a.mine"
_THEIRS: Final = "hr.theirs"
_RULES: Final = GroupRules(min_files=2)
_CLEANING: Final = tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True)
_SECONDS: Final = 500
_OUTSIDE: Final = "lies outside the places of its table"


@dataclass(frozen=True)
class _Lake:
    """A lakehouse with a table whose manifest names a file that is not its own.

    ``place`` is the URI that the manifest has, ``target`` the file that is there; ``None``: it is no file of this test.
    """

    catalog: TrinityLakeCatalog
    place: str
    target: Path | None

    @property
    def lake(self) -> Lakehouse:
        return self.catalog.lakehouse.refresh()


def _secret(catalog: TrinityLakeCatalog) -> Path:
    """Return the data file of another table, with rows that only its readers may see."""
    return local(str(catalog.load_table(_THEIRS).inspect.files()["file_path"][0]))


def _beside(directory: Path, content: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "private.parquet"
    shutil.copy(content, file)
    file.chmod(0o600)
    return file


def _pipe(mine: Path) -> Path:
    file = mine / "data" / "pipe.parquet"
    os.mkfifo(file)
    return file


def _link(mine: Path, secret: Path) -> Path:
    file = mine / "data" / "link.parquet"
    file.symlink_to(os.path.relpath(secret, file.parent))
    return file


def _link_of_a_directory(mine: Path, secret: Path) -> Path:
    file = mine / "linked"
    file.symlink_to(os.path.relpath(secret.parent, file.parent))
    return file / secret.name


_PLACES: Final[dict[str, Callable[[Path, Path, Path], Path | str]]] = {
    "another table": lambda mine, secret, tmp: secret,
    "above its directory": lambda mine, secret, tmp: _beside(mine.parent, secret),
    "a directory of a similar name": lambda mine, secret, tmp: _beside(Path(f"{mine}-more"), secret),
    "the root": lambda mine, secret, tmp: _beside(mine.parents[2], secret),
    "outside the root": lambda mine, secret, tmp: _beside(tmp / "outside", secret),
    "a way around": lambda mine, secret, tmp: f"file://{mine}/../../{'/'.join(secret.parts[-4:])}",
    "a link": lambda mine, secret, tmp: _link(mine, secret),
    "a link of a directory": lambda mine, secret, tmp: _link_of_a_directory(mine, secret),
    "a pipe": lambda mine, secret, tmp: _pipe(mine),
    "/etc": lambda *_: "file:///etc/passwd",
    "/proc": lambda *_: "/proc/self/environ",
    "another bucket": lambda *_: "s3://another-bucket/private.parquet",
}


def _hostile(tmp_path: Path, name: str, respell: Callable[..., None] = respell_data) -> _Lake:
    """Return a lakehouse in which the first file of one table is somewhere else."""
    catalog = new_iceberg(tmp_path)
    with_table(catalog, _THEIRS, 1)
    place, target = _name_a_place(catalog, _MINE, tmp_path, name, respell)
    return _Lake(catalog, place, target)


def _name_a_place(
    catalog: TrinityLakeCatalog, table: str, tmp_path: Path, name: str, respell: Callable[..., None] = respell_data
) -> tuple[str, Path | None]:
    """Make a table whose first file is somewhere else; return the URI of that, and the file if it is one of ours."""
    mine = with_table(catalog, table, 1)
    mine.append(rows(2))
    (first, *_) = sorted(str(each) for each in mine.inspect.files()["file_path"].to_pylist())
    secret = _secret(catalog)
    assert secret.stat().st_size == local(first).stat().st_size, "what a manifest says of its size fits"
    place = _PLACES[name](local(mine.metadata.location), secret, tmp_path)
    target = None
    if isinstance(place, Path):
        target = place if name == "a pipe" else place.resolve()
        place = f"file://{place}"
    elif "/.." in place:
        target = secret
    respell(mine, lambda uri: place if respell is not respell_data or uri == first else uri)
    return place, target


@pytest.mark.parametrize("name", _PLACES)
def test_no_job_opens_a_data_file_of_another_place(name: str, tmp_path: Path) -> None:
    hostile = _hostile(tmp_path, name)
    is_inside = "link" in name or "pipe" in name  # by its name: the disk finds out
    with_table(hostile.catalog, "a.other", 1).append(rows(2))
    with watched([] if hostile.target is None else [hostile.target]) as opened:
        how = tables_compact.Config(pattern="a.*", engine="local", rules=_RULES)
        report = tables_compact.run(hostile.lake, how)
        health = tables_health.run(hostile.lake, tables_health.Config(engine="local"))
        expired = tables_expire.run(hostile.lake, tables_expire.Config(pattern="hr.*"))
        deep = verify.run(hostile.lake, verify.Config(tables=1.0, deep=True, versions="all", engine="local"))
        cleaned = tables_clean.run(hostile.lake, _CLEANING)
        location = hostile.catalog.metadata_location(_MINE)
        reader = SnapshotReader(Located(hostile.lake.storage), location)
        with pytest.raises(TrinityLakeError):  # what is asked before Spark, which would follow and wait
            reader.refuse_odd_files(reader.current or 0)
    assert opened in ([], [hostile.target] if name == "a pipe" else []), "a pipe is not read, and not waited for"
    assert [_MINE] == list(report.failures)
    reason = report.failures[_MINE]
    named = ("leads out", "a pipe") if is_inside else (_OUTSIDE, "segment")
    assert any(words in reason for words in named), reason
    assert (1, 1) == (report.versions, report.files_made), "the other table is done"
    if name != "a way around":  # which no job follows, whatever it does with files
        assert ({}, {}, ()) == (health.failures, expired.failures, cleaned.doubts)
    assert not deep.ok
    assert all("'a.mine'" in each.message for each in deep.findings), deep.findings
    assert [1] == ids(hostile.catalog.load_table(_THEIRS))


@pytest.mark.parametrize("place", ["warehouse", "location"])
def test_no_link_leads_out_of_an_own_directory_below_the_root_wherever_it_lies(place: str, tmp_path: Path) -> None:
    """Outside ``tables/`` too: that of ``--tables`` below the root, and that of a location below it."""
    root = (tmp_path / "lake").as_uri()
    more = {"warehouse": f"{root}/wh"} if place == "warehouse" else {}
    catalog = new_iceberg(tmp_path, **more)
    for name in (_THEIRS, _MINE):
        where = {} if more else {"location": f"{root}/other/{name}"}
        with_table(catalog, name, 1, **where)
    mine = catalog.load_table(_MINE)
    mine.append(rows(2))
    mine.append(rows(3))
    secret = _secret(catalog)
    sound = min(str(each) for each in mine.inspect.files()["file_path"].to_pylist())
    inner = local(sound).with_name("inner.parquet")
    inner.symlink_to(local(sound).name)
    respell_data(mine, lambda uri: inner.as_uri() if uri == sound else uri)
    lake = catalog.lakehouse.refresh()
    how = tables_compact.Config(pattern="a.*", engine="local", rules=_RULES)
    assert {} == tables_compact.run(lake, how).failures
    assert [1, 2, 3] == ids(catalog.load_table(_MINE))
    for number in (4, 5):
        mine = catalog.load_table(_MINE)
        mine.append(rows(number))
    first = min(str(each) for each in mine.inspect.files()["file_path"].to_pylist())
    lake = catalog.lakehouse.refresh()
    link = _link(local(mine.metadata.location), secret)
    respell_data(mine, lambda uri: link.as_uri() if uri == first else uri)
    with watched([secret]) as opened:
        report = tables_compact.run(lake, how)
        verify.run(lake, verify.Config(tables=1.0, deep=True, engine="local"))
    assert [] == opened
    assert [_MINE] == list(report.failures)
    assert "leads out" in report.failures[_MINE]


@pytest.mark.parametrize("respell", [respell_manifests, respell_lists])
@pytest.mark.parametrize("name", ["another table", "above its directory", "outside the root", "a link", "/etc"])
def test_no_job_opens_a_manifest_or_a_list_of_another_place(
    name: str, respell: Callable[..., None], tmp_path: Path
) -> None:
    """Nobody knows what is in it, so it may name any file: then nothing is deleted."""
    hostile = _hostile(tmp_path, name, respell)
    with_table(hostile.catalog, "a.other", 1).append(rows(2))
    orphan = local(hostile.catalog.load_table("a.other").metadata.location) / "data" / "orphan.parquet"
    shutil.copy(_secret(hostile.catalog), orphan)
    with watched([] if hostile.target is None else [hostile.target]) as opened:
        how = tables_compact.Config(pattern="a.*", engine="local", rules=_RULES)
        failures = {**tables_compact.run(hostile.lake, how).failures}
        health = tables_health.run(hostile.lake, tables_health.Config(engine="local"))
        deep = verify.run(hostile.lake, verify.Config(tables=1.0, deep=True, engine="local"))
        cleaned = tables_clean.run(hostile.lake, _CLEANING)
    assert [] == opened
    how = export.Config(engine="local", tables=True, history=True)
    with watched([] if hostile.target in {None, _secret(hostile.catalog)} else [hostile.target]) as opened:
        copied = export.run(hostile.lake, (tmp_path / "copy").as_uri(), how)
    assert [] == opened
    assert [_MINE] == list(failures) == list(health.failures)
    assert not deep.ok
    assert (0, True) == (cleaned.deleted, all(each.stops_all for each in cleaned.doubts))
    assert {"a-mine"} == {each.table for each in cleaned.doubts} == set(copied.plan.tables_lacking)
    assert orphan.exists()


def _name_statistics(mine: Table, secret: Path, field: str) -> None:
    entry = {"snapshot-id": mine.metadata.current_snapshot_id, "statistics-path": secret.as_uri()}
    entry |= {"file-size-in-bytes": secret.stat().st_size, "file-footer-size-in-bytes": 8, "blob-metadata": []}
    with_fields({field: [entry]})(local(mine.metadata_location))


def _name_old_metadata(mine: Table, secret: Path) -> None:
    log = [{"metadata-file": secret.as_uri(), "timestamp-ms": 1}]
    with_fields({"metadata-log": log})(local(mine.metadata_location))


def _name_deletes(mine: Table, secret: Path) -> None:
    """Make the first manifest of the newest snapshot name a delete file, and the snapshot count one data file less."""

    def change(row: Any) -> None:
        row["data_file"]["file_path"], row["data_file"]["content"] = secret.as_uri(), 1

    snapshot = mine.current_snapshot()
    assert snapshot is not None
    manifest = local(snapshot.manifests(mine.io)[0].manifest_path)
    rewrite_avro(manifest, change)

    def resize(row: Any) -> None:
        if row["manifest_path"] == manifest.as_uri():
            row["manifest_length"], row["content"] = manifest.stat().st_size, 1

    rewrite_avro(local(snapshot.manifest_list), resize)
    file = local(mine.metadata_location)
    document = json.loads(file.read_text())
    document["snapshots"][-1]["summary"]["total-data-files"] = "1"
    file.write_text(json.dumps(document))


def _name_old_list(mine: Table, secret: Path) -> None:
    """Make the oldest snapshot name a manifest list."""
    file = local(mine.metadata_location)
    document = json.loads(file.read_text())
    document["snapshots"][0]["manifest-list"] = secret.as_uri()
    file.write_text(json.dumps(document))


def _name_old_manifest(mine: Table, secret: Path) -> None:
    """Make the manifest list of the oldest snapshot name a manifest."""

    def change(row: Any) -> None:
        row["manifest_path"], row["manifest_length"] = secret.as_uri(), secret.stat().st_size

    rewrite_avro(local(mine.metadata.snapshots[0].manifest_list), change)


_NEIGHBOURS: Final[dict[str, Callable[[Table, Path], None]]] = {
    "statistics": lambda mine, secret: _name_statistics(mine, secret, "statistics"),
    "statistics of partitions": lambda mine, secret: _name_statistics(mine, secret, "partition-statistics"),
    "old metadata": _name_old_metadata,
    "deletes": _name_deletes,
    "an old manifest list": _name_old_list,
    "an old manifest": _name_old_manifest,
}


@pytest.mark.parametrize("what", _NEIGHBOURS)
def test_no_job_opens_statistics_deletes_or_old_metadata_of_another_place(what: str, tmp_path: Path) -> None:
    """Statistics are Puffin files. What is told of the file differs, and that nobody opens it does not."""
    catalog = new_iceberg(tmp_path)
    theirs = with_table(catalog, _THEIRS, 1)
    mine = with_table(catalog, _MINE, 1)
    mine.append(rows(2))
    secret = local(theirs.metadata_location) if what == "old metadata" else _secret(catalog)
    private = tmp_path / "private" / secret.name
    private.parent.mkdir()
    shutil.copy(secret, private)
    _NEIGHBOURS[what](mine, private)
    lake = catalog.lakehouse.refresh()
    other = Lakehouse.create((tmp_path / "other").as_uri(), storage_options=FAST)
    with watched([private]) as opened:
        tables_compact.run(lake, tables_compact.Config(pattern="a.*", engine="local", rules=_RULES))
        tables_health.run(lake, tables_health.Config(engine="local"))
        tables_expire.run(lake, tables_expire.Config(pattern="a.*", older_than_seconds=0))
        verify.run(lake, verify.Config(tables=1.0, deep=True, versions="all", engine="local"))
        cleaned = tables_clean.run(lake, _CLEANING)
        export.run(lake, (tmp_path / "copy").as_uri(), export.Config(engine="local", tables=True, history=True))
        register_all(other, catalog)
    assert [] == opened
    assert private.exists()
    assert any(each.stops_all for each in cleaned.doubts) == ("manifest" in what), "what may name any file"


@pytest.mark.parametrize("what", _NEIGHBOURS)
def test_no_job_deletes_a_file_of_another_table(what: str, tmp_path: Path) -> None:
    """Which a table names as its own: neither when its snapshots expire, nor when it is dropped and cleaned."""
    catalog = new_iceberg(tmp_path)
    theirs = with_table(catalog, _THEIRS, 1)
    enabled = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    mine = with_table(catalog, _MINE, 1, properties=enabled)
    mine.append(rows(2))
    secret = _secret(catalog)
    named = {
        "old metadata": local(theirs.metadata_location),
        "an old manifest list": local(theirs.metadata.snapshots[0].manifest_list),
        "an old manifest": local(theirs.metadata.snapshots[0].manifests(theirs.io)[0].manifest_path),
    }
    _NEIGHBOURS[what](mine, named.get(what, secret))
    before = {each for each in _area_of(theirs).rglob("*") if each.is_file()}
    how = tables_expire.Config(pattern="a.*", older_than_seconds=0)
    for table in (catalog, opened(catalog.lakehouse.root)):
        tables_expire.run(catalog.lakehouse.refresh(), how)
        tables_clean.run(catalog.lakehouse.refresh(), _CLEANING)
        with suppress(ForbiddenError, ValidationError):
            table.load_table(_MINE).append(rows(3))
    catalog.purge_table(_MINE)
    expire.run(catalog.lakehouse.refresh(), expire.Config(keep_last=1, engine="local", older_than_seconds=0))
    tables_clean.run(catalog.lakehouse.refresh(), _CLEANING)
    assert before <= {each for each in _area_of(theirs).rglob("*") if each.is_file()}
    assert [1] == ids(catalog.load_table(_THEIRS))


def _area_of(table: Table) -> Path:
    return local(table.location())


def test_a_location_that_looks_like_that_of_another_root_leads_to_no_other_table(tmp_path: Path) -> None:
    """As if the table had come here with its lakehouse: each file is then looked for where it lies now."""
    catalog = new_iceberg(tmp_path)
    root, former = (tmp_path / "lake").as_uri(), (tmp_path / "former").as_uri()
    with_table(catalog, _THEIRS, 1)
    mine = with_table(catalog, _MINE, 1)
    mine.append(rows(2))
    secret = _secret(catalog)
    first = min(str(each) for each in mine.inspect.files()["file_path"].to_pylist())
    location = mine.location()
    respell_data(mine, lambda uri: (secret.as_uri() if uri == first else uri).replace(root, former))
    with_fields({"location": location.replace(root, former)})(local(mine.metadata_location))
    lake = catalog.lakehouse.refresh()
    with watched([secret]) as opened:
        how = tables_compact.Config(pattern="a.*", engine="local", rules=_RULES)
        compacted = tables_compact.run(lake, how)
        tables_health.run(lake, tables_health.Config(pattern="a.*", engine="local"))
        deep = verify.run(lake, verify.Config(tables=1.0, deep=True, engine="local"))
        cleaned = tables_clean.run(lake, _CLEANING)
    assert [] == opened
    assert ([_MINE], 0) == (list(compacted.left_alone) + list(compacted.failures), compacted.files_made)
    assert (False, 0) == (deep.ok, cleaned.deleted)
    assert any(_OUTSIDE in each.message for each in deep.findings), deep.findings


@pytest.mark.slow
def test_spark_opens_for_a_table_what_lies_in_its_places(tmp_path: Path) -> None:
    """Iceberg's procedures follow links, wait for pipes, and open whatever a manifest names."""
    catalog = new_iceberg(tmp_path)
    theirs = with_table(catalog, _THEIRS, 1)
    wrong: set[str] = set()
    targets = {_secret(catalog)}
    ways = [(place, respell_data) for place in _PLACES]
    ways += [(place, respell) for place in ("another table", "/etc") for respell in (respell_manifests, respell_lists)]
    for place, respell in ways:
        name = f"a.wrong{len(wrong)}"
        _, target = _name_a_place(catalog, name, tmp_path / name, place, respell)
        wrong.add(name)
        targets |= {target} - {None}
    sound = {"a.sound"}
    with_table(catalog, "a.sound", 1).append(rows(2))
    for number, (what, change) in enumerate(_NEIGHBOURS.items()):
        mine = with_table(catalog, f"a.neighbour{number}", 1)
        mine.append(rows(2))
        private = _beside(tmp_path / what, local(theirs.metadata_location) if "metadata" in what else _secret(catalog))
        change(mine, private)
        targets.add(private)
        (wrong if what == "deletes" else sound).add(f"a.neighbour{number}")
    with watched(targets) as opened, pool(1) as process:  # a Spark with Iceberg has a process of its own
        failures = process.submit(_compact_on_spark, catalog.lakehouse.root).result(_SECONDS)
    assert [] == opened
    assert wrong == set(failures), failures
    lake = TrinityLakeCatalog.over(catalog.lakehouse.refresh())
    for name in sound:
        assert [1, 2] == ids(lake.load_table(name))
        assert 1 == len(lake.load_table(name).inspect.files())


def _compact_on_spark(root: str) -> dict[str, str]:
    lake = Lakehouse.open(root, storage_options=FAST)
    spark = get_session(SessionConfig(master="local[2]", iceberg=TESTED))
    settings = model.Settings(seconds=_SECONDS / 2)
    how = tables_compact.Config(pattern="a.*", engine="spark", rules=_RULES, settings=settings)
    return dict(tables_compact.run(lake, how, spark).failures)


def test_what_the_operator_allows_for_a_table_is_read_for_it_and_for_no_other(tmp_path: Path) -> None:
    hostile = _hostile(tmp_path, "outside the root")
    place = (tmp_path / "outside").as_uri()
    own = local(hostile.catalog.load_table(_MINE).metadata.location).name
    how = tables_compact.Config(pattern="a.*", engine="local", rules=_RULES)
    for allowed, is_done in ((f"tables/a/other={place}", False), (f"tables/hr={place}", False), (f"{place}-not", False),
                             (f"s3://x/y, tables/a/{own} = {place}", True)):  # fmt: skip
        lake = Lakehouse.open(hostile.catalog.lakehouse.root, storage_options={**FAST, "allowed_locations": allowed})
        report = tables_compact.run(lake, how)
        assert is_done == (not report.failures), report.failures
    with pytest.raises(InvalidInput, match="neither PREFIX nor DIRECTORY=PREFIX"):
        TablePlaces.of(open_storage(lake.root, {"allowed_locations": "outside"}), "tables/a/b/metadata/x")


@pytest.mark.parametrize("level", ["data file", "manifest", "link"])
def test_a_prefix_for_all_tables_has_an_owner_for_each_directory(level: str, tmp_path: Path) -> None:
    """The operator allowed the prefix for tables, and not the files of one table for another one."""
    shared = (tmp_path / "shared").as_uri()
    catalog = new_iceberg(tmp_path, **{ALLOWED_LOCATIONS: shared})
    theirs = with_table(catalog, _THEIRS, 1, location=f"{shared}/hr/theirs")
    mine = with_table(catalog, _MINE, 1)
    mine.append(rows(2))
    secret = _secret(catalog)
    snapshot = theirs.current_snapshot()
    assert snapshot is not None
    manifest = local(snapshot.manifests(theirs.io)[0].manifest_path)
    lake = Lakehouse.open(catalog.lakehouse.root, storage_options={**FAST, "allowed_locations": shared})
    if level == "manifest":
        respell_manifests(mine, lambda _: manifest.as_uri())
    else:
        (first, *_) = sorted(str(each) for each in mine.inspect.files()["file_path"].to_pylist())
        named = secret
        if level == "link":
            named = tmp_path / "shared" / "link.parquet"
            named.symlink_to(os.path.relpath(secret, named.parent))
        respell_data(mine, lambda uri: named.as_uri() if uri == first else uri)
    how = tables_compact.Config(pattern="a.*", engine="local", rules=_RULES)
    with watched([secret, manifest]) as opened:
        failures = tables_compact.run(lake, how).failures
        tables_health.run(lake, tables_health.Config(pattern="a.*", engine="local"))
    assert [] == opened
    assert [_MINE] == list(failures)
    assert "or in those of another" in failures[_MINE]
    findings = verify.run(lake, verify.Config(tables=1.0, deep=True, engine="local")).findings
    assert any("or in those of another" in each.message for each in findings)
    loose = tmp_path / "shared" / "loose.parquet"
    shutil.copy(secret, loose)
    if level == "data file":
        respell_data(mine, lambda uri: loose.as_uri() if uri == secret.as_uri() else uri)
        assert {} == tables_compact.run(lake, how).failures, "nobody's, in the prefix"
        respell_data(mine, lambda uri: secret.as_uri() if uri == loose.as_uri() else uri)
        with_own = {**FAST, "allowed_locations": f"{mine.location()}={shared}/hr"}
        lake = Lakehouse.open(catalog.lakehouse.root, storage_options=with_own)
        assert {} == tables_compact.run(lake, how).failures, "allowed for this table"


def test_a_directory_in_a_prefix_for_all_tables_stays_with_a_table_that_was_dropped(tmp_path: Path) -> None:
    """Older versions name it, so it may come back; until then nobody else has its rows."""
    shared = (tmp_path / "shared").as_uri()
    catalog = new_iceberg(tmp_path, **{ALLOWED_LOCATIONS: shared})
    paths = {"write.data.path": f"{shared}/data/theirs"}
    catalog.create_namespace("hr")
    theirs = catalog.create_table(_THEIRS, SCHEMA, f"{shared}/hr/theirs", properties=paths)
    theirs.append(rows(1))
    mine = with_table(catalog, _MINE, 1)
    mine.append(rows(2))
    secret = _secret(catalog)
    (first, *_) = sorted(str(each) for each in mine.inspect.files()["file_path"].to_pylist())
    catalog.rename_table(_THEIRS, "hr.renamed")
    catalog.drop_table("hr.renamed")
    respell_data(mine, lambda uri: secret.as_uri() if uri == first else uri)
    lake = Lakehouse.open(catalog.lakehouse.root, storage_options={**FAST, "allowed_locations": shared})
    how = tables_compact.Config(pattern="a.*", engine="local", rules=_RULES)
    with watched([secret]) as opened:
        failures = tables_compact.run(lake, how).failures
    assert [] == opened
    assert [_MINE] == list(failures)
    assert "or in those of another" in failures[_MINE]
    respell_data(mine, lambda uri: first if uri == secret.as_uri() else uri)
    deep = verify.Config(tables=1.0, deep=True, versions="all", engine="local")
    assert [] == verify.run(lake, deep).findings, "the versions before the drop have files of their own"


@pytest.mark.parametrize("place", ["allowed", "elsewhere", "lake/other"])
def test_no_job_follows_a_link_in_the_place_of_a_directory_of_a_table(place: str, tmp_path: Path) -> None:
    """Whoever may write above it may have put it there; a link above what the operator allowed is the operator's."""
    prefix = (tmp_path / place).as_uri()
    catalog = new_iceberg(tmp_path, **{ALLOWED_LOCATIONS: prefix})
    mine = with_table(catalog, _MINE, 1, location=f"{prefix}/a/mine")
    mine.append(rows(2))
    there = local(mine.location())
    target = tmp_path / "secret" / "mine"
    shutil.copytree(there, target)
    there.rename(there.with_name("before"))
    there.symlink_to(target)
    options = {**FAST, "allowed_locations": prefix} if place == "allowed" else FAST
    lake = Lakehouse.open(catalog.lakehouse.root, storage_options=options)
    how = tables_compact.Config(pattern="a.*", engine="local", rules=_RULES)
    with watched([each for each in target.rglob("*") if each.is_file()]) as opened:
        failures = tables_compact.run(lake, how).failures
        health = tables_health.run(lake, tables_health.Config(engine="local"))
        deep = verify.run(lake, verify.Config(tables=1.0, deep=True, engine="local"))
        cleaned = tables_clean.run(lake, _CLEANING)
    assert [] == opened
    assert [_MINE] == list(health.failures)
    assert "is a link" in health.failures[_MINE]
    assert [_MINE] == list(failures) or place != "lake/other", "a table outside the root is not compacted at all"
    assert (False, 0) == (deep.ok, cleaned.deleted)


def test_a_process_reads_once_whose_ground_is_whose_and_then_what_is_new(tmp_path: Path) -> None:
    """Each task of a job has a storage of its own; a long job meets tables that came after its start."""
    shared = (tmp_path / "shared").as_uri()
    catalog = new_iceberg(tmp_path, **{ALLOWED_LOCATIONS: shared})
    with_table(catalog, _THEIRS, 1, location=f"{shared}/hr/theirs")
    options = {**FAST, "allowed_locations": shared}
    storage = Lakehouse.open(catalog.lakehouse.root, storage_options=options).storage
    storages = [pickle.loads(pickle.dumps(storage)) for _ in range(3)]
    for each in storages:
        places = TablePlaces.of(each, f"{shared}/a/mine/metadata/x.json")
        assert places.prefix_of(f"{shared}/hr/theirs/data/x.parquet") is None
    first, *others = [each.counts.requests() for each in storages]
    assert (True, [0, 0]) == (first > 0, others)
    grounds = Grounds(storage, new_for_seconds=0.0)
    for made in (False, True):
        if made:
            with_table(catalog, "hr.later", 1, location=f"{shared}/hr/later")
        before = storage.counts.requests()
        assert made == grounds.are_others(f"{shared}/hr/later/data/x.parquet", "")
        asked = storage.counts.requests() - before
    assert 20 >= asked, "what came since"


def test_a_damaged_version_is_named_where_a_file_may_be_anybodys(tmp_path: Path) -> None:
    shared = (tmp_path / "shared").as_uri()
    catalog = new_iceberg(tmp_path, **{ALLOWED_LOCATIONS: shared})
    catalog.create_namespace("a")
    paths = {"write.data.path": f"{shared}/data/mine"}
    mine = catalog.create_table(_MINE, SCHEMA, properties=paths)
    for number in (1, 2):
        mine.append(rows(number))
    lake = Lakehouse.open(catalog.lakehouse.root, storage_options={**FAST, "allowed_locations": shared})
    local(lake.root + lake.backend.versions.path(lake.version - 1)).write_bytes(b"damaged")
    how = tables_compact.Config(pattern="a.*", engine="local", rules=_RULES)
    (first, *_) = sorted(str(each) for each in mine.inspect.files()["file_path"].to_pylist())
    loose = tmp_path / "shared" / "loose.parquet"
    shutil.copy(local(first), loose)
    respell_data(mine, lambda uri: loose.as_uri() if uri == first else uri)
    with watched([loose]) as opened:
        failures = tables_compact.run(lake, how).failures
        findings = verify.run(lake, verify.Config(tables=1.0, deep=True, engine="local")).findings
    assert [] == opened
    why = f"{loose.as_uri()} was not opened: version {lake.version - 1} cannot be read"
    assert why in failures[_MINE]
    assert any(why in each.message for each in findings)
    respell_data(mine, lambda uri: first if uri == loose.as_uri() else uri)
    assert {} == tables_compact.run(lake, how).failures, "its own data path"


@pytest.mark.parametrize("where", ["metadata", ""])
def test_a_table_right_below_the_area_is_named_and_the_others_are_cleaned(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Release 0.1.0 let it lie there, where a namespace of this name has its tables: those are not its own."""
    catalog = new_iceberg(tmp_path)
    monkeypatch.setattr(Locations, "shared_ground", lambda *_: [])
    place = f"{catalog._places.base}tables/hr"
    paths = {"write.metadata.path": f"{place}/{where}".rstrip("/")}
    catalog.create_namespace("a")
    mine = catalog.create_table(_MINE, SCHEMA, place, properties=paths)
    for number in (1, 2):
        mine.append(rows(number))
    with_table(catalog, _THEIRS, 3)
    with_table(catalog, "a.other", 4)
    for name in (_MINE, _THEIRS, "a.other"):
        data = local(str(catalog.load_table(name).inspect.files()["file_path"][0]))
        orphan = data.with_name("orphan.parquet")
        shutil.copy(data, orphan)
        os.utime(orphan, (0, 0))
    lake = catalog.lakehouse.refresh()
    cleaned = tables_clean.run(lake, _CLEANING)
    assert 2 == cleaned.deleted
    assert {"a-mine"} == {each.table for each in cleaned.doubts}
    assert not any(each.stops_all for each in cleaned.doubts)
    assert not list(tmp_path.rglob("*-*/data/orphan.parquet")), "also in the namespace of this name"
    assert [1, 2] == ids(catalog.load_table(_MINE))
    secret = _secret(catalog)
    respell_manifests(mine, lambda _: secret.as_uri())
    with watched([secret]) as opened:
        assert 0 == tables_clean.run(lake, _CLEANING).deleted
        assert [_MINE] == list(tables_health.run(lake, tables_health.Config(engine="local")).failures)
    assert [] == opened


@pytest.mark.parametrize("link", ["file", "metadata", "table"])
def test_no_job_follows_a_link_in_the_way_of_a_table_right_below_the_area(
    link: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory is not its own, since release 0.1.0 let it lie there; the link may be its writer's all the same."""
    catalog = new_iceberg(tmp_path)
    monkeypatch.setattr(Locations, "shared_ground", lambda *_: [])
    catalog.create_namespace("a")
    mine = catalog.create_table(_MINE, SCHEMA, f"{catalog._places.base}tables/old")
    mine.append(rows(2))
    theirs = local(with_table(catalog, _THEIRS, 1).metadata_location)
    newest = local(catalog.load_table(_MINE).metadata_location)
    theirs = shutil.copy(theirs, theirs.with_name(newest.name))  # a link of a directory leads to this one
    level = ["file", "metadata", "table"].index(link)
    linked, target = (newest, *newest.parents)[level], (theirs, *theirs.parents)[level]
    linked.rename(linked.with_name("before"))
    linked.symlink_to(os.path.relpath(target, linked.parent))
    lake = catalog.lakehouse.refresh()
    with watched([theirs]) as opened:
        with pytest.raises(ValidationError, match="link"):
            catalog.load_table(_MINE)
        health = tables_health.run(lake, tables_health.Config(engine="local"))
        expired = tables_expire.run(lake, tables_expire.Config(older_than_seconds=0))
        compacted = tables_compact.run(lake, tables_compact.Config(engine="local", rules=_RULES))
        deep = verify.run(lake, verify.Config(tables=1.0, deep=True, engine="local"))
        cleaned = tables_clean.run(lake, _CLEANING)
    assert [] == opened
    assert [[_MINE]] * 3 == [list(each.failures) for each in (health, expired, compacted)]
    assert (False, 0) == (deep.ok, cleaned.deleted)
