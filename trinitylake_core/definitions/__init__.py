"""Definitions: lakehouse, namespaces, tables and views (format, section 5)."""

from trinitylake_core.definitions.codec import (
    DECODERS,
    Definition,
    ObjectDef,
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
from trinitylake_core.definitions.lakehouse import (
    LakehouseOptions,
    altered_lakehouse,
    commit_buffer_bytes,
    effective,
    key_table_max_bytes,
    lost_versions,
    new_lakehouse_def,
    usual_order,
)
from trinitylake_core.definitions.objects import (
    AnySchema,
    TableChanges,
    TableOptions,
    ViewChanges,
    ViewOptions,
    altered_namespace,
    altered_table,
    altered_view,
    namespace_def,
    table_def,
    view_def,
)
from trinitylake_core.definitions.schema import check_schema, schema_from_arrow, schema_to_arrow
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
