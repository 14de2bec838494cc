"""Definitions: what the Java SDK wrote, what callers may write, and what Arrow can say of it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from trinitylake_core import Lakehouse, locations, spec
from trinitylake_core import definitions as d
from trinitylake_core.definitions import trinitylake_pb2 as pb
from trinitylake_core.errors import CorruptDefinition, InvalidDefinition, InvalidInput

ROOT = Path(__file__).parents[2]
DECODERS: dict[str, Any] = {**d.DECODERS, "lakehouse": d.decode_lakehouse, "transaction": d.decode_transaction}
PROTO = "trinitylake_core/definitions/trinitylake.proto"
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)
TEXTS = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)
LENGTHS = st.integers(1, 2**28 - 1).map(lambda n: {"length": str(n)})
CHECKSUM = 19
"""Bytes of the field that every definition file ends with."""
OWN_PROPERTIES = {"precision", "scale", "length"}
PLAIN_TYPES = sorted(set(pb.DataType.values()) - {pb.DECIMAL, pb.CHAR, pb.FIXED, pb.STRUCT, pb.MAP, pb.LIST})


def _decimal(precision: int, scale: int) -> dict[str, str]:
    return {"precision": str(precision), "scale": str(min(precision, scale))}


def _column(kind: int, properties: dict[str, str]) -> st.SearchStrategy[pb.Column]:
    free = TEXTS.map(lambda more: {k: v for k, v in more.items() if k not in OWN_PROPERTIES} | properties)
    return st.builds(pb.Column, name=NAMES, type=st.just(kind), nullable=st.booleans(), properties=free)


LEAVES = st.one_of(
    st.sampled_from(PLAIN_TYPES).flatmap(lambda kind: _column(kind, {})),
    st.tuples(st.sampled_from([pb.CHAR, pb.VARCHAR, pb.FIXED]), LENGTHS).flatmap(lambda each: _column(*each)),
    st.builds(_decimal, st.integers(1, 38), st.integers(0, 38)).flatmap(lambda size: _column(pb.DECIMAL, size)),
)


def _nested(inner: st.SearchStrategy[pb.Column]) -> st.SearchStrategy[pb.Column]:
    common: dict[str, Any] = {"name": NAMES, "nullable": st.booleans(), "properties": TEXTS}
    fields = st.lists(inner, max_size=3, unique_by=lambda column: column.name)
    return st.one_of(
        st.builds(pb.Column, type=st.just(pb.STRUCT), struct_fields=fields, **common),
        st.builds(pb.Column, type=st.just(pb.MAP), map_key=inner, map_value=inner, **common),
        st.builds(pb.Column, type=st.just(pb.LIST), list_element=inner, **common),
    )


def _all(columns: Any) -> list[pb.Column]:
    found = []
    for column in columns:
        parts = [getattr(column, p) for p in ("map_key", "map_value", "list_element") if column.HasField(p)]
        found += [column, *_all([*column.struct_fields, *parts])]
    return found


@st.composite
def schemas(draw: st.DrawFn) -> pb.Schema:
    """Draw a valid schema with any IDs."""
    columns = st.lists(st.recursive(LEAVES, _nested, max_leaves=8), max_size=5, unique_by=lambda column: column.name)
    schema = pb.Schema(columns=draw(columns))
    every = _all(schema.columns)
    ids = draw(st.lists(st.integers(1, 2**32 - 1), min_size=len(every), max_size=len(every), unique=True))
    for column, number in zip(every, ids, strict=True):
        column.id = number
    return schema


ARROW_LEAVES = st.one_of(
    st.sampled_from([
        pa.bool_(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
        pa.date32(), pa.time32("ms"), pa.time64("us"), pa.time64("ns"),
        *(pa.timestamp(unit, zone) for unit in ("ms", "us", "ns") for zone in (None, "UTC")),
    ]),
    st.integers(1, 2**28 - 1).map(pa.binary),
    st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s))),
)  # fmt: skip
ARROW_TYPES = st.recursive(
    ARROW_LEAVES,
    lambda inner: st.one_of(
        st.builds(pa.list_, inner),
        st.builds(lambda t, null: pa.list_(pa.field("item", t, null)), inner, st.booleans()),
        st.builds(lambda k, v, null: pa.map_(k, pa.field("value", v, null)), inner, inner, st.booleans()),
        st.dictionaries(NAMES, inner, max_size=3).map(lambda fields: pa.struct(list(fields.items()))),
    ),
    max_leaves=6,
)
ARROW_SCHEMAS = st.dictionaries(NAMES, st.tuples(ARROW_TYPES, st.booleans()), max_size=5).map(
    lambda columns: pa.schema([pa.field(name, *each) for name, each in columns.items()])
)


def _directory(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))


def _table(**changes: Any) -> pb.TableDef:
    return d.table_def(
        pa.schema([("a", pa.int64()), ("b", pa.string()), ("s", pa.struct([("x", pa.int32())]))]), **changes
    )


# --- the Java SDK -----------------------------------------------------------------------------


def test_java_definitions_read_as_the_sdk_reads_them_and_are_written_as_it_writes_them(
    java_lakehouse: str, expected: dict[str, Any]
) -> None:
    """Views included. Encoding what was decoded loses nothing, is deterministic, and keeps the wire format."""
    root = _directory(java_lakehouse)
    for saved in expected["transactions"]:
        assert saved["def"] == d.to_dict(d.decode_transaction((root / saved["file"]).read_bytes(), saved["file"]))
    for path, definition in expected["definitions"].items():
        decode, data = DECODERS[definition["kind"]], (root / path).read_bytes()
        message = decode(data, path)
        assert definition["def"] == d.to_dict(message), path
        again = d.encode(message)
        assert (len(data) + CHECKSUM, message, again) == (
            len(again),
            decode(again, path),
            d.encode(decode(again, path)),
        ), path


def test_java_schemas_become_arrow_and_come_back(java_lakehouse: str, expected: dict[str, Any]) -> None:
    """Every schema of the SDK is valid here, nullable map keys included."""
    root = _directory(java_lakehouse)
    tables = [path for path, definition in expected["definitions"].items() if definition["kind"] == "table"]
    assert len(tables) > 40
    for path in tables:
        schema = d.decode_table((root / path).read_bytes(), path).schema
        d.check_schema(schema)
        assert schema == d.schema_from_arrow(d.schema_to_arrow(schema))


# --- codec ------------------------------------------------------------------------------------

COMPLETE: dict[str, d.Definition] = {
    "lakehouse": d.new_lakehouse_def(properties={"a": "1"}),
    "namespace": d.namespace_def({"a": "1", "b": "é"}),
    "table": _table(primary_keys=["a"], properties={"c": "d"}),
    "view": d.view_def("SELECT 1", referenced_object_full_names=["a.b"]),
    "transaction": pb.TransactionDef(id="t", beginning_root_node_file_path="_0", expire_at_millis=2),
}


@pytest.mark.parametrize("kind", COMPLETE)
def test_garbage_is_reported_with_its_path(kind: str) -> None:
    """Empty, garbage and ID-less files name the file and say what is wrong with it."""
    no_id = type(COMPLETE[kind])()
    no_id.CopyFrom(COMPLETE[kind])
    no_id.ClearField("id")
    for data, reason in [(b"", "empty"), (b"\0" * 9, "garbage"), (b"\xff" * 40, "garbage"), (d.encode(no_id), "no id")]:
        with pytest.raises(CorruptDefinition, match=f"^dir/file: .*{reason}") as caught:
            DECODERS[kind](data, "dir/file")
        assert "dir/file" == caught.value.path


@given(st.binary(max_size=60), st.sampled_from(sorted(DECODERS)))
def test_no_bytes_make_a_decoder_fail_otherwise(data: bytes, kind: str) -> None:
    """Whatever a file holds, the decoder returns a definition or one of two errors."""
    with contextlib.suppress(CorruptDefinition, InvalidDefinition):
        assert DECODERS[kind](data, "p").id


def test_another_major_version_is_refused() -> None:
    """A lakehouse of the future is not read with the eyes of today."""
    data = d.encode(pb.LakehouseDef(id="x", major_version=1))
    with pytest.raises(InvalidDefinition, match="format version 1, and this release supports version 0 only"):
        d.decode_lakehouse(data, "p")


def test_an_order_that_makes_no_tree_is_corrupt() -> None:
    """Orders 1 and 2 cannot have been written by anyone; 0 means the default."""
    with pytest.raises(CorruptDefinition, match="order 2 is below 3"):
        d.decode_lakehouse(d.encode(pb.LakehouseDef(id="x", order=2)), "p")
    assert 0 == d.decode_lakehouse(d.encode(pb.LakehouseDef(id="x")), "p").order


def test_fields_of_a_newer_writer_survive() -> None:
    """Unknown fields are kept by decoding, altering and encoding, in views of both kinds too."""
    unknown = b"\xda\x3e\x03new"  # field 1003
    for kind, alter in [("namespace", d.altered_namespace), ("table", d.altered_table), ("view", d.altered_view)]:
        old = DECODERS[kind](d.encode(COMPLETE[kind])[:-CHECKSUM] + unknown, "p")
        assert unknown in d.encode(alter(old, properties={"x": "y"}))
    java = pb.RawViewDef(representations=[b"\n\x02\x12\x00"]).SerializeToString() + b"\n\x01i" + unknown
    assert unknown in d.encode(d.decode_view(java, "p"))


@pytest.mark.parametrize(
    ("payload", "is_sql"),
    [
        (pb.SQLRepresentation(type="sql", sql="SELECT 1", dialect="spark").SerializeToString(), True),
        (pb.SQLRepresentation(sql="SELECT\n\t1").SerializeToString(), True),
        (pb.SQLRepresentation(sql="SELECT '\x01'", dialect="spark").SerializeToString(), True),
        (pb.SQLRepresentation(type="sql", dialect="spark").SerializeToString(), True),
        (b"", True),
        (b"\n\x05\x12\x01a:\x00", False),  # Rel: read
        (b"\x12\x04\x12\x02\n\x00", False),  # Rel: filter
        (b"\x1a\x02\x12\x00", False),  # Rel: fetch
        (b"\n\x00\x12\x03\n\x01a:\x03\n\x01t", False),  # ReadRel: common, base_schema, named_table
        (b"\x12\x03\xff\xfe\xfd", False),
    ],
)
def test_field_4_of_a_view_is_sql_or_a_relation(payload: bytes, is_sql: bool) -> None:
    """SQL and Substrait share a field number, and the content tells which it is; writing gives the same bytes."""
    data = pb.NamespaceDef(id="v").SerializeToString() + pb.RawViewDef(representations=[payload]).SerializeToString()
    view = d.decode_view(data, "p")
    assert (is_sql, not is_sql) == (len(view.sql_representations) == 1, view.HasField("substrait_read_rel"))
    assert data == d.encode(view)[:-CHECKSUM]
    assert is_sql == ("sql_representations" in d.to_dict(view))


def test_a_view_holds_one_kind_of_query() -> None:
    """Both kinds at once are refused on read and on write."""
    sql = pb.SQLRepresentation(type="sql", sql="SELECT 1", dialect="spark")
    mixed = pb.RawViewDef(representations=[sql.SerializeToString(), b"\n\x02\x12\x00"])
    with pytest.raises(CorruptDefinition, match="one of several representations is not SQL"):
        d.decode_view(b"\n\x01i" + mixed.SerializeToString(), "p")
    with pytest.raises(InvalidDefinition, match="not both"):
        d.encode(pb.ViewDef(id="i", sql_representations=[sql], substrait_read_rel=b"x"))


def test_generated_code_is_that_of_the_proto(tmp_path: Path) -> None:
    """`make proto` would change nothing."""
    out = tmp_path / "descriptor"
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=.", f"--descriptor_set_out={out}", PROTO]
    subprocess.run(command, cwd=ROOT, check=True)
    (fresh,) = FileDescriptorSet.FromString(out.read_bytes()).file
    checked_in = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(checked_in)
    for file in (fresh, checked_in):
        _clear_json_names(file.message_type)
    assert fresh == checked_in


def _clear_json_names(messages: Any) -> None:
    """Forget what some compilers write into descriptors and others leave to be derived."""
    for message in messages:
        for field in message.field:
            field.ClearField("json_name")
        _clear_json_names(message.nested_type)


# --- lakehouse --------------------------------------------------------------------------------


def test_a_new_lakehouse_has_the_defaults_of_the_format(expected: dict[str, Any]) -> None:
    """The defaults are those of the SDK, but for the time to live, where the format says seven days."""
    new = d.to_dict(d.new_lakehouse_def())
    sdk = expected["lakehouse_def"] | {"id": new["id"], "txn_ttl_millis": "604800000"}
    assert sdk == new
    assert d.new_lakehouse_def().id != new["id"]


@pytest.mark.parametrize(
    ("definition", "order"),
    [
        ({}, 512),
        ({"order": 128}, 128),
        ({"table_name_max_size_bytes": 500}, 512),
        ({"table_name_max_size_bytes": 1000}, 256),
        ({"node_file_max_size_bytes": 200_000}, 128),
        ({"table_name_max_size_bytes": 8000, "node_file_max_size_bytes": 2_000_000}, 128),
    ],
)
def test_a_creator_who_chooses_no_order_gets_one_that_fits(
    definition: dict[str, int], order: int, tmp_path: Path
) -> None:
    """What a stored definition without an order means stays 128."""
    assert order == Lakehouse.create(tmp_path.as_uri(), **definition).definition.order  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"order": 2}, "order must be between 3 and 4294967295, not 2"),
        ({"order": True}, "order must be a whole number, not bool"),
        ({"order": "128"}, "order must be a whole number, not str"),
        ({"table_name_max_size_bytes": 0}, "table_name_max_size_bytes must be between 1"),
        ({"view_name_max_size_bytes": 2**32}, "view_name_max_size_bytes must be between 1"),
        ({"node_file_max_size_bytes": 1000}, "no room for a write buffer in node_file_max_size_bytes=1000"),
        ({"order": 100_000}, "no room for a write buffer"),
        ({"txn_ttl_millis": 0}, "txn_ttl_millis must be between 1"),
        ({"txn_isolation_level": "READ_COMMITTED"}, "must be one of SNAPSHOT, SERIALIZABLE, not 'READ_COMMITTED'"),
        ({"properties": {"a": 1}}, r"properties\['a'\] must be text, not int"),
        ({"properties": [("a", "b")]}, "properties must be a mapping, not list"),
        ({"properties": {"": "b"}}, "a name in properties must not be empty"),
        ({"properties": {"a": "\ud800"}}, "lone surrogate"),
    ],
)
def test_a_lakehouse_that_cannot_work_is_refused(arguments: dict[str, Any], message: str) -> None:
    """Each refusal names the argument."""
    with pytest.raises(InvalidDefinition, match=message):
        d.new_lakehouse_def(**arguments)


def test_the_key_table_estimate_counts_real_paths() -> None:
    """A row is a full key, the path of a definition and the path of a node; long names are cut in paths."""
    tiny = pb.LakehouseDef(
        order=3, namespace_name_max_size_bytes=5, table_name_max_size_bytes=7, view_name_max_size_bytes=2
    )
    row = 4 + 5 + 7 + len(locations.definition_path("table", "n" * 5, "t" * 7)) + len(locations.node_path())
    assert 3 * row == d.key_table_max_bytes(tiny)
    long = len(locations.definition_path("table", "n" * 100, "t" * 100))
    assert 128 * (204 + long + len(locations.node_path())) == d.key_table_max_bytes(pb.LakehouseDef())


def test_numbers_left_out_mean_the_defaults() -> None:
    """proto3 does not store zeros; what was set stays."""
    definition = pb.LakehouseDef(order=5)
    full = d.effective(definition)
    assert (5, 100, spec.DEFAULT_NODE_FILE_MAX_SIZE_BYTES, spec.DEFAULT_TXN_TTL_MILLIS) == (
        full.order, full.table_name_max_size_bytes, full.node_file_max_size_bytes, full.txn_ttl_millis,
    )  # fmt: skip
    assert pb.LakehouseDef(order=5) == definition


# --- schemas ----------------------------------------------------------------------------------


@given(schemas())
def test_schema_survives_arrow(schema: pb.Schema) -> None:
    """Types, sizes, names, nullability, IDs and properties come back, also through Arrow's own bytes."""
    arrow = d.schema_to_arrow(schema)
    assert schema == d.schema_from_arrow(arrow)
    assert schema == d.schema_from_arrow(pa.ipc.read_schema(arrow.serialize()))


