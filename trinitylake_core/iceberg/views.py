"""Views: the definition is the view, and no metadata file is written. The lakehouse keeps its older versions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError as PydanticError
from pyiceberg.exceptions import (
    NoSuchNamespaceError,
    NoSuchViewError,
    ValidationError,
    ViewAlreadyExistsError,
)
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.types import transform_dict_value_to_str
from pyiceberg.view import View
from pyiceberg.view.metadata import (
    SQLViewRepresentation,
    ViewHistoryEntry,
    ViewMetadata,
    ViewRepresentation,
    ViewVersion,
)

from trinitylake_core.catalog import CatalogView
from trinitylake_core.definitions import ViewDef
from trinitylake_core.errors import AlreadyExists, InvalidName, ObjectNotFound
from trinitylake_core.iceberg.change import Attempt
from trinitylake_core.iceberg.errors import no_view, translated
from trinitylake_core.iceberg.schemas import schema_from_iceberg, schema_to_iceberg
from trinitylake_core.iceberg.tables import Tables
from trinitylake_core.keys import TABLE

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX: Final = "iceberg."
"""Properties of a view definition that say what the format has no field for; PyIceberg does not see them."""
_LOCATION: Final = f"{PREFIX}location"
_VERSION: Final = f"{PREFIX}version"


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

    def load_view(self, identifier: str | Identifier) -> View:
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
    ) -> View:
        """Create a view.

        Raises:
            ViewAlreadyExistsError: a view or a table of this name is there.
            NoSuchNamespaceError: the namespace is not there.
            BadRequestError, ValidationError: a name, or a view, that the lakehouse cannot hold.
        """
        namespace, name = self._split(identifier, NoSuchNamespaceError)
        fresh = assign_fresh_schema_ids(self._convert_schema_if_needed(schema))
        own = {_VERSION: _version_json(view_version)} | ({_LOCATION: location.rstrip("/")} if location else {})

        def create(change: Attempt) -> View:
            self._make_namespace(change, namespace)
            try:
                change.txn.need_absent(TABLE, namespace, name)
                made = change.txn.create_view(
                    namespace,
                    name,
                    schema=schema_from_iceberg(fresh),
                    sql_representations=[each.root.model_dump() for each in view_version.representations],
                    properties=transform_dict_value_to_str(dict(properties)) | own,
                )
            except AlreadyExists as error:
                raise ViewAlreadyExistsError(f"View {namespace}.{name} cannot be created: {error}") from None
            return self._view(namespace, name, made)

        with translated():
            return self._change(create, f"create view {namespace}.{name}")

    def register_view(self, identifier: str | Identifier, metadata_location: str) -> View:
        """Create a view that says what the newest version in a file of view metadata says.

        Raises what :meth:`create_view` raises, and ``FileNotFoundError``.
        """
        with self._load_file_io(location=metadata_location).new_input(metadata_location).open() as stream:
            data = stream.read()
        try:
            found = ViewMetadata.model_validate_json(data)
            version = next(each for each in found.versions if each.version_id == found.current_version_id)
            schema = next(each for each in found.schemas if each.schema_id == version.schema_id)
        except (PydanticError, StopIteration) as error:
            raise ValidationError(f"{metadata_location} is not a file of view metadata: {error}") from error
        return self.create_view(identifier, schema, version, found.location, found.properties)

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
            self._make_namespace(change, to_namespace)
            try:
                change.txn.need_absent(TABLE, to_namespace, to_name)
                change.txn.rename_view(namespace, name, to_namespace, to_name)
            except AlreadyExists:
                raise ViewAlreadyExistsError(f"View {to_namespace}.{to_name} already exists") from None

        with translated():
            self._change(rename, f"rename view {namespace}.{name} to {to_namespace}.{to_name}")

    def _view(self, namespace: str, name: str, definition: ViewDef) -> View:
        properties = dict(definition.properties)
        stored = json.loads(properties.get(_VERSION, "{}"))
        default_namespace = tuple(stored.pop("default-namespace", ()) or namespace.split("."))
        version = ViewVersion.model_validate(
            {"timestamp-ms": 0, **stored, "schema-id": 0, "representations": _representations(definition)}
            | {"default-namespace": default_namespace}
        )
        location = properties.get(_LOCATION) or f"{self._places.base}views/{namespace}/{name}"
        metadata = ViewMetadata.model_validate(
            {
                "view-uuid": definition.id,
                "format-version": 1,
                "location": location,
                "schemas": [schema_to_iceberg(definition.schema)],
                "current-version-id": version.version_id,
                "versions": [version],
                "version-log": [
                    ViewHistoryEntry.model_validate(
                        {"timestamp-ms": version.timestamp_ms, "version-id": version.version_id}
                    )
                ],
                "properties": {key: value for key, value in properties.items() if not key.startswith(PREFIX)},
            }
        )
        return View(self._identifier(namespace, name), metadata)


def _view_def(view: CatalogView, namespace: str, name: str) -> ViewDef:
    try:
        return view.view(namespace, name)
    except (ObjectNotFound, InvalidName):
        raise no_view(namespace, name) from None


def _representations(definition: ViewDef) -> list[ViewRepresentation]:
    return [
        ViewRepresentation(SQLViewRepresentation(type="sql", sql=each.sql, dialect=each.dialect))
        for each in definition.sql_representations
    ]


def _version_json(version: ViewVersion) -> str:
    """Return the fields of a view version except schema and queries, which the definition contains itself."""
    found = version.model_dump(by_alias=True, exclude_none=True, exclude={"representations", "schema_id"})
    return json.dumps(found, sort_keys=True)
