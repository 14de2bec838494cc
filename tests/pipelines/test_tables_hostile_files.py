"""One table whose files are not what they should be, beside a sound one: each job names the one and does the other."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from datetime import time as clock
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from pipelines import export, tables_clean, tables_expire, tables_health, verify
from tests.support.icebergs import ids, new_iceberg, with_table
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog

BAD: Final = "sales.bad"
GOOD: Final = "sales.good"
SECRET: Final = "SECRET"


@dataclass(frozen=True)
class TableFiles:
    """One file of each kind that a table has."""

    metadata: Path
    manifest_list: Path
    manifest: Path
    data: Path


def files_of(catalog: TrinityLakeCatalog, name: str) -> TableFiles:
    """Return the files of a table with one snapshot."""
    table = catalog.load_table(name)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (manifest,) = snapshot.manifests(table.io)
    (task,) = table.scan().plan_files()
    named = (table.metadata_location, snapshot.manifest_list, manifest.manifest_path, task.file.file_path)
    return TableFiles(*(Path(each.removeprefix("file://")) for each in named))


# -- what may be done to a file --------------------------------------------------------------------------------

Damage = Callable[[Path], None]


def _holds(data: bytes) -> Damage:
    def damage(path: Path) -> None:
        path.unlink()
        path.write_bytes(data)

    return damage


def _a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _a_link_that_leads_out(path: Path) -> None:
    path.unlink()
    outside = path.parents[5] / "outside"
    outside.write_text(SECRET)
    path.symlink_to(outside)


def _cut(path: Path) -> None:
    _holds(path.read_bytes()[:-1])(path)


def _cut_behind_the_header(path: Path) -> None:
    """What is left is a sound Avro file without rows."""
    data = path.read_bytes()
    sync = data[-16:]
    _holds(data[: data.index(sync) + len(sync)])(path)


def _says(**changes: Any) -> Damage:
    def damage(path: Path) -> None:
        document = json.loads(path.read_bytes())
        _holds(json.dumps(document | {name.replace("_", "-"): value for name, value in changes.items()}).encode())(path)

    return damage


def _names_list(place: str) -> Damage:
    """The only snapshot is in a manifest list at this place; ``HERE`` is the table's directory."""

    def damage(path: Path) -> None:
        document = json.loads(path.read_bytes())
        document["snapshots"][0]["manifest-list"] = place.replace("HERE", document["location"])
        _holds(json.dumps(document).encode())(path)

    return damage


_DAMAGE: Final[dict[str, tuple[str, Damage]]] = {
    "metadata nested deeply": ("metadata", _holds(b'{"a":' * 50_000 + b"1" + b"}" * 50_000)),
    "metadata that are no text": ("metadata", _holds(b"\xff" + SECRET.encode())),
    "metadata of another format": ("metadata", _says(format_version=4)),
    "metadata with a relative location": ("metadata", _says(location="sales/bad")),
    "metadata with an odd identity": ("metadata", _says(table_uuid=[SECRET])),
    "a pipe as metadata": ("metadata", _a_pipe),
    "a link as metadata": ("metadata", _a_link_that_leads_out),
    "a list with a name that is too long": ("metadata", _names_list("HERE/metadata/" + "n" * 300)),
    "a list that is too far down": ("metadata", _names_list("HERE" + "/d" * 3000)),
    "a device as a list": ("metadata", _names_list("file:///dev/zero")),
    "a pipe as a list": ("manifest_list", _a_pipe),
    "a directory as a list": ("manifest_list", _a_directory),
    "a link as a list": ("manifest_list", _a_link_that_leads_out),
    "a list that is no Avro file": ("manifest_list", _holds(SECRET.encode() * 100)),
    "a pipe as a manifest": ("manifest", _a_pipe),
    "a manifest that ends early": ("manifest", _cut),
    "a manifest that was cut behind its header": ("manifest", _cut_behind_the_header),
}
_OF_DATA: Final[dict[str, Damage]] = {
    "a link as a data file": _a_link_that_leads_out,
    "a directory as a data file": _a_directory,
    "a pipe as a data file": _a_pipe,
}


@pytest.fixture
def catalog(tmp_path: Path) -> TrinityLakeCatalog:
    """A sound table, and one that will be damaged."""
    catalog = new_iceberg(tmp_path)
    with_table(catalog, GOOD, 1)
    with_table(catalog, BAD, 2)
    return catalog


def _paths_below(lake: Lakehouse, name: str) -> set[str]:
    directory = Path(lake.root.removeprefix("file://"))
    return {str(each.relative_to(directory)) for each in directory.glob(f"tables/sales/{name}-*/*/*")}