@given(ARROW_SCHEMAS)
def test_arrow_schema_survives(arrow: pa.Schema) -> None:
    """An Arrow schema of supported types comes back equal, and its columns are numbered in pre-order."""
    schema = d.schema_from_arrow(arrow)
    assert arrow == d.schema_to_arrow(schema)
    every = _all(schema.columns)
    assert list(range(1, len(every) + 1)) == [column.id for column in every]


def test_every_data_type_has_an_arrow_type() -> None:
    """The strategies above leave none out."""
    assert list(range(27)) == sorted([*PLAIN_TYPES, pb.DECIMAL, pb.CHAR, pb.FIXED, pb.STRUCT, pb.MAP, pb.LIST])


@pytest.mark.parametrize(
    ("arrow", "plain"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary_view(), pa.binary()),
        (pa.large_list(pa.int16()), pa.list_(pa.int16())),
        (pa.list_view(pa.int16()), pa.list_(pa.int16())),
        (pa.timestamp("us", "Etc/UTC"), pa.timestamp("us", "UTC")),
        (pa.timestamp("ns", "+00:00"), pa.timestamp("ns", "UTC")),
    ],
)
def test_variants_are_taken_for_the_plain_type(arrow: pa.DataType, plain: pa.DataType) -> None:
    """What differs only in memory is one type on disk."""
    assert d.schema_from_arrow(pa.schema([("a", plain)])) == d.schema_from_arrow(pa.schema([("a", arrow)]))


