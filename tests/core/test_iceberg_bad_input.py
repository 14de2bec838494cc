"""Bad input gets PyIceberg's exception, a message that says what to do, and changes nothing."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NoSuchIcebergTableError,
    NoSuchPropertyException,
    NoSuchTableError,
    ValidationError,
)
from pyiceberg.table.update import SetLocationUpdate, SetPropertiesUpdate

from tests.support.icebergs import SCHEMA, ids, new_iceberg, opened, rows, with_table
from trinitylake_core.definitions import TableDef, encode
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.iceberg.options import file_io_properties, storage_options
from trinitylake_core.keys import TABLE
from trinitylake_core.storage.failures import TransientError


@pytest.fixture
def catalog(tmp_path: Path) -> TrinityLakeCatalog:
    made = new_iceberg(tmp_path)
    with_table(made, "sales.orders", 1)
    return made


@pytest.fixture(autouse=True)
def _nothing_changed(catalog: TrinityLakeCatalog) -> Any:
    """After each test the lakehouse is at the version it was at, and no file is new but what PyIceberg leaves."""
    version, files = catalog.lakehouse.version, _own_files(catalog)
    yield
    assert (version, files) == (catalog.lakehouse.version, _own_files(catalog))


def _own_files(catalog: TrinityLakeCatalog) -> set[str]:
    """Return definitions, roots and metadata files."""
    return {info.path for info in catalog.lakehouse.storage.list("") if info.path.endswith((".binpb", ".ipc", ".json"))}


@pytest.mark.parametrize("version", ["4", "9", "x"])
def test_a_format_version_that_nobody_knows(catalog: TrinityLakeCatalog, version: str) -> None:
    with pytest.raises(ValidationError):
        catalog.create_table("sales.new", SCHEMA, properties={"format-version": version})


@pytest.mark.parametrize("name", ["a b", "tab\tbed", "x" * 101])
def test_names_that_the_lakehouse_cannot_hold(catalog: TrinityLakeCatalog, name: str) -> None:
    with pytest.raises(BadRequestError):
        catalog.create_namespace((name,))
    with pytest.raises(BadRequestError):
        catalog.create_table(("sales", name), SCHEMA)
    with pytest.raises(BadRequestError):
        catalog.rename_table("sales.orders", ("sales", name))
    assert not catalog.table_exists(("sales", name))
    assert not catalog.namespace_exists((name,))
    with pytest.raises(NoSuchTableError):
        catalog.load_table(("sales", name))


@pytest.mark.parametrize(
    "location", ["file:///elsewhere/t", "s3://bucket/t", "{base}../t", "file:///{base}/../../../t", "/elsewhere"]
)
def test_locations_outside_what_the_catalog_may_write(catalog: TrinityLakeCatalog, location: str) -> None:
    where = location.replace("{base}", catalog._places.base)
    with pytest.raises(ForbiddenError, match=r"outside|lead anywhere"):
        catalog.create_table("sales.new", SCHEMA, location=where)
    for name in ("write.data.path", "write.metadata.path"):
        with pytest.raises(ForbiddenError):
            catalog.create_table("sales.new", SCHEMA, properties={name: where})
    table = catalog.load_table("sales.orders")
    for update in (SetLocationUpdate(location=where), SetPropertiesUpdate(updates={"write.data.path": where})):
        with pytest.raises(ForbiddenError):
            catalog.commit_table(table, (), (update,))


def test_a_table_that_is_gone(catalog: TrinityLakeCatalog) -> None:
    table = catalog.load_table("sales.orders")
    table._identifier = ("sales", "gone")
    with pytest.raises(NoSuchTableError):
        catalog.commit_table(table, (), (SetPropertiesUpdate(updates={"a": "b"}),))
    with pytest.raises(CommitFailedException, match="missing"), table.transaction() as txn:
        txn.set_properties(a="b")


@pytest.mark.parametrize("data", [b"", b"{", b'{"format-version": 2}', b"\xff\xfe", b"[]"])
def test_metadata_that_are_garbage(catalog: TrinityLakeCatalog, tmp_path: Path, data: bytes) -> None:
    for name in ("x.metadata.json", "x.gz.metadata.json", "lake/y.metadata.json", "lake/y.gz.metadata.json"):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValidationError):
            catalog.register_table("sales.new", (tmp_path / name).as_uri())
        (tmp_path / name).unlink()
    packed = tmp_path / "lake" / "z.gz.metadata.json"
    packed.write_bytes(gzip.compress(data))
    with pytest.raises(ValidationError):
        catalog.register_table("sales.new", packed.as_uri())
    packed.unlink()


@pytest.mark.parametrize("where", ["lake/none.metadata.json", "none.metadata.json"])
def test_metadata_that_are_missing(catalog: TrinityLakeCatalog, tmp_path: Path, where: str) -> None:
    with pytest.raises(FileNotFoundError, match="is missing"):
        catalog.register_table("sales.new", (tmp_path / where).as_uri())


def test_a_table_whose_metadata_file_was_removed(catalog: TrinityLakeCatalog) -> None:
    file = Path(catalog.load_table("sales.orders").metadata_location.removeprefix("file://"))
    kept = file.read_bytes()
    file.unlink()
    assert catalog.table_exists("sales.orders")
    with pytest.raises(FileNotFoundError, match="roll back or restore"):
        catalog.load_table("sales.orders")
    file.write_bytes(kept)


def test_a_table_of_another_format(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    other = new_iceberg(tmp_path / "more")
    other.create_namespace("sales")
    lake = other.lakehouse
    delta = TableDef(id="x", table_format="DELTA", table_type="EXTERNAL")
    path = "1111/0000/1111/00001111-table-sales-d-3fa85f64-5717-4562-b3fc-2c963f66afa6.binpb"
    lake.storage.write_many([(path, encode(delta))])
    with lake.transaction() as txn:
        txn.put(lake.codec.table("sales", "d"), path)
    assert [TABLE] == [entry.kind for entry in other.lakehouse.objects(kind=TABLE)]
    for act in (other.load_table, other.drop_table, lambda name: other.rename_table(name, "sales.e")):
        with pytest.raises(NoSuchIcebergTableError, match="DELTA"):
            act("sales.d")
    assert not other.table_exists("sales.d")


def test_roots_that_are_no_lakehouse_and_properties_that_cannot_be(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    root = catalog.lakehouse.root
    with pytest.raises(ValueError, match="cannot open a lakehouse"):
        opened((tmp_path / "empty").as_uri())
    with pytest.raises(NoSuchPropertyException, match="uri"):
        TrinityLakeCatalog("lake")
    bad: list[dict[str, str]] = [{"version": "x"}, {"version": "99"}, {"snapshot": "no"}, {"timestamp": "yesterday"}]
    for properties in (*bad, {"version": "1", "snapshot": "s"}, {"storage.nonsense": "1"}):
        with pytest.raises(ValueError, match="cannot open a lakehouse"):
            opened(root, **properties)


def test_a_lakehouse_of_another_generation_is_read_only(catalog: TrinityLakeCatalog, java_lakehouse: str) -> None:
    java = opened(java_lakehouse)
    assert ("tpch",) in java.list_namespaces()
    with pytest.raises(ForbiddenError, match="upgrade"):
        java.create_namespace("new")
    with pytest.raises(NoSuchTableError):
        java.load_table("tpch.orders")


def test_a_commit_whose_outcome_is_unknown_says_so_and_keeps_its_files(tmp_path: Path) -> None:
    """The storage fails from the creation of the root on; the root is there, and what it names must be, too."""
    (tmp_path / "more").mkdir()
    unlucky = new_iceberg(tmp_path / "more")
    table = with_table(unlucky, "sales.orders", 1)

    struck = []

    def strike(kind: str, path: str, action: Callable[[], Any]) -> Any:
        answer = None if struck else action()
        if kind == "create":
            struck.append(path)
        if struck:
            raise TransientError("no answer any more")
        return answer

    storage: Any = unlucky.lakehouse.storage
    storage.interceptor = strike
    with pytest.raises(CommitStateUnknownException, match="load the table"):
        table.append(rows(2))
    assert 1 == len(set(struck))
    storage.interceptor = None
    assert [1, 2] == ids(opened(unlucky.lakehouse.root).load_table("sales.orders"))


def test_storage_options_and_file_io_properties_say_the_same() -> None:
    root = "s3://b/lake"
    ours = {"endpoint_url": "http://h:1", "key": "k", "secret": "s", "region": "eu", "read_timeout": 9.0, "anon": True}
    theirs = file_io_properties(root, ours)
    assert {
        "s3.endpoint": "http://h:1",
        "s3.access-key-id": "k",
        "s3.secret-access-key": "s",
        "s3.region": "eu",
        "s3.request-timeout": "9.0",
        "s3.anonymous": "true",
        "s3.force-virtual-addressing": "false",
    } == {name: value for name, value in theirs.items() if name.startswith("s3.")}
    back = storage_options(root, {**theirs, "storage.key": "mine", "storage.config_kwargs": '{"a": 1}'})
    assert ("mine", "http://h:1", "9.0", True, {"a": 1}) == tuple(
        back[name] for name in ("key", "endpoint_url", "read_timeout", "path_style", "config_kwargs")
    )
    only_theirs = {name: value for name, value in theirs.items() if name.startswith("s3.")}
    assert {} == storage_options("file:///x", only_theirs) == file_io_properties("file:///x", ours)


_CANARY = "CANARY"
SECRETS = {
    "s3.access-key-id": "CANARY1", "s3.secret-access-key": "CANARY2", "s3.session-token": "CANARY3",
    "adls.account-key": "CANARY4", "adls.sas-token": "CANARY5", "adls.connection-string": "AccountKey=CANARY6;",
    "adls.client-secret": "CANARY7", "gcs.oauth2.token": "CANARY8", "token": "CANARY9",
    "s3.proxy-uri": "http://u:CANARY0@127.0.0.1:1",
}  # fmt: skip
"""Every property of PyIceberg's that may hold a secret."""


