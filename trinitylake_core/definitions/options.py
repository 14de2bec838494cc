"""The keywords of the front door, so that a type checker sees a wrong name or a wrong type.

They are those of ``new_lakehouse_def``, ``table_def``, ``altered_table``, ``view_def`` and ``altered_view``, which say
what each means; a test compares the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from trinitylake_core.definitions.objects import AnySchema, FullNames, Keys, Representations


class LakehouseOptions(TypedDict, total=False):
    """What ``Lakehouse.create`` takes for the definition of the lakehouse; ``None`` is the default of the format."""

    order: int | None
    namespace_name_max_size_bytes: int | None
    table_name_max_size_bytes: int | None
    view_name_max_size_bytes: int | None
    node_file_max_size_bytes: int | None
    properties: Mapping[str, str] | None
    txn_ttl_millis: int | None
    txn_isolation_level: str | None


class _TableKeys(TypedDict, total=False):
    primary_keys: Keys | None
    distribution_keys: Keys | None
    sort_keys: Keys | None
    unique_columns: Keys | None


class TableOptions(_TableKeys, total=False):
    """What ``create_table`` takes beside names and schema."""

    table_format: str
    table_type: str
    format_properties: Mapping[str, str] | None
    properties: Mapping[str, str] | None


class TableChanges(_TableKeys, total=False):
    """What ``alter_table`` takes: ``None`` leaves a field alone, and as the value of a property removes it."""

    schema: AnySchema | None
    table_format: str | None
    table_type: str | None
    format_properties: Mapping[str, str | None] | None
    properties: Mapping[str, str | None] | None


class _ViewText(TypedDict, total=False):
    dialect: str
    sql_representations: Representations | None
    schema: AnySchema | None
    referenced_object_full_names: FullNames | None


class ViewOptions(_ViewText, total=False):
    """What ``create_view`` takes beside names and query."""

    schema_binding: bool
    properties: Mapping[str, str] | None


class ViewChanges(_ViewText, total=False):
    """What ``replace_view`` takes beside names and query; ``None`` as in ``TableChanges``."""

    schema_binding: bool | None
    properties: Mapping[str, str | None] | None
