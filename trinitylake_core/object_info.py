"""Definitions as programs use them: Arrow schemas, columns by name, whole URIs (format, section 5).

The messages are not changed (`definition`), and nothing is read from the storage. Values are derived on access. So the
properties of a definition can be read even where a newer release wrote its schema.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from trinitylake_core.definitions import NamespaceDef, Schema, TableDef, ViewDef, column_paths, schema_to_arrow
from trinitylake_core.short_repr import first_of
from trinitylake_core.tables import SNAPSHOT_ID, metadata_uri, table_location, whole_number

_SHOWN_COLUMNS: Final = 10


class _Info:
    """The values that every definition has."""

    __slots__ = ()
    definition: NamespaceDef | TableDef | ViewDef

    @property
    def id(self) -> str:
        """Its ID, which no other object has. It survives a rename."""
        return self.definition.id

    @property
    def properties(self) -> dict[str, str]:
        """Its properties; a copy."""
        return dict(self.definition.properties)


@dataclass(frozen=True, slots=True)
class NamespaceInfo(_Info):
    """A namespace, as its definition describes it."""

    name: str
    definition: NamespaceDef = field(repr=False)

    def __repr__(self) -> str:
        return f"NamespaceInfo({self.name!r}, properties={self.properties!r})"


@dataclass(frozen=True, slots=True)
class TableInfo(_Info):
    """A table, as its definition describes it. The table's own files are not read.

    Attributes:
        root: root URI of the lakehouse, on which the locations of MANAGED tables rest.
        definition: the message, as ``Lakehouse.table`` returns it.
    """

    namespace: str
    name: str
    root: str
    definition: TableDef

    def __repr__(self) -> str:
        """Show attributes by their names, so that what is seen can be asked for."""
        names = first_of([column.name for column in self.definition.schema.columns], _SHOWN_COLUMNS)
        return (
            f"TableInfo(namespace={self.namespace!r}, name={self.name!r}, schema=<{names}>, format={self.format!r}, "
            f"location={self.definition.format_properties.get('location')!r})"
        )

    @property
    def schema(self) -> pa.Schema:
        """Its columns, as ``create_table`` accepts them. Field metadata keeps attributes that Arrow does not have.

        Raises ``InvalidDefinition`` where a column has a type that this release does not know.
        """
        return schema_to_arrow(self.definition.schema)

    @property
    def type(self) -> str:
        """``MANAGED``, ``EXTERNAL`` or ``FEDERATED``."""
        return self.definition.table_type

    @property
    def format(self) -> str:
        """The format of its data: ``ICEBERG``."""
        return self.definition.table_format

    @property
    def format_properties(self) -> dict[str, str]:
        """The properties of its format, as stored; a copy."""
        return dict(self.definition.format_properties)

    @property
    def location(self) -> str | None:
        """URI of the directory with its data, ``None`` where the definition names none.

        Raises ``InvalidLocation`` where that of a MANAGED table leads out of the lakehouse.
        """
        return table_location(self.root, self.definition)

    @property
    def metadata_location(self) -> str | None:
        """URI of its Iceberg metadata file, ``None`` where there is none yet. Raises as ``location`` does."""
        return metadata_uri(self.root, self.definition)

    @property
    def snapshot_id(self) -> int | None:
        """ID of its current Iceberg snapshot, ``None`` where the definition does not contain it."""
        return whole_number(self.definition.format_properties.get(SNAPSHOT_ID, ""))

    @property
    def primary_keys(self) -> list[str]:
        """Names of the primary key columns, dotted where nested."""
        return _names(self.definition.schema, self.definition.primary_keys)

    @property
    def distribution_keys(self) -> list[str]:
        """Names of the columns by which its data is distributed, dotted where nested."""
        return _names(self.definition.schema, self.definition.distribution_keys)

    @property
    def sort_keys(self) -> list[str]:
        """Names of the columns by which its data is sorted, dotted where nested."""
        return _names(self.definition.schema, self.definition.sort_keys)

    @property
    def unique_columns(self) -> list[str]:
        """Names of the columns whose values are unique, dotted where nested."""
        return _names(self.definition.schema, self.definition.unique_columns)


@dataclass(frozen=True, slots=True)
class ViewInfo(_Info):
    """A view, as its definition describes it."""

    namespace: str
    name: str
    definition: ViewDef

    def __repr__(self) -> str:
        return f"ViewInfo({self.namespace!r}, {self.name!r}, sql={self.sql!r})"

    @property
    def sql(self) -> dict[str, str]:
        """Its query by dialect; empty for a view that the published Java SDK stored as a Substrait relation."""
        return {each.dialect: each.sql for each in self.definition.sql_representations}

    @property
    def schema(self) -> pa.Schema | None:
        """Its columns, ``None`` where the definition names none. Raises ``InvalidDefinition`` for unknown types."""
        return schema_to_arrow(self.definition.schema) if self.definition.HasField("schema") else None

    @property
    def schema_binding(self) -> bool:
        """Whether the view keeps this schema when the tables that it reads change."""
        return self.definition.schema_binding

    @property
    def references(self) -> list[tuple[str, str]]:
        """Tables and views that it reads, as pairs of namespace and name."""
        return [(each.namespace_name, each.name) for each in self.definition.referenced_object_full_names]


def _names(schema: Schema, numbers: Iterable[int]) -> list[str]:
    """Return columns by name; one that the schema lacks stands as its number."""
    names = {column.id: path for path, column in column_paths(schema).items()}
    return [names.get(number, str(number)) for number in numbers]
