"""The definition of a view ↔ its Iceberg metadata: the definition is the view, and holds all that the metadata say."""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic import BaseModel
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import transform_dict_value_to_str
from pyiceberg.view.metadata import ViewHistoryEntry, ViewMetadata, ViewVersion

from trinitylake_core.definitions import ViewDef
from trinitylake_core.iceberg.border import in_our_words, validate_as, without_code
from trinitylake_core.iceberg.schemas import schema_from_iceberg, schema_to_iceberg
from trinitylake_core.iceberg.views.view_metadata import current, schema_of
from trinitylake_core.tables import VIEW_METADATA_LOCATION

PREFIX: Final = "iceberg."
"""Properties of a view definition for which the format has no field; PyIceberg does not get them."""
_LOCATION: Final = f"{PREFIX}location"
_VERSION: Final = f"{PREFIX}version"
_OLDER: Final = f"{PREFIX}older"
"""The versions, schemas and the log that a replaced view still has, beside its current version."""


def view_fields(metadata: ViewMetadata, stored_location: str) -> dict[str, Any]:
    """Return the fields of a definition that are equal to the metadata.

    ``stored_location`` is their file, as the definition has it: a path below the root, or a URI.
    """
    version = current(metadata)
    properties = {
        name: value
        for name, value in transform_dict_value_to_str(metadata.properties).items()
        if not name.startswith(PREFIX)
    }
    properties[_LOCATION] = metadata.location
    properties[VIEW_METADATA_LOCATION] = stored_location
    properties[_VERSION] = _as_json(version, exclude={"representations"})
    schema = _with_ids_from_one(schema_of(metadata, version.schema_id))
    has_only_this_version = (
        metadata.schemas == [schema] and metadata.versions == [version] and metadata.version_log == [log_entry(version)]
    )
    if not has_only_this_version:
        properties[_OLDER] = _as_json(metadata, include={"schemas", "versions", "version_log"})
    return {
        "schema": schema_from_iceberg(schema),
        "sql_representations": [each.root.model_dump() for each in version.representations],
        "properties": properties,
    }


def view_from_definition(namespace: str, name: str, definition: ViewDef, default_location: str) -> ViewMetadata:
    """Return the metadata that a definition describes. Its schema and queries are those of the current version.

    Raises ``ValidationError``: the definition does not describe a view.
    """
    with in_our_words(f"the definition of view {namespace}.{name}"):
        version = _current_version(namespace, definition)
        older = json.loads(definition.properties.get(_OLDER, "{}"))
        schema = _current_schema(definition, version, older.get("schemas", []))
        fields = {
            "view-uuid": definition.id,
            "format-version": 1,
            "location": definition.properties.get(_LOCATION) or default_location,
            "schemas": _replacing(older.get("schemas", []), "schema-id", version.schema_id, schema),
            "current-version-id": version.version_id,
            "versions": _replacing(older.get("versions", []), "version-id", version.version_id, version),
            "version-log": older.get("version-log") or [log_entry(version)],
            "properties": {key: value for key, value in definition.properties.items() if not key.startswith(PREFIX)},
        }
        return without_code(validate_as(ViewMetadata, fields))


def log_entry(version: ViewVersion) -> ViewHistoryEntry:
    """Return the entry of the log by which a version became the current one."""
    return validate_as(ViewHistoryEntry, {"timestamp-ms": version.timestamp_ms, "version-id": version.version_id})


def _current_version(namespace: str, definition: ViewDef) -> ViewVersion:
    stored: dict[str, Any] = {"version-id": 1, "schema-id": 0, "timestamp-ms": 0}
    stored |= json.loads(definition.properties.get(_VERSION, "{}"))
    stored["default-namespace"] = tuple(stored.get("default-namespace", ())) or tuple(namespace.split("."))
    stored["representations"] = [
        {"type": "sql", "sql": each.sql, "dialect": each.dialect} for each in definition.sql_representations
    ]
    return validate_as(ViewVersion, stored)


def _current_schema(definition: ViewDef, version: ViewVersion, older: list[Any]) -> Schema:
    """Return the schema of the definition; with the IDs that the client gave it, where they are stored beside it."""
    schema = schema_to_iceberg(definition.schema).model_copy(update={"schema_id": version.schema_id})
    for each in older:
        stored = validate_as(Schema, each)
        if stored.schema_id == schema.schema_id and _with_ids_from_one(stored).as_struct() == schema.as_struct():
            return stored
    return schema


def _with_ids_from_one(schema: Schema) -> Schema:
    """Return a schema with column IDs that the format can hold: they begin with 1, and with 0 in Spark's views."""
    if all(each > 0 for each in schema.field_ids):
        return schema
    return assign_fresh_schema_ids(schema)


def _replacing(stored: list[dict[str, Any]], key: str, number: int, newest: Schema | ViewVersion) -> list[Any]:
    """Return the stored entries, with the one of the definition in place of the entry of this number."""
    found: dict[int, Any] = {each[key]: each for each in stored}
    found[number] = newest
    return list(found.values())


def _as_json(model: BaseModel, **fields: Any) -> str:
    return json.dumps(model.model_dump(mode="json", by_alias=True, exclude_none=True, **fields), sort_keys=True)