@pytest.mark.parametrize(
    ("arrow", "instead"),
    [
        (pa.null(), "give it the type that its values will have"),
        (pa.int8(), "use int16"),
        (pa.uint8(), "use int16"),
        (pa.uint16(), "use int32"),
        (pa.uint32(), "use int64"),
        (pa.uint64(), r"use decimal128\(20, 0\)"),
        (pa.float16(), "use float32"),
        (pa.decimal128(5, -1), "use decimal128"),
        (pa.decimal128(3, 5), "use decimal128"),
        (pa.decimal256(40, 1), "use decimal128"),
        (pa.date64(), "use date32"),
        (pa.time32("s"), r"use time32\('ms'\)"),
        (pa.timestamp("s"), "use unit 'ms', 'us' or 'ns'"),
        (pa.timestamp("us", "Europe/Berlin"), "or in UTC"),
        (pa.duration("s"), "use int64"),
        (pa.month_day_nano_interval(), "use int32 or int64"),
        (pa.binary(0), "at least 1 byte"),
        (pa.list_(pa.int32(), 3), "use list_"),
        (pa.dictionary(pa.int32(), pa.string()), "use its value type string"),
        (pa.run_end_encoded(pa.int32(), pa.string()), "use its value type string"),
        (pa.dense_union([pa.field("x", pa.int32())]), "use a struct"),
        (pa.uuid(), r"use its storage type fixed_size_binary\[16\]"),
    ],
)
def test_other_arrow_types_are_refused_with_advice(arrow: pa.DataType, instead: str) -> None:
    """The error names the column, however deep, and says what to use."""
    with pytest.raises(InvalidDefinition, match=rf"column s\.element\.x: Arrow type .* is not supported; .*{instead}"):
        d.schema_from_arrow(pa.schema([("s", pa.list_(pa.struct([("x", arrow)])))]))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (pa.field("a", pa.int32(), metadata={"trinitylake.type": "CHAR(3)"}), "does not fit Arrow type int32"),
        (pa.field("a", pa.time64("us"), metadata={"trinitylake.type": "TIMETZ3"}), "does not fit"),
        (pa.field("a", pa.string(), metadata={"trinitylake.type": "TEXT"}), "is 'TEXT'"),
        (pa.field("a", pa.string(), metadata={"trinitylake.type": "CHAR"}), "CHAR needs the property 'length'"),
        (pa.field("a", pa.string(), metadata={"trinitylake.type": "CHAR(9999999999)"}), "between 1 and 2147483647"),
        (pa.field("a", pa.string(), metadata={"trinitylake.id": "x"}), "must be a number"),
        (pa.field("a", pa.string(), metadata={"trinitylake.id": "4294967296"}), "must be a number"),
        (pa.field("a", pa.string(), metadata={"trinitylake.property.x": b"\xff"}), "is not UTF-8"),
        (pa.field("", pa.string()), "the name of a column must not be empty"),
        (pa.field("a", pa.struct([("", pa.int32())])), "the name of a column in a must not be empty"),
        (pa.field("b", pa.string()), "two columns are named b"),
        (pa.field("a", pa.string(), metadata={"trinitylake.id": "7"}), "2 columns have the ID 7"),
    ],
)
def test_wrong_metadata_and_names_are_refused(field: pa.Field, message: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(InvalidDefinition, match=message):
        d.schema_from_arrow(pa.schema([field, pa.field("b", pa.int32(), metadata={"trinitylake.id": "7"})]))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pb.Column(id=0, name="a"), "the ID of a column must be between 1"),
        (pb.Column(id=1, name="a", type=pb.DECIMAL), "DECIMAL needs the property 'precision'"),
        (
            pb.Column(id=1, name="a", type=pb.DECIMAL, properties={"precision": "39"}),
            "precision must be between 1 and 38",
        ),
        (
            pb.Column(id=1, name="a", type=pb.DECIMAL, properties=_decimal(5, 1) | {"scale": "6"}),
            "scale must be between",
        ),
        (pb.Column(id=1, name="a", type=pb.VARCHAR, properties={"length": "-1"}), "length must be a whole number"),
        (pb.Column(id=1, name="a", type=pb.FIXED), "FIXED needs the property 'length'"),
        (pb.Column(id=1, name="a", type=pb.FIXED, properties={"length": str(2**28)}), "between 1 and 268435455"),
        (pb.Column(id=1, name="a", type=27), "data type 27 is not known to this release"),
        (pb.Column(id=1, name="a", type=pb.MAP, map_key=pb.Column(id=2)), "MAP needs map_value"),
        (pb.Column(id=1, name="a", type=pb.LIST), "LIST needs list_element"),
        (pb.Column(id=1, name="a", type=pb.INT4, struct_fields=[pb.Column()]), "INT4 has no struct_fields"),
        (pb.Column(id=1, name="a", type=pb.STRUCT, list_element=pb.Column()), "STRUCT has no list_element"),
    ],
)
def test_wrong_schemas_are_refused(column: pb.Column, message: str) -> None:
    """A schema that the format cannot hold does not get into a table."""
    with pytest.raises(InvalidDefinition, match=message):
        d.table_def(pb.Schema(columns=[column]))


