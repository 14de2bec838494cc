"""Definitions: what a lakehouse says about itself, its namespaces, tables and views (format, section 5)."""

from trinitylake_core.definitions.codec import (
    DECODERS,
    Definition,
    decode_lakehouse,
    decode_namespace,
    decode_table,
    decode_transaction,
    decode_view,
    encode,
    has_checksum,
    to_dict,
)
from trinitylake_core.definitions.difference import column_paths, describe_difference
from trinitylake_core.definitions.encoded import encoded_column, encoded_rest, encoded_table, encoded_type
from trinitylake_core.definitions.lakehouse import (
    altered_lakehouse,
    commit_buffer_bytes,
    effective,
    key_table_max_bytes,
    new_lakehouse_def,
)
from trinitylake_core.definitions.objects import (
    AnySchema,
    altered_namespace,
    altered_table,
    namespace_def,
    table_def,
)
from trinitylake_core.definitions.options import LakehouseOptions, TableChanges, TableOptions, ViewChanges, ViewOptions
from trinitylake_core.definitions.schema import schema_from_arrow, schema_to_arrow
from trinitylake_core.definitions.schema_checks import check_schema
from trinitylake_core.definitions.trinitylake_pb2 import (
    Column,
    DataType,
    FullName,
    IsolationLevel,
    LakehouseDef,
    NamespaceDef,
    Schema,
    SnapshotDef,
    SQLRepresentation,
    TableDef,
    TransactionDef,
    ViewDef,
)
from trinitylake_core.definitions.views import altered_view, view_def

__all__ = [
    "DECODERS",
    "AnySchema",
    "Column",
    "DataType",
    "Definition",
    "FullName",
    "IsolationLevel",
    "LakehouseDef",
    "LakehouseOptions",
    "NamespaceDef",
    "SQLRepresentation",
    "Schema",
    "SnapshotDef",
    "TableChanges",
    "TableDef",
    "TableOptions",
    "TransactionDef",
    "ViewChanges",
    "ViewDef",
    "ViewOptions",
    "altered_lakehouse",
    "altered_namespace",
    "altered_table",
    "altered_view",
    "check_schema",
    "column_paths",
    "commit_buffer_bytes",
    "decode_lakehouse",
    "decode_namespace",
    "decode_table",
    "decode_transaction",
    "decode_view",
    "describe_difference",
    "effective",
    "encode",
    "encoded_column",
    "encoded_rest",
    "encoded_table",
    "encoded_type",
    "has_checksum",
    "key_table_max_bytes",
    "namespace_def",
    "new_lakehouse_def",
    "schema_from_arrow",
    "schema_to_arrow",
    "table_def",
    "to_dict",
    "view_def",
]