def test_no_secret_of_a_catalog_is_shown_or_kept(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    made = TrinityLakeCatalog("x", uri=catalog.lakehouse.root, **SECRETS)
    table = made.load_table("sales.orders")
    with made.transaction() as txn:
        shown = [repr(each) for each in (made, made.lakehouse, txn, table, table.io, made._backend, made._places)]
    with pytest.raises(NoSuchTableError) as error:
        made.load_table("sales.none")
    assert _CANARY not in "".join([*shown, str(error.value)])
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and _CANARY.encode() in path.read_bytes()]
    assert [] == kept


@pytest.mark.parametrize(
    "properties",
    [
        {"storage.no_such": "CANARY"},
        {"storage.client_kwargs": "{CANARY"},
        {"storage.endpoint_url": "http://user:CANARY@127.0.0.1:1", "storage.retries": "0"},
        {"s3.endpoint": "http://user:CANARY@127.0.0.1:1", "storage.retries": "0"},
        {"s3.connect-timeout": "CANARY"},
        {"uri": "s3://user:CANARY@b/lake"},
        {"uri": "s3://b/lake?token=CANARY"},
    ],
    ids="+".join,
)
def test_an_error_of_a_catalog_that_cannot_be_opened_holds_no_secret(properties: dict[str, str]) -> None:
    with pytest.raises(Exception, match=r"option|property|root URI|failed") as error:
        TrinityLakeCatalog("x", **{"uri": "s3://b/lake", **SECRETS, **properties})
    assert _CANARY not in str(error.value)


def test_locations_with_credentials_are_refused(catalog: TrinityLakeCatalog) -> None:
    """They would stand in definitions and in the metadata of tables, which everybody can read."""
    secret = "s3://user:CANARY@b/w"
    with pytest.raises(ValueError, match=r"warehouse s3://\*\*\* holds credentials"):
        TrinityLakeCatalog("x", uri=catalog.lakehouse.root, warehouse=secret)
    for act in (
        lambda: catalog.create_table("sales.new", SCHEMA, location=secret),
        lambda: catalog.register_table("sales.new", f"{secret}/metadata/v1.metadata.json"),
    ):
        with pytest.raises(Exception, match=r"location s3://\*\*\* holds credentials") as error:
            act()
        assert _CANARY not in str(error.value)