def test_nesting_has_an_end() -> None:
    """Too deep is an error of ours in both directions, not one of protobuf; just deep enough can be stored."""
    arrow, column = pa.int32(), pb.Column(id=1, type=pb.INT4)
    for _ in range(63):
        arrow, column = pa.list_(arrow), pb.Column(id=1, type=pb.LIST, list_element=column)
    table = d.table_def(pa.schema([("a", arrow)]))
    assert table == d.decode_table(d.encode(table), "p")
    deeper = pb.Schema(columns=[pb.Column(id=1, name="a", type=pb.LIST, list_element=column)])
    for refuse in (
        lambda: d.schema_from_arrow(pa.schema([("a", pa.list_(arrow))])),
        lambda: d.schema_to_arrow(deeper),
        lambda: d.check_schema(deeper),
    ):
        with pytest.raises(InvalidDefinition, match="column a is nested more than 64 levels deep"):
            refuse()


def test_not_a_schema() -> None:
    """Other things that look like schemas are refused by type."""
    with pytest.raises(InvalidDefinition, match=r"must be a pyarrow.Schema or a Schema, not dict"):
        d.table_def({"a": "int"})


# --- objects ----------------------------------------------------------------------------------


def test_altering_merges_properties_and_keeps_the_id() -> None:
    """Old messages never change."""
    old = d.namespace_def({"a": "1", "b": "2"})
    before = old.SerializeToString(deterministic=True)
    new = d.altered_namespace(old, {"b": None, "c": "3"})
    assert (old.id, {"a": "1", "c": "3"}) == (new.id, dict(new.properties))
    assert before == old.SerializeToString(deterministic=True)
    with pytest.raises(InvalidDefinition, match="properties"):
        d.altered_namespace(old, {"a": 1})  # type: ignore[dict-item]
    with pytest.raises(InvalidDefinition, match="must be a mapping"):
        d.altered_namespace(old, "a=1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"primary_keys": ["z"]}, "primary_keys: the schema has no column 'z'; it has a, b, s"),
        ({"sort_keys": [9]}, "sort_keys: the schema has no column with ID 9"),
        ({"sort_keys": [True]}, "must be a whole number"),
        ({"sort_keys": "a"}, "must be a list of columns"),
        ({"unique_columns": ["a", 1]}, "name a column twice"),
        ({"table_type": "TEMPORARY"}, "table_type must be one of MANAGED, EXTERNAL, FEDERATED"),
        ({"table_format": "iceberg"}, "table_format must be one of ICEBERG, not 'iceberg'"),
        ({"table_type": "EXTERNAL", "format_properties": {"location": "a/b"}}, "must be a full URI"),
        ({"format_properties": {"location": "s3://b/t"}}, "use table_type EXTERNAL"),
        ({"format_properties": {"metadata_location": "../t"}}, "a path inside the lakehouse"),
    ],
)
def test_wrong_tables_are_refused(arguments: dict[str, Any], message: str) -> None:
    """Each refusal names the argument."""
    with pytest.raises(InvalidDefinition, match=message):
        _table(**arguments)