def _no_job_but_the_bad_table_suffers(lake: Lakehouse, copy: Path) -> str:
    """Run all jobs; return what they say."""
    before = _paths_below(lake, "bad"), _paths_below(lake, "good")
    cleaned = tables_clean.run(lake, tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True))
    assert before == (_paths_below(lake, "bad"), _paths_below(lake, "good"))
    expired = tables_expire.run(lake, tables_expire.Config(older_than_seconds=0))
    verified = verify.run(lake, verify.Config(engine="local", tables=1.0, deep=True))
    assert not verified.ok
    assert all("bad" in each.message for each in verified.findings)
    exported = export.run(lake, copy.as_uri(), export.Config(engine="local", tables=True))
    assert [1] == ids(TrinityLakeCatalog.over(Lakehouse.open(copy.as_uri())).load_table(GOOD))
    assert any("the copy lacks files of 1 table" in line for line in exported.summary())
    assert {each.name for each in copy.glob("tables/sales/bad-*/*/*") if SECRET in each.read_text("latin-1")} == set()
    told = [*expired.failures.values(), *(each.message for each in verified.findings)]
    return " ".join([*told, *(each.reason for each in cleaned.doubts), *exported.summary()])


@pytest.mark.parametrize("name", _DAMAGE)
def test_a_table_that_cannot_be_read_is_named_and_the_other_is_served(
    name: str, catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    kind, damage = _DAMAGE[name]
    damage(getattr(files_of(catalog, BAD), kind))
    lake = catalog.lakehouse.refresh()
    health = tables_health.run(lake)
    assert ([GOOD], [BAD]) == ([each.table for each in health.tables], [*health.failures])
    (doubt,) = tables_clean.run(lake, tables_clean.Config(engine="local")).doubts
    assert doubt.table == "sales-bad"
    told = _no_job_but_the_bad_table_suffers(lake, tmp_path / "copy")
    assert SECRET not in told + health.failures[BAD] + doubt.reason
    assert [1] == ids(catalog.load_table(GOOD))


@pytest.mark.parametrize("name", _OF_DATA)
def test_a_data_file_that_is_none_is_missed_and_not_followed(
    name: str, catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    _OF_DATA[name](files_of(catalog, BAD).data)
    told = _no_job_but_the_bad_table_suffers(catalog.lakehouse.refresh(), tmp_path / "copy")
    assert SECRET not in told


# -- partitions ------------------------------------------------------------------------------------------------

_VALUES: Final[dict[str, tuple[Any, Any]]] = {
    "boolean": (BooleanType(), [True, False]),
    "int": (IntegerType(), [1, -1]),
    "long": (LongType(), [1, -(1 << 40)]),
    "float": (FloatType(), [1.5, -0.25]),
    "double": (DoubleType(), [1.5, -0.25]),
    "decimal of 4 bytes": (DecimalType(9, 2), [Decimal("1.25"), Decimal("-77.00")]),
    "decimal of 6 bytes": (DecimalType(12, 2), [Decimal("1.25"), Decimal("-77.00")]),
    "decimal of 16 bytes": (DecimalType(38, 0), [Decimal(10) ** 37, Decimal(-7)]),
    "date": (DateType(), [date(2024, 2, 29), date(1969, 1, 1)]),
    "time": (TimeType(), [clock(1, 2, 3), clock(23, 59)]),
    "timestamp": (TimestampType(), [datetime(2024, 2, 29, 1, 2), datetime(1969, 1, 1)]),  # noqa: DTZ001 - it has none
    "timestamptz": (TimestamptzType(), [datetime(2024, 2, 29, tzinfo=UTC), datetime(1969, 1, 1, tzinfo=UTC)]),
    "string": (StringType(), ["Zürich", ""]),
    "binary": (BinaryType(), [b"\x00\xff", b""]),
    "fixed": (FixedType(5), [b"\x00\xff\x02ab", b"abcde"]),
}


@pytest.mark.parametrize("kind", _VALUES)
def test_a_table_partitioned_by_any_type_keeps_its_files_when_tables_are_cleaned(kind: str, tmp_path: Path) -> None:
    type_, values = _VALUES[kind]
    catalog = new_iceberg(tmp_path)
    catalog.create_namespace("sales")
    schema = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "p", type_, required=False))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
    table = catalog.create_table("sales.parts", schema, partition_spec=spec)
    arrow = schema.as_arrow()
    for number, value in enumerate([*values, None]):
        table.append(pa.table({"id": [number, number + 10], "p": [value, value]}, arrow))
    before = _paths_below(catalog.lakehouse, "parts")
    report = tables_clean.run(
        catalog.lakehouse.refresh(), tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True)
    )
    assert () == tuple(report.doubts)
    assert before == {each for each in before if (tmp_path / "lake" / each).exists()}
    assert [0, 1, 2, 10, 11, 12] == ids(catalog.load_table("sales.parts"))
