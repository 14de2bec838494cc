"""The border to PyIceberg: the text of a table runs no code, opens no connection, and shows nothing of itself."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any, Final

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.table.update import SetLocationUpdate, SetPropertiesUpdate

from pipelines import register, tables_expire
from tests.support.icebergs import SCHEMA, ids, opened, rows, with_table
from trinitylake_core import iceberg
from trinitylake_core.iceberg import TrinityLakeCatalog, border
from trinitylake_core.iceberg.errors import words_of
from trinitylake_core.iceberg.reading import limits
from trinitylake_core.iceberg.views import view_fields

_LOADERS: Final = {
    "load_file_io", "load_location_provider", "load_catalog", "model_validate", "model_validate_json", "parse_raw",
    "parse_obj", "table_metadata_from", "read_manifest_list", "fetch_manifest_entry", "StaticTable", "FromInputFile",
    "from_metadata", "new_table_metadata_file_location", "_infer_file_io_from_scheme",
}  # fmt: skip
"""What PyIceberg reads text from outside with, or lets such text choose code by."""


_READERS: Final = ("pyiceberg.avro", "pyiceberg.manifest", "pyiceberg.serializers", "pyiceberg.table.locations")
"""Modules of PyIceberg that read files, or choose code."""


def _modules_imported_by(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


def _names_used_by(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.name)
    return found


def test_no_module_but_the_border_loads_what_the_text_of_a_table_names() -> None:
    """import-linter sees which modules are imported, and not which of their names."""
    package = Path(str(iceberg.__file__)).parent
    modules = [*package.rglob("*.py"), *(package.parent / "rest").rglob("*.py")]
    around = {path.name: _names_used_by(path) & _LOADERS for path in modules if path.name != "border.py"}
    own = {
        "serving.py": {"load_catalog"},  # a client of the endpoint that it runs, by properties that it makes
        "principals.py": {"model_validate"},  # a model of its own, for a file of the operator
    }
    assert own == {name: found for name, found in around.items() if found}
    imports = {
        path.name: {each for each in _modules_imported_by(path) if each.startswith(_READERS)} for path in modules
    }
    own_manifests = {"border.py": {"pyiceberg.manifest"}}  # which it gives to PyIceberg when our reader has read them
    assert own_manifests == {name: found for name, found in imports.items() if found}
    assert {"load_file_io", "load_catalog", "parse_obj"} <= _names_used_by(package / "border.py")


# -- properties that name code -------------------------------------------------------------------------

_CODE: Final = (
    "write.py-location-provider.impl",
    "py-io-impl",
    "py-catalog-impl",
    "io-impl",
    "write.location-provider.impl",
    "encryption.kms-impl",
    "metrics-reporter-impl",
    "client.factory",
    "client.credentials-provider",
    " Py-IO-Impl ",
)


@pytest.mark.parametrize("name", _CODE)
def test_a_property_that_names_code_is_refused_wherever_it_is_written(catalog: TrinityLakeCatalog, name: str) -> None:
    table = with_table(catalog, "sales.orders", 1)
    version = catalog.lakehouse.version
    for act in (
        lambda: catalog.create_table("sales.new", SCHEMA, properties={name: "builtins.exec"}),
        lambda: catalog.create_table_transaction("sales.new", SCHEMA, properties={name: "builtins.exec"}),
        lambda: catalog.commit_table(table, (), (SetPropertiesUpdate(updates={name: "builtins.exec"}),)),
        lambda: catalog.create_namespace("other", {name: "builtins.exec"}),
        lambda: catalog.update_namespace_properties("sales", updates={name: "builtins.exec"}),
    ):
        with pytest.raises(ValidationError, match="names code to be run"):
            act()
    assert version == catalog.lakehouse.version


@pytest.mark.parametrize("name", ["write.object-storage.enabled", "commit.manifest.min-count-to-merge", "s3.signer"])
def test_other_properties_are_data(catalog: TrinityLakeCatalog, name: str) -> None:
    table = with_table(catalog, "sales.orders", 1, properties={name: "true"})
    assert "true" == table.properties[name]


def _with_properties(catalog: TrinityLakeCatalog, name: str, properties: dict[str, str], **fields: Any) -> Path:
    """Write properties into the newest metadata file of a table, behind the catalog's back."""
    file = Path(catalog.load_table(name).metadata_location.removeprefix("file://"))
    metadata = json.loads(file.read_text())
    metadata["properties"] |= properties
    file.write_text(json.dumps(metadata | fields))
    return file