def test_locations_follow_the_table_type() -> None:
    """External data is anywhere, managed data inside, federated data is somebody else's."""
    for kind, location in [
        ("EXTERNAL", "s3://b/t"),
        ("MANAGED", "data/t/"),
        ("FEDERATED", "x"),
        ("EXTERNAL", "file:/x"),
    ]:
        assert kind == _table(table_type=kind, format_properties={"location": location}).table_type
    with pytest.raises(InvalidDefinition, match="must be a full URI"):
        d.altered_table(_table(format_properties={"location": "data/t"}), table_type="EXTERNAL")


def test_dropping_a_key_column_is_refused() -> None:
    """The keys have to change with the schema."""
    old = _table(primary_keys=["a"], sort_keys=["b"])
    schema = pa.schema([("b", pa.string())])
    with pytest.raises(InvalidDefinition, match="primary_keys: the schema has no column with ID 1"):
        d.altered_table(old, schema=schema)
    new = d.altered_table(old, schema=schema, primary_keys=[])
    assert ([], [2]) == (list(new.primary_keys), list(new.sort_keys))


def test_a_view_has_one_query_in_one_or_more_dialects() -> None:
    """A new query replaces the old one in every dialect."""
    both = [{"sql": "SELECT 1", "dialect": "spark"}, pb.SQLRepresentation(sql="SELECT 1", dialect="trino")]
    view = d.view_def(
        sql_representations=both,
        referenced_object_full_names=["a.b", ("c.d", "e"), pb.FullName(namespace_name="f", name="g")],
    )
    assert [("sql", "spark"), ("sql", "trino")] == [(each.type, each.dialect) for each in view.sql_representations]
    assert [("a", "b"), ("c.d", "e"), ("f", "g")] == [
        (n.namespace_name, n.name) for n in view.referenced_object_full_names
    ]
    new = d.altered_view(view, sql="SELECT 2", referenced_object_full_names=[])
    assert [("SELECT 2", "spark")] == [(each.sql, each.dialect) for each in new.sql_representations]
    assert (view.id, 0, 2) == (new.id, len(new.referenced_object_full_names), len(view.sql_representations))
    java = pb.ViewDef(id="j", substrait_read_rel=b"x")
    assert java.HasField("substrait_read_rel")
    assert not d.altered_view(java, sql="SELECT 3").HasField("substrait_read_rel")
    assert b"x" == d.altered_view(java, properties={"a": "b"}).substrait_read_rel


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "a view needs sql or sql_representations"),
        ({"sql": ""}, "the SQL of a view must not be empty"),
        ({"sql": "SELECT 1", "dialect": ""}, "the dialect of a view must not be empty"),
        ({"sql": "SELECT 1", "sql_representations": []}, "not both"),
        ({"sql_representations": []}, "must not be empty"),
        ({"sql_representations": ["SELECT 1"]}, "is a mapping with sql and dialect, not 'SELECT 1'"),
        ({"sql_representations": [{"sql": "SELECT 1", "dialekt": "x"}]}, "is a mapping with sql and dialect"),
        (
            {"sql_representations": [{"sql": "SELECT 1", "dialect": "x"}] * 2},
            "two SQL representations in the dialect 'x'",
        ),
        ({"sql": "SELECT 1", "schema_binding": True}, "schema_binding needs a schema"),
        ({"sql": "SELECT 1", "schema_binding": 1}, "schema_binding must be True or False"),
        ({"sql": "SELECT 1", "referenced_object_full_names": ["a"]}, "'namespace.name', or a pair"),
        ({"sql": "SELECT 1", "referenced_object_full_names": ["a.b.c"]}, "where a name holds a dot"),
        ({"sql": "SELECT 1", "referenced_object_full_names": [("a",)]}, "or a pair"),
        ({"sql": "SELECT 1", "referenced_object_full_names": [("a", "")]}, "must not be empty"),
    ],
)
def test_wrong_views_are_refused(arguments: dict[str, Any], message: str) -> None:
    """Each refusal says what would be right."""
    with pytest.raises(InvalidDefinition, match=message):
        d.view_def(**arguments)


