"""Views: the definition is the view. A metadata file with the same content is written for other catalogs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel
from pydantic import ValidationError as PydanticError
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchViewError, ValidationError, ViewAlreadyExistsError
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import TableProperties
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.types import transform_dict_value_to_str
from pyiceberg.view import View
from pyiceberg.view.metadata import ViewHistoryEntry, ViewMetadata, ViewVersion

from trinitylake_core.catalog import CatalogView
from trinitylake_core.commits.commit import new_id, now_millis
from trinitylake_core.definitions import ViewDef
from trinitylake_core.errors import AlreadyExists, InvalidName, ObjectNotFound
from trinitylake_core.iceberg.change import Attempt
from trinitylake_core.iceberg.errors import no_view, translated
from trinitylake_core.iceberg.schemas import schema_from_iceberg, schema_to_iceberg
from trinitylake_core.iceberg.tables import Tables
from trinitylake_core.iceberg.view_metadata import (
    AssertViewUUID,
    ViewUpdate,
    current,
    refuse_repeated_dialects,
    schema_of,
    updated,
)
from trinitylake_core.keys import TABLE, VIEW
from trinitylake_core.tables import VIEW_METADATA_LOCATION, path_below

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX: Final = "iceberg."
"""Properties of a view definition for which the format has no field; PyIceberg does not get them."""
_LOCATION: Final = f"{PREFIX}location"
_VERSION: Final = f"{PREFIX}version"
_OLDER: Final = f"{PREFIX}older"
"""The versions, schemas and the log that a replaced view still has, beside its current version."""
ViewCommit = tuple[tuple[AssertViewUUID, ...], tuple[ViewUpdate, ...]]
"""What must hold of a view, and what to change."""


class StoredView(View):
    """A view, with the file of its metadata for other catalogs; "" where the library made the view."""

    def __init__(self, identifier: Identifier, metadata: ViewMetadata, metadata_location: str) -> None:
        super().__init__(identifier, metadata)
        self.metadata_location = metadata_location


class Views(Tables):
    """The part of the catalog that keeps views."""

    def list_views(self, namespace: str | Identifier) -> list[Identifier]:
        """Return the views in a namespace. Raises ``NoSuchNamespaceError``."""
        return self._names(namespace, lambda view, text: view.views(text))

    def view_exists(self, identifier: str | Identifier) -> bool:
        """Return whether there is a view of this name."""
        try:
            namespace, name = self._split(identifier, NoSuchViewError)
            with translated():
                self._read(lambda view: _view_def(view, namespace, name))
        except NoSuchViewError:
            return False
        return True

    def load_view(self, identifier: str | Identifier) -> StoredView:
        """Return a view. Raises ``NoSuchViewError``."""
        namespace, name = self._split(identifier, NoSuchViewError)
        with translated():
            return self._view(namespace, name, self._read(lambda view: _view_def(view, namespace, name)))

    def create_view(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        view_version: ViewVersion,
        location: str | None = None,
        properties: Properties = EMPTY_DICT,
    ) -> StoredView:
        """Create a view.

        Raises:
            ViewAlreadyExistsError: a view or a table of this name is there.
            NoSuchNamespaceError: the namespace is not there.
            BadRequestError, ValidationError: a name, or a view, that the lakehouse cannot hold.
        """
        fresh = assign_fresh_schema_ids(self._convert_schema_if_needed(schema))
        return self.create_view_as_is(identifier, fresh, view_version, location, properties)

    def create_view_as_is(
        self,
        identifier: str | Identifier,
        schema: Schema,
        view_version: ViewVersion,
        location: str | None = None,
        properties: Properties = EMPTY_DICT,
    ) -> StoredView:
        """Create a view whose columns keep the IDs that the schema gives them. Raises as :meth:`create_view`."""
        namespace, name = self._split(identifier, NoSuchNamespaceError)
        parent = None if location else self.load_namespace_properties(namespace).get("location")
        version = view_version.model_copy(update={"schema_id": 0})
        refuse_repeated_dialects(version)
        metadata = ViewMetadata.model_validate(
            {
                "view-uuid": "",
                "format-version": 1,
                "location": location.rstrip("/") if location else self._places.new_location(namespace, name, parent),
                "schemas": [schema.model_copy(update={"schema_id": 0})],
                "current-version-id": version.version_id,
                "versions": [version],
                "version-log": [_log_entry(version)],
                "properties": dict(properties),
            }
        )
        return self._create_view(namespace, name, metadata)

    def _create_view(self, namespace: str, name: str, metadata: ViewMetadata, written: str | None = None) -> StoredView:
        """Create the view that the metadata describe; ``written`` is their file, if there is one already."""
        location = written or self._new_file(metadata)

        def create(change: Attempt) -> StoredView:
            self._make_namespace(change, namespace)
            for kind, taken in ((TABLE, "Table with same name"), (VIEW, "View")):
                try:
                    change.txn.need_absent(kind, namespace, name)
                except AlreadyExists:
                    raise ViewAlreadyExistsError(f"{taken} already exists: {namespace}.{name}") from None
            made = change.txn.create_view(namespace, name, **self._fields(metadata, location))
            view = self._view(namespace, name, made)
            if written is None:
                change.write_metadata(view.metadata, location)
            else:
                change.take_over(None, written, None)
            return view

        with translated():
            return self._change(create, f"create view {namespace}.{name}")

    def commit_view(self, identifier: str | Identifier, commit: ViewCommit) -> StoredView:
        """Apply updates to a view, if it still meets the requirements. One ``put`` more than a commit of the lakehouse.

        Raises:
            CommitFailedException: a requirement is not met.
            ValidationError: an update that cannot be carried out.
            NoSuchViewError: the view is not there.
        """
        namespace, name = self._split(identifier, NoSuchViewError)
        requirements, updates = commit

        def replace(change: Attempt) -> StoredView:
            old = _view_def(change.txn, namespace, name)
            before = self._view(namespace, name, old)
            for requirement in requirements:
                requirement.validate_view(before.metadata)
            metadata = updated(before.metadata, updates, now_millis())
            if metadata == before.metadata:
                return before
            location = self._new_file(metadata, before)
            fields = self._fields(metadata, location)
            fields["properties"] = dict.fromkeys(old.properties) | fields["properties"]
            view = self._view(namespace, name, change.txn.replace_view(namespace, name, **fields))
            change.write_metadata(view.metadata, location)
            return view

        with translated():
            return self._change(replace, f"replace view {namespace}.{name}")

    def _new_file(self, metadata: ViewMetadata, old: StoredView | None = None) -> str:
        """Return the location of a new metadata file. Raises ``ForbiddenError``: not where this catalog may write."""
        directory = metadata.properties.get(TableProperties.WRITE_METADATA_PATH) or f"{metadata.location}/metadata"
        location = f"{directory.rstrip('/')}/{metadata.current_version_id:05d}-{new_id()}.metadata.json"
        known = []
        if old is not None and old.metadata_location:
            known = [old.metadata_location.rpartition("/")[0], old.metadata.location]
        with translated():
            self._places.refuse_outside([metadata.location, location], known)
        return location

    def _fields(self, metadata: ViewMetadata, location: str) -> dict[str, Any]:
        """Return the fields of a definition that are equal to the metadata."""
        version = current(metadata)
        own = {
            _LOCATION: metadata.location,
            VIEW_METADATA_LOCATION: path_below(self._places.storage.root, location) or location,
            _VERSION: _json(version, exclude={"representations"}),
        }
        held = _held(schema_of(metadata, version.schema_id))
        alone = [held], [version], [_log_entry(version)]
        if (metadata.schemas, metadata.versions, metadata.version_log) != alone:
            own[_OLDER] = _json(metadata, include={"schemas", "versions", "version_log"})
        return {
            "schema": schema_from_iceberg(held),
            "sql_representations": [each.root.model_dump() for each in version.representations],
            "properties": transform_dict_value_to_str(metadata.properties) | own,
        }

    def register_view(self, identifier: str | Identifier, metadata_location: str) -> StoredView:
        """Create a view that is equal to the newest version in a file of view metadata.

        Raises what :meth:`create_view` raises, and ``FileNotFoundError``.
        """
        with self._load_file_io(location=metadata_location).new_input(metadata_location).open() as stream:
            data = stream.read()
        try:
            found = ViewMetadata.model_validate_json(data)
        except PydanticError as error:
            count = error.error_count()
            raise ValidationError(f"{metadata_location} is not a file of view metadata: {count} errors") from error
        namespace, name = self._split(identifier, NoSuchNamespaceError)
        return self._create_view(namespace, name, found, metadata_location)

    def drop_view(self, identifier: str | Identifier) -> None:
        """Drop a view. Raises ``NoSuchViewError``."""
        namespace, name = self._split(identifier, NoSuchViewError)

        def drop(change: Attempt) -> None:
            _view_def(change.txn, namespace, name)
            change.txn.drop_view(namespace, name)

        with translated():
            self._change(drop, f"drop view {namespace}.{name}")

    def rename_view(self, from_identifier: str | Identifier, to_identifier: str | Identifier) -> None:
        """Rename a view, in one version.

        Raises:
            NoSuchViewError, NoSuchNamespaceError: the view, or the new namespace, is not there.
            ViewAlreadyExistsError: a view or a table of the new name is there.
        """
        namespace, name = self._split(from_identifier, NoSuchViewError)
        to_namespace, to_name = self._split(to_identifier, NoSuchNamespaceError)

        def rename(change: Attempt) -> None:
            _view_def(change.txn, namespace, name)
            self._rename(change, VIEW, (namespace, name), (to_namespace, to_name))

        with translated():
            self._change(rename, f"rename view {namespace}.{name} to {to_namespace}.{to_name}")

    def _view(self, namespace: str, name: str, definition: ViewDef) -> StoredView:
        """Return the view that a definition describes. Its schema and queries are those of the current version."""
        properties = dict(definition.properties)
        stored = {"version-id": 1, "schema-id": 0, "timestamp-ms": 0} | json.loads(properties.get(_VERSION, "{}"))
        stored["default-namespace"] = tuple(stored.get("default-namespace", ())) or tuple(namespace.split("."))
        sql = [{"type": "sql", "sql": each.sql, "dialect": each.dialect} for each in definition.sql_representations]
        version = ViewVersion.model_validate({**stored, "representations": sql})
        schema = schema_to_iceberg(definition.schema).model_copy(update={"schema_id": version.schema_id})
        older = json.loads(properties.get(_OLDER, "{}"))
        for each in map(Schema.model_validate, older.get("schemas", [])):
            if each.schema_id == schema.schema_id and _held(each).as_struct() == schema.as_struct():
                schema = each
        fields = {
            "view-uuid": definition.id,
            "format-version": 1,
            "location": properties.get(_LOCATION) or f"{self._places.base}views/{namespace}/{name}",
            "schemas": _with(older.get("schemas", []), "schema-id", schema),
            "current-version-id": version.version_id,
            "versions": _with(older.get("versions", []), "version-id", version),
            "version-log": older.get("version-log") or [_log_entry(version)],
            "properties": {key: value for key, value in properties.items() if not key.startswith(PREFIX)},
        }
        location = properties.get(VIEW_METADATA_LOCATION, "")
        at = self._places.full(location) if location else ""
        return StoredView(self._identifier(namespace, name), ViewMetadata.model_validate(fields), at)


def _view_def(view: CatalogView, namespace: str, name: str) -> ViewDef:
    try:
        return view.view(namespace, name)
    except (ObjectNotFound, InvalidName):
        raise no_view(namespace, name) from None


def _held(schema: Schema) -> Schema:
    """Return a schema with column IDs that the format can hold: they begin with 1, and with 0 in Spark's views."""
    return schema if all(each > 0 for each in schema.field_ids) else assign_fresh_schema_ids(schema)


def _with(stored: list[dict[str, Any]], number: str, newest: Schema | ViewVersion) -> list[Any]:
    """Return the stored entries, with the definition itself in place of the entry of the same number."""
    found: dict[int, Any] = {each[number]: each for each in stored}
    found[newest.schema_id if isinstance(newest, Schema) else newest.version_id] = newest
    return list(found.values())


def _log_entry(version: ViewVersion) -> ViewHistoryEntry:
    return ViewHistoryEntry.model_validate({"timestamp-ms": version.timestamp_ms, "version-id": version.version_id})


def _json(model: BaseModel, **fields: Any) -> str:
    return json.dumps(model.model_dump(mode="json", by_alias=True, exclude_none=True, **fields), sort_keys=True)