def test_a_table_that_brings_code_along_runs_none_and_loses_it_with_its_next_commit(
    catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    """As in a lakehouse of a stranger: it is loaded, appended to, and its snapshots expire."""
    with_table(catalog, "sales.orders", 1).append(rows(2))
    proof = tmp_path / "proof"
    code = f"open({str(proof)!r}, 'w').close()"
    named = {
        "write.py-location-provider.impl": "builtins.exec",
        "py-io-impl": "builtins.exec",
        "history.expire.max-snapshot-age-ms": "1",
    }
    location = catalog.load_table("sales.orders").location()
    _with_properties(catalog, "sales.orders", named)
    lake = opened(catalog.lakehouse.root)
    table = lake.load_table("sales.orders")
    assert table.properties.keys().isdisjoint({"write.py-location-provider.impl", "py-io-impl"})
    assert location == table.location()
    table.append(rows(3))
    tables_expire.run(lake.lakehouse, tables_expire.Config())
    assert [1, 2, 3] == ids(lake.load_table("sales.orders").refresh())
    newest = lake.load_table("sales.orders").metadata_location.removeprefix("file://")
    assert "builtins.exec" not in Path(newest).read_text()
    assert not proof.exists(), code


def test_a_file_that_brings_code_along_is_not_registered(catalog: TrinityLakeCatalog) -> None:
    with_table(catalog, "sales.orders", 1)
    file = _with_properties(catalog, "sales.orders", {"py-io-impl": "builtins.exec"})
    catalog.drop_table("sales.orders")
    with pytest.raises(ValidationError, match=r"'py-io-impl' of table sales\.again names code to be run"):
        catalog.register_table("sales.again", file.as_uri())
    view = file.with_name("view.metadata.json")
    version = {"version-id": 1, "schema-id": 0, "timestamp-ms": 1, "summary": {}, "default-namespace": ["sales"]}
    shown = {"type": "sql", "sql": "select 1", "dialect": "spark"}
    about = {
        "view-uuid": "00000000-0000-4000-8000-000000000002", "format-version": 1, "location": file.parent.as_uri(),
        "schemas": [{"schema-id": 0, "type": "struct", "fields": []}], "current-version-id": 1,
        "versions": [{**version, "representations": [shown]}],
        "version-log": [{"version-id": 1, "timestamp-ms": 1}], "properties": {"py-io-impl": "builtins.exec"},
    }  # fmt: skip
    view.write_text(json.dumps(about))
    with pytest.raises(ValidationError, match=r"'py-io-impl' of view sales\.v names code to be run"):
        catalog.register_view("sales.v", view.as_uri())


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**25])
def test_a_file_with_a_number_that_other_clients_cannot_hold_is_not_registered(
    catalog: TrinityLakeCatalog, number: int
) -> None:
    """Theirs have 64 bits: they would fail, perhaps at the list of all tables. A text may have any digits."""
    with_table(catalog, "sales.orders", 1)
    texts = {"a": str(2**63 - 1), "b": str(number), "c": f": {number},", "d": "9" * 5000}
    file = _with_properties(catalog, "sales.orders", texts)
    catalog.drop_table("sales.orders")
    metadata = json.loads(file.read_text())
    file.write_text(json.dumps(metadata | {"last-sequence-number": number}))
    with pytest.raises(ValidationError, match="a number beyond 9,223,372,036,854,775,807"):
        catalog.register_table("sales.again", file.as_uri())
    for fits in (2**63 - 1, -(2**63)):
        file.write_text(json.dumps(metadata | {"last-updated-ms": fits}))
        border.refuse_large_numbers(file.read_text())
    file.write_text(json.dumps(metadata))
    assert texts.items() <= catalog.register_table("sales.again", file.as_uri()).properties.items()