def test_a_bound_view_keeps_its_schema() -> None:
    """The binding and the schema go together."""
    view = d.view_def("SELECT 1", schema=pa.schema([("a", pa.int32())]), schema_binding=True)
    assert ([1], True) == ([column.id for column in view.schema.columns], view.schema_binding)
    assert not d.altered_view(view, schema_binding=False).schema_binding


# --- differences ------------------------------------------------------------------------------


def test_column_differences() -> None:
    """Columns are added, removed, changed and renamed, at any depth, and keys change by name."""
    old = _table(primary_keys=["a"], properties={"x": "1", "y": "2"})
    arrow = d.schema_to_arrow(old.schema)
    inner = arrow.field(2).type.field(0)
    nested = arrow.field(2).with_type(pa.struct([inner.with_type(pa.int64())]))
    schema = pa.schema([pa.field("c", pa.decimal128(9, 2), nullable=False), arrow.field(1).with_name("bb"), nested])
    new = d.altered_table(old, schema=schema, primary_keys=["c"], properties={"x": None, "y": "3", "z": "4"})
    a, b, x = (
        {"id": n, "name": name, "type": kind, "nullable": True}
        for n, name, kind in [(1, "a", "INT8"), (2, "b", "VARCHAR"), (4, "x", "INT4")]
    )
    assert [
        {"what": "column", "change": "removed", "name": "a", "old": a},
        {
            "what": "column",
            "change": "added",
            "name": "c",
            "new": {"id": 5, "name": "c", "type": "DECIMAL(9, 2)", "nullable": False},
        },
        {"what": "column", "change": "changed", "name": "bb", "old": b, "new": b | {"name": "bb"}},
        {"what": "column", "change": "changed", "name": "s.x", "old": x, "new": x | {"type": "INT8"}},
        {"what": "field", "change": "changed", "name": "primary_keys", "old": ["a"], "new": ["c"]},
        {"what": "property", "change": "removed", "name": "x", "old": "1"},
        {"what": "property", "change": "changed", "name": "y", "old": "2", "new": "3"},
        {"what": "property", "change": "added", "name": "z", "new": "4"},
    ] == d.describe_difference(old, new)


