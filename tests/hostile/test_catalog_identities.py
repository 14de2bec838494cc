"""A table keeps its UUID, no other one gets it, and no two tables name one metadata file."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError, ValidationError
from pyiceberg.table.update import AssertCreate, AssignUUIDUpdate, SetPropertiesUpdate

from pipelines import register
from tests.hostile.lakehouse import HOSTILE, NAMESPACE, SOUND, metadata_file, new_lakehouse
from tests.support.icebergs import SCHEMA, ids, opened, rows, with_table
from trinitylake_core.grounds import OWNERS, Identities, NamedDefinition
from trinitylake_core.iceberg import TrinityLakeCatalog

_TAKEN: Final = "has the same UUID, metadata file or directory"


@pytest.fixture
def catalog(tmp_path: Path) -> TrinityLakeCatalog:
    return new_lakehouse(tmp_path)


def _full(name: str) -> str:
    return f"{NAMESPACE}.{name}"


def test_the_uuid_of_a_table_does_not_change(catalog: TrinityLakeCatalog) -> None:
    table = catalog.load_table(_full(HOSTILE))
    version = catalog.lakehouse.version
    for other in (uuid.uuid4(), catalog.load_table(_full(SOUND[0])).metadata.table_uuid):
        with pytest.raises(ValidationError, match="never changes"):
            catalog.commit_table(table, (), (AssignUUIDUpdate(uuid=other),))
    assert version == catalog.lakehouse.version
    same = (AssignUUIDUpdate(uuid=table.metadata.table_uuid), SetPropertiesUpdate(updates={"owner": "me"}))
    catalog.commit_table(table, (), same)
    assert "me" == catalog.load_table(_full(HOSTILE)).properties["owner"]


def _created_with(catalog: TrinityLakeCatalog, name: str, table_uuid: uuid.UUID) -> None:
    staged = catalog.create_table_transaction(name, SCHEMA)
    updates = [
        AssignUUIDUpdate(uuid=table_uuid) if isinstance(each, AssignUUIDUpdate) else each for each in staged._updates
    ]
    catalog.commit_tables([(name, (AssertCreate(),), tuple(updates))])


def test_a_table_that_is_created_gets_no_uuid_of_another(catalog: TrinityLakeCatalog) -> None:
    version = catalog.lakehouse.version
    with pytest.raises(TableAlreadyExistsError, match=_TAKEN):
        _created_with(catalog, _full("new"), catalog.load_table(_full(SOUND[3])).metadata.table_uuid)
    assert version == catalog.lakehouse.version
    _created_with(catalog, _full("new"), uuid.uuid4())
    assert [] == ids(catalog.load_table(_full("new")))


def test_a_table_that_was_staged_once_is_created_once(catalog: TrinityLakeCatalog) -> None:
    """Its UUID is remembered as one that nobody else has, and that ends when it is created."""
    staged = catalog.create_table_transaction(_full("new"), SCHEMA)
    commit = (_full("new"), (AssertCreate(),), staged._updates)
    catalog.commit_tables([commit])
    catalog.rename_table(_full("new"), _full("renamed"))
    with pytest.raises(TableAlreadyExistsError, match=_TAKEN):
        catalog.commit_tables([commit])


def test_no_metadata_file_has_two_names(catalog: TrinityLakeCatalog) -> None:
    """Neither the newest of a table, nor an older one of it; but a dropped table may come back under any name."""
    old = catalog.load_table(_full(HOSTILE))
    old.append(rows(2))
    newest = catalog.load_table(_full(HOSTILE))
    version = catalog.lakehouse.version
    for location in (newest.metadata_location, old.metadata_location):
        for overwrite in (False, True):
            with pytest.raises(TableAlreadyExistsError, match=_TAKEN):
                catalog.register_table(_full("copy"), location, overwrite=overwrite)
        with pytest.raises(TableAlreadyExistsError, match=_TAKEN):
            catalog.register_table(_full(SOUND[0]), location, overwrite=True)
    assert version == catalog.lakehouse.version
    catalog.register_table(_full(HOSTILE), old.metadata_location, overwrite=True)
    catalog.drop_table(_full(HOSTILE))
    assert [1, 2] == ids(catalog.register_table(_full("back"), newest.metadata_location))


def test_a_table_that_takes_the_place_of_another_is_another(catalog: TrinityLakeCatalog) -> None:
    """Its definition gets an ID of its own, so that no plan about the first is carried out on it."""
    place = metadata_file(catalog)
    catalog.drop_table(_full(HOSTILE))
    before = catalog.lakehouse.table(NAMESPACE, SOUND[0])
    catalog.register_table(_full(SOUND[0]), place.as_uri(), overwrite=True)
    after = catalog.lakehouse.table(NAMESPACE, SOUND[0])
    assert before.id != after.id
    assert before.format_properties["uuid"] != after.format_properties["uuid"]
    kept = catalog.lakehouse.table(NAMESPACE, SOUND[1]).id
    newer = catalog.load_table(_full(SOUND[1])).metadata_location
    catalog.register_table(_full(SOUND[1]), newer, overwrite=True)
    assert kept == catalog.lakehouse.table(NAMESPACE, SOUND[1]).id


def test_what_others_do_between_is_seen(catalog: TrinityLakeCatalog) -> None:
    """A process that has looked at all tables once follows what changes, through versions that have expired, too."""
    location = catalog.load_table(_full(HOSTILE)).metadata_location
    with pytest.raises(TableAlreadyExistsError):
        catalog.register_table(_full("copy"), location)
    other = opened(catalog.lakehouse.root)
    other.rename_table(_full(HOSTILE), _full("renamed"))
    with pytest.raises(TableAlreadyExistsError, match=_full("renamed")):
        catalog.register_table(_full("copy"), location)
    other.drop_table(_full("renamed"))
    catalog.register_table(_full("copy"), location)


def test_changes_of_one_transaction_count_as_they_are_after_it(catalog: TrinityLakeCatalog) -> None:
    location = catalog.load_table(_full(HOSTILE)).metadata_location
    with catalog.transaction() as together:
        together.rename_table(_full(HOSTILE), _full("renamed"))
        with pytest.raises(TableAlreadyExistsError, match=_TAKEN):
            together.register_table(_full("copy"), location)
        together.drop_table(_full("renamed"))
    with catalog.transaction() as together:
        together.register_table(_full("copy"), location)
        with pytest.raises(TableAlreadyExistsError):
            together.register_table(_full("second"), location)
    assert [1] == ids(catalog.load_table(_full("copy")))


@pytest.mark.parametrize("grouped", ["true", "false"])
def test_of_eight_that_register_one_file_under_eight_names_one_wins(tmp_path: Path, grouped: str) -> None:
    """In one process, whose group would make one version of them, and in processes that know nothing of each other."""
    catalog = new_lakehouse(tmp_path, **{"group-commits": grouped})
    location = catalog.load_table(_full(HOSTILE)).metadata_location
    catalog.drop_table(_full(HOSTILE))
    ready = threading.Barrier(8)
    others = [catalog if number % 2 else opened(catalog.lakehouse.root) for number in range(8)]

    def act(number: int) -> str:
        ready.wait()
        try:
            others[number].register_table(_full(f"copy{number}"), location)
        except (TableAlreadyExistsError, CommitFailedException) as error:
            return type(error).__name__
        return "won"

    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(act, range(8)))
    assert 1 == outcomes.count("won"), outcomes
    assert 1 == sum(name.startswith("copy") for _, name in catalog.list_tables(NAMESPACE))


def test_what_is_gone_is_forgotten(catalog: TrinityLakeCatalog) -> None:
    """A process that runs for months follows every table that comes and goes."""
    storage = catalog.lakehouse.storage
    known = Identities(storage.root)
    entries = [each for each in catalog.lakehouse.objects() if each.kind in OWNERS]
    found = [NamedDefinition(str(each.name), each.kind, each.path) for each in entries]
    known.read(storage, [*found, NamedDefinition("unreadable", "table", "none")])
    assert {*SOUND, HOSTILE, "unreadable"} == set(known.names())
    directories = known.identity(HOSTILE).directories
    known.read(storage, [], gone=[HOSTILE, "unreadable", "never"])
    assert set(SOUND) == set(known.names())
    assert [] == list(known.names_unread(storage))
    assert all(known.is_free(each) for each in directories)


# -- another catalog -----------------------------------------------------------------------------------


def test_a_catalog_with_one_table_under_two_names_is_registered_without_the_second(
    catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/wh"}
    with SqlCatalog("old", **properties) as source:
        source.create_namespace("sales")
        first = source.create_table("sales.one", SCHEMA)
        source.register_table("sales.two", first.metadata_location)
        source.create_table("sales.three", SCHEMA)
    config = register.Config("old", {"type": "sql", **properties})
    done = register.run(catalog.lakehouse, config).registered
    assert (2, 1) == (done.tables_added, done.tables_refused)
    assert "sales.two" in done.refused[0]
    assert "sales.one" in done.refused[0]
    again = register.run(catalog.lakehouse, config).registered
    assert (None, 2, 1) == (again.version_after, again.tables_unchanged, again.tables_refused)


def _relative(document: dict[str, Any]) -> None:
    document["location"] = "warehouse/t"


def _contradicting(document: dict[str, Any]) -> None:
    document["current-snapshot-id"] = 99


def _of_another_table(document: dict[str, Any]) -> None:
    document["table-uuid"] = "00000000-0000-4000-8000-000000000001"


@pytest.mark.parametrize("change", [_relative, _contradicting, _of_another_table])
def test_one_odd_table_of_another_catalog_is_left_out_and_named(
    catalog: TrinityLakeCatalog, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    if change is _of_another_table:
        with_table(catalog, "sales.here")
        file = metadata_file(catalog, "here")
        document = json.loads(file.read_text())
        change(document)
        catalog.drop_table("sales.here")
        file.write_text(json.dumps(document))
        catalog.register_table("sales.here", file.as_uri())
    properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/wh"}
    with SqlCatalog("old", **properties) as source:
        source.create_namespace("sales")
        odd = Path(source.create_table("sales.odd", SCHEMA).metadata_location.removeprefix("file://"))
        source.create_table("sales.sound", SCHEMA)
    document = json.loads(odd.read_text())
    change(document)
    odd.write_text(json.dumps(document))
    done = register.run(catalog.lakehouse, register.Config("old", {"type": "sql", **properties})).registered
    assert (1, 1) == (done.tables_added, done.tables_refused), done
    assert done.refused[0].startswith("sales.odd: ")
    assert catalog.table_exists("sales.sound")
    assert not catalog.table_exists("sales.odd")