def test_a_location_is_never_code(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    """What one commit did on an endpoint: a location of Python, and the property that runs it."""
    table = with_table(catalog, "sales.orders", 1)
    proof = tmp_path / "proof"
    updates = (
        SetLocationUpdate(location=f"open({str(proof)!r},'w')"),
        SetPropertiesUpdate(updates={"write.py-location-provider.impl": "builtins.exec"}),
    )
    with pytest.raises(ValidationError, match="names code"):
        catalog.commit_table(table, (), updates)
    assert not proof.exists()


# -- connections ---------------------------------------------------------------------------------------


def test_storage_properties_of_a_table_are_given_back_and_reach_no_file_io(catalog: TrinityLakeCatalog) -> None:
    evil = {
        "s3.endpoint": "http://127.0.0.1:9",
        "s3.proxy-uri": "http://127.0.0.1:9",
        "s3.role-arn": "arn:aws:iam::1:role/x",
        "s3.signer.uri": "http://127.0.0.1:9",
        "adls.account-host": "127.0.0.1:9",
        "gcs.service.host": "http://127.0.0.1:9",
        "hf.endpoint": "http://127.0.0.1:9",
        "warehouse": "hdfs://127.0.0.1:9/",
    }
    made = with_table(catalog, "sales.orders", 1, properties=evil)
    assert evil.items() <= made.properties.items()
    own = TrinityLakeCatalog("x", uri=catalog.lakehouse.root, **{"s3.region": "eu-1"})
    for table in (own.load_table("sales.orders"), own.load_table("sales.orders").refresh()):
        assert evil.items() <= table.properties.items()
        assert evil.keys().isdisjoint(table.io.properties)
        assert "eu-1" == table.io.properties["s3.region"]
    with own.create_table_transaction("sales.new", SCHEMA, properties=evil) as staged:
        assert evil.keys().isdisjoint(staged._table.io.properties)


@pytest.mark.parametrize("location", ["hdfs://127.0.0.1:9/x", "http://127.0.0.1:9/x", "hf://a/b", "relative/x", "x"])
def test_a_location_that_would_choose_a_connection_or_depends_on_the_process_is_refused(
    catalog: TrinityLakeCatalog, location: str
) -> None:
    catalog.create_namespace("sales")
    with pytest.raises(Exception, match=r"neither reads nor writes|not absolute"):
        catalog.register_table("sales.x", f"{location}/v1.metadata.json")
    with pytest.raises(Exception, match=r"neither reads nor writes|not absolute"):
        catalog.register_view("sales.x", f"{location}/v1.metadata.json")


def test_tables_of_another_catalog_run_nothing_when_they_are_registered(
    catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/wh"}
    with SqlCatalog("old", **properties) as source:
        source.create_namespace("sales")
        table = source.create_table("sales.orders", SCHEMA)
        source.create_table("sales.good", SCHEMA)
    file = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(file.read_text())
    metadata["properties"]["py-io-impl"] = f"{__name__}.Ran"
    file.write_text(json.dumps(metadata))
    Ran.with_these.clear()
    done = register.run(catalog.lakehouse, register.Config("old", {"type": "sql", **properties})).registered
    assert [] == Ran.with_these
    assert (1, 1, 1) == (done.tables_added, done.tables_refused, len(done.refused))
    assert "sales.orders: the property 'py-io-impl' of the table names code" in done.refused[0]
    assert [("sales", "good")] == catalog.list_tables("sales")


class Ran:
    """Notes what it is called with: it must never be."""

    with_these: Final[list[Any]] = []

    def __init__(self, properties: Any) -> None:
        self.with_these.append(properties)


# -- metadata of other writers -------------------------------------------------------------------------

_FIELD: Final[dict[str, Any]] = {
    "format-version": 2,
    "table-uuid": "00000000-0000-4000-8000-000000000002",
    "location": "s3://bucket/t",
    "last-sequence-number": 1,
    "last-updated-ms": 1600000000001,
    "last-column-id": 1,
    "current-schema-id": 0,
    "schemas": [
        {"schema-id": 0, "type": "struct", "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}
    ],
    "default-spec-id": 0,
    "partition-specs": [{"spec-id": 0, "fields": []}],
    "last-partition-id": 999,
    "default-sort-order-id": 0,
    "sort-orders": [{"order-id": 0, "fields": []}],
    "properties": {},
}
_BLOB: Final = {"type": "presto-sum-data-size-bytes-v1", "snapshot-id": 5, "sequence-number": 1, "fields": [1]}
_STATISTICS: Final = {
    "snapshot-id": 5,
    "statistics-path": "s3://bucket/t/metadata/5.stats",
    "file-size-in-bytes": 100,
    "file-footer-size-in-bytes": 40,
    "blob-metadata": [_BLOB],
}


def test_blobs_of_any_type_are_kept_as_they_are() -> None:
    """Types of blobs are open in the specification; PyIceberg's model knows two."""
    known = {**_STATISTICS, "blob-metadata": [{**_BLOB, "type": "apache-datasketches-theta-v1"}]}
    document = _FIELD | {"statistics": [_STATISTICS, known]}
    metadata = border.table_metadata(json.dumps(document).encode(), "x")
    written = json.loads(border.as_json(metadata))
    assert [_STATISTICS, known] == written["statistics"]
    update = border.request_of(border.SetOpenStatistics, {"snapshot-id": 5, "statistics": _STATISTICS})
    assert _STATISTICS == json.loads(update.model_dump_json(by_alias=True, exclude_none=True))["statistics"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"format-version": 1, "partition-specs": [{"spec-id": 1, "fields": []}], "schema": _FIELD["schemas"][0]},
         "default-spec-id 0 is not among"),
        ({"current-schema-id": 7}, "current-schema-id 7"),
        ({"current-snapshot-id": 7}, "its current-snapshot-id names a snapshot that is not among its snapshots"),
        ({"format-version": 9}, "format-version is none of 1, 2 and 3"),
        ({"schemas": [{"schema-id": 0, "type": "struct", "fields": [{"type": "SECRET"}]}]}, "specification says|:"),
        ({"statistics": [{"snapshot-id": "SECRET"}]}, "statistics\\[0\\].statistics-path"),
        ({"partition-specs": 7}, "specification says|:"),
        ({"refs": {"SECRET name": {"snapshot-id": "SECRET"}}}, "refs"),
    ],
)  # fmt: skip
def test_metadata_that_are_wrong_are_refused_in_words_without_their_values(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words) as error:
        border.table_metadata(json.dumps(_FIELD | fields).encode(), "file:///x.metadata.json")
    assert "file:///x.metadata.json is not a file of table metadata" in str(error.value)
    assert "SECRET" not in str(error.value)
    assert error.value.__cause__ is None