def test_column_order_is_a_difference() -> None:
    """Only the order changed."""
    old = d.table_def(pa.schema([("a", pa.int32()), ("b", pa.int32())]))
    new = d.altered_table(old, schema=pa.schema([("b", pa.int32()), ("a", pa.int32())]))
    change = {"what": "field", "change": "changed", "name": "column_order", "old": ["a", "b"], "new": ["b", "a"]}
    assert [change] == d.describe_difference(old, new)


def test_a_renamed_struct_is_one_difference() -> None:
    """Its fields are the same fields."""
    old = _table()
    arrow = d.schema_to_arrow(old.schema)
    new = d.altered_table(old, schema=arrow.set(2, arrow.field(2).with_name("t")))
    assert [("t", "changed", "s", "t")] == [
        (each["name"], each["change"], each["old"]["name"], each["new"]["name"])
        for each in d.describe_difference(old, new)
    ]


def test_differences_of_other_definitions() -> None:
    """Queries, format properties, snapshots and plain fields, all ready for JSON."""
    view = d.view_def("SELECT 1")
    lakehouse = d.new_lakehouse_def()
    other = d.altered_lakehouse(lakehouse)
    other.snapshots["s"].version = 4
    table = _table()
    external = d.altered_table(table, table_type="EXTERNAL", format_properties={"location": "s3://b/t"})
    changes = [
        *d.describe_difference(view, d.altered_view(view, sql="SELECT 2")),
        *d.describe_difference(lakehouse, other),
        *d.describe_difference(table, external),
        *d.describe_difference(pb.ViewDef(substrait_read_rel=b"x"), pb.ViewDef(substrait_read_rel=b"y")),
        *d.describe_difference(view, d.altered_view(view, schema=pa.schema([("n", pa.map_(pa.string(), pa.int16()))]))),
    ]
    assert [
        ("field", "changed", "sql_representations"),
        ("snapshot", "added", "s"),
        ("field", "changed", "table_type"),
        ("format_property", "added", "location"),
        ("field", "changed", "substrait_read_rel"),
        ("column", "added", "n"),
        ("column", "added", "n.key"),
        ("column", "added", "n.value"),
    ] == [(each["what"], each["change"], each["name"]) for each in changes]
    json.dumps(changes)
    with pytest.raises(InvalidInput, match="cannot compare a ViewDef with a TableDef"):
        d.describe_difference(view, table)
