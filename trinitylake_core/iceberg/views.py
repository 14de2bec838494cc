"""Views: the definition is the view. A metadata file with the same content is written for other catalogs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchViewError, ViewAlreadyExistsError
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import TableProperties
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.view import View
from pyiceberg.view.metadata import ViewMetadata, ViewVersion

from trinitylake_core.catalog import CatalogView
from trinitylake_core.commits.commit import new_id, now_millis
from trinitylake_core.definitions import ViewDef
from trinitylake_core.errors import AlreadyExists, InvalidName, ObjectNotFound
from trinitylake_core.iceberg import border
from trinitylake_core.iceberg.change import Attempt
from trinitylake_core.iceberg.errors import no_view, translated
from trinitylake_core.iceberg.tables import Tables
from trinitylake_core.iceberg.view_fields import log_entry, view_fields, view_from_definition
from trinitylake_core.iceberg.view_metadata import (
    AssertViewUUID,
    ViewUpdate,
    refuse_repeated_dialects,
    set_by,
    updated,
)
from trinitylake_core.keys import TABLE, VIEW
from trinitylake_core.tables import VIEW_METADATA_LOCATION, path_below

if TYPE_CHECKING:
    import pyarrow as pa

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
        border.refuse_code(properties, f"view {namespace}.{name}")
        metadata = border.validated(
            ViewMetadata,
            {
                "view-uuid": "",
                "format-version": 1,
                "location": location.rstrip("/") if location else self._places.new_location(namespace, name, parent),
                "schemas": [schema.model_copy(update={"schema_id": 0})],
                "current-version-id": version.version_id,
                "versions": [version],
                "version-log": [log_entry(version)],
                "properties": dict(properties),
            },
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
            border.refuse_code(set_by(updates), f"view {namespace}.{name}")
            with border.in_our_words(f"the commit to view {namespace}.{name}"):
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

    def register_view(self, identifier: str | Identifier, metadata_location: str) -> StoredView:
        """Create a view that is equal to the newest version in a file of view metadata.

        Raises what :meth:`create_view` raises, and ``FileNotFoundError``.
        """
        with translated():
            found = border.view_metadata(self._places.content(metadata_location), metadata_location)
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
        """Return the view that a definition describes. Raises ``ValidationError``."""
        default = f"{self._places.base}views/{namespace}/{name}"
        metadata = view_from_definition(namespace, name, definition, default)
        stored = definition.properties.get(VIEW_METADATA_LOCATION, "")
        location = self._places.full(stored) if stored else ""
        return StoredView(self._identifier(namespace, name), metadata, location)

    def _fields(self, metadata: ViewMetadata, location: str) -> dict[str, Any]:
        """Return the fields of the definition of a view whose metadata file is at a location."""
        return view_fields(metadata, path_below(self._places.storage.root, location) or location)


def _view_def(view: CatalogView, namespace: str, name: str) -> ViewDef:
    try:
        return view.view(namespace, name)
    except (ObjectNotFound, InvalidName):
        raise no_view(namespace, name) from None