def test_deep_and_large_files_concern_their_own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    type_ = '{"type":"list","element-id":1,"element-required":false,"element":' * 3000 + '"int"' + "}" * 3000
    nested = json.dumps(_FIELD | {"schemas": "HERE"}).replace('"HERE"', f"[{type_}]")
    monkeypatch.setattr(limits, "METADATA_BYTES", 1 << 20)
    for data in (deep, nested.encode(), b" " * (1 << 21), b"\xff", b"", b"null", b"7"):
        with pytest.raises(ValidationError, match="not a file of table metadata"):
            border.table_metadata(data, "x")
        with pytest.raises(ValidationError, match="not a file of view metadata"):
            border.view_metadata(data, "x")


# -- words ---------------------------------------------------------------------------------------------


def test_messages_of_others_are_shown_only_where_they_hold_no_value() -> None:
    assert "Snapshot with snapshot id 7 does not exist" == words_of(
        ValueError("Snapshot with snapshot id 7 does not exist: [Snapshot(manifest_list='SECRET')]")
    )
    for error in (ValueError("SECRET"), KeyError("SECRET"), OSError(2, "x", "SECRET"), RecursionError("SECRET")):
        assert "SECRET" not in words_of(error)
        assert type(error).__name__ in words_of(error)


def test_two_writers_of_two_branches_race_and_the_loser_may_try_again(catalog: TrinityLakeCatalog) -> None:
    """No requirement of the second fails, but its sequence number is taken: PyIceberg's model raises ValueError."""
    table = with_table(catalog, "sales.orders", 1, properties={"commit.retry.num-retries": "0"})
    first = table.current_snapshot()
    assert first is not None
    table.manage_snapshots().create_branch(first.snapshot_id, "one").create_branch(first.snapshot_id, "two").commit()
    late = table.refresh().transaction()
    late.append(rows(2), branch="one")
    catalog.load_table("sales.orders").append(rows(3), branch="two")
    with pytest.raises(CommitFailedException, match="sequence number"):
        late.commit_transaction()


def test_the_definition_of_a_view_that_is_garbage_concerns_that_view(catalog: TrinityLakeCatalog) -> None:
    lake = catalog.lakehouse
    with lake.transaction() as txn:
        txn.create_namespace("sales")
        for number, text in enumerate(("{", "7", '{"version-id": "SECRET"}', '{"schema-id": null}', "[" * 100_000)):
            properties = {view_fields.PREFIX + "version": text}
            txn.create_view("sales", f"bad{number}", sql="SELECT 1", dialect="spark", properties=properties)
        txn.create_view("sales", "good", sql="SELECT 1", dialect="spark")
    for number in range(5):
        with pytest.raises(ValidationError, match=f"the definition of view sales.bad{number}") as error:
            catalog.load_view(f"sales.bad{number}")
        assert "SECRET" not in str(error.value)
    assert "SELECT 1" == catalog.load_view("sales.good").sql_for("spark").sql  # type: ignore[union-attr]
