"""Views: functions over one view of the catalog, which read, and over one attempt at a change.

The definition is the view. A metadata file with the same content is written for other catalogs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyiceberg.exceptions import ViewAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.typedef import Identifier, Properties
from pyiceberg.view import View
from pyiceberg.view.metadata import ViewMetadata, ViewVersion

from trinitylake_core import clock
from trinitylake_core.catalog import CatalogView
from trinitylake_core.definitions import ViewDef
from trinitylake_core.errors import AlreadyExists, InvalidName, ObjectNotFound
from trinitylake_core.grounds import Identity
from trinitylake_core.iceberg import border
from trinitylake_core.iceberg.attempt import Attempt
from trinitylake_core.iceberg.errors import no_view
from trinitylake_core.iceberg.names import CatalogName
from trinitylake_core.iceberg.namespaces import make_namespace, rename_object
from trinitylake_core.iceberg.rights.locations import Place, directories_of
from trinitylake_core.iceberg.rights.metadata_files import MetadataFiles
from trinitylake_core.iceberg.views.view_fields import log_entry, view_fields, view_from_definition
from trinitylake_core.iceberg.views.view_metadata import (
    AssertViewUUID,
    ViewUpdate,
    refuse_repeated_dialects,
    set_by,
    update_metadata,
)
from trinitylake_core.keys import TABLE, VIEW
from trinitylake_core.tables import VIEW_METADATA_LOCATION, path_below

ViewCommit = tuple[tuple[AssertViewUUID, ...], tuple[ViewUpdate, ...]]
"""What must hold of a view, and what to change."""


class StoredView(View):
    """A view, with the file of its metadata for other catalogs; "" where the library made the view."""

    def __init__(self, identifier: Identifier, metadata: ViewMetadata, metadata_location: str) -> None:
        super().__init__(identifier, metadata)
        self.metadata_location = metadata_location


class NewView(NamedTuple):
    """The metadata of a view that is to be created, and their file if there is one already."""

    metadata: ViewMetadata
    written: str | None = None


# -- reading -----------------------------------------------------------------------------------------


def definition_of_view(view: CatalogView, name: CatalogName) -> ViewDef:
    """Return the definition of a view. Raises ``NoSuchViewError``."""
    try:
        return view.view(*name)
    except (ObjectNotFound, InvalidName):
        raise no_view(*name) from None


def view_of(places: MetadataFiles, name: CatalogName, definition: ViewDef) -> StoredView:
    """Return the view that a definition describes. Raises ``ValidationError``: it describes none."""
    default = places.locations.directory_of_view(name, definition.id)
    metadata = view_from_definition(name.namespace, name.name, definition, default)
    stored = definition.properties.get(VIEW_METADATA_LOCATION, "")
    return StoredView(name.identifier, metadata, places.full(stored) if stored else "")


def new_view(schema: Schema, version: ViewVersion, location: str, properties: Properties) -> ViewMetadata:
    """Return the metadata of a new view. Raises ``ValidationError``: two queries in one dialect, or no view at all."""
    version = version.model_copy(update={"schema_id": 0})
    refuse_repeated_dialects(version)
    fields = {
        "view-uuid": "",
        "format-version": 1,
        "location": location,
        "schemas": [schema.model_copy(update={"schema_id": 0})],
        "current-version-id": version.version_id,
        "versions": [version],
        "version-log": [log_entry(version)],
        "properties": dict(properties),
    }
    return border.validate_as(ViewMetadata, fields)


# -- changing ----------------------------------------------------------------------------------------


def create_view(attempt: Attempt, name: CatalogName, new: NewView, directories: Sequence[str] = ()) -> StoredView:
    """Create the view that metadata describe, if no other object has one of some directories.

    Raises ``ViewAlreadyExistsError``, ``NoSuchNamespaceError``, ``ValidationError``, ``TableForbidden``.
    """
    attempt.claim(name, directories=directories)
    make_namespace(attempt, name.namespace)
    for kind, taken in ((TABLE, "Table with same name"), (VIEW, "View")):
        try:
            attempt.txn.need_absent(kind, *name)
        except AlreadyExists:
            raise ViewAlreadyExistsError(f"{taken} already exists: {name}") from None
    if new.written is not None and attempt.places.serves_clients:
        identity = Identity("", new.written, attempt.places.own_directory(new.written) or "")
        attempt.claim(name, identity, identity.directories)
    location = new.written or attempt.places.new_metadata_file(new.metadata, new.metadata.current_version_id)
    made = attempt.txn.create_view(*name, **view_fields(new.metadata, _as_stored(attempt.places, location)))
    view = view_of(attempt.places, name, made)
    if new.written is None:
        attempt.write_metadata(name, view.metadata, location)
        return view
    attempt.take_over(name, None, new.written, None)
    return view


def register_view(attempt: Attempt, name: CatalogName, metadata_location: str) -> StoredView:
    """Create the view that a file describes. Raises as :func:`create_view`, and ``MetadataMissing``."""
    places = attempt.places
    attempt.require_owners(name, metadata_location)  # before it is looked at whether there is such a file
    metadata = border.view_metadata(places.content(metadata_location), metadata_location)
    border.refuse_code(metadata.properties, f"view {name}")
    own = places.own_directory(metadata_location)
    directories = places.refuse_registered_view(metadata, [] if own is None else [own])
    return create_view(attempt, name, NewView(metadata, metadata_location), directories)


def commit_view(attempt: Attempt, name: CatalogName, commit: ViewCommit) -> StoredView:
    """Apply updates to a view, if it still meets the requirements.

    Raises:
        CommitFailedException: a requirement is not met.
        ValidationError: an update that cannot be carried out.
        NoSuchViewError: the view is not there.
        TableForbidden: a place that the view may not use.
    """
    places = attempt.places
    requirements, updates = commit
    old = definition_of_view(attempt.txn, name)
    before = view_of(places, name, old)
    for requirement in requirements:
        requirement.validate_view(before.metadata)
    border.refuse_code(set_by(updates), f"view {name}")
    with border.in_our_words(f"the commit to view {name}"):
        metadata = update_metadata(before.metadata, updates, clock.now_millis())
    if metadata == before.metadata:
        return before
    location = places.new_metadata_file(metadata, metadata.current_version_id)
    directories = _refuse_change(places, metadata, location, before)
    attempt.claim(name, directories=directories)
    fields = view_fields(metadata, _as_stored(places, location))
    fields["properties"] = dict.fromkeys(old.properties) | fields["properties"]
    view = view_of(places, name, attempt.txn.replace_view(*name, **fields))
    attempt.write_metadata(name, view.metadata, location)
    return view


def _refuse_change(places: MetadataFiles, metadata: ViewMetadata, location: str, before: StoredView) -> list[str]:
    """Refuse a place that a view names anew, outside what is allowed and where the view is already.

    Return the directories that no other object may have.
    """
    directories = []
    for file in (f"{before.metadata.location.rstrip('/')}/metadata/_", before.metadata_location):
        own = places.own_directory(file) if file else None
        if own is not None:
            directories.append(own)
    if before.metadata_location:
        above, _, _ = before.metadata_location.rpartition("/")
        directories.append(above)
    known = {each.location for each in directories_of(before.metadata)}
    named = [Place("the new metadata file", location)]
    for each in places.directories_of(metadata, location):
        if each.location not in known:
            named.append(each)
    return places.locations.shared_ground(named, directories)


def rename_view(attempt: Attempt, old: CatalogName, new: CatalogName) -> None:
    """Rename a view. Raises ``NoSuchViewError``, ``NoSuchNamespaceError``, ``ViewAlreadyExistsError``."""
    definition_of_view(attempt.txn, old)
    rename_object(attempt, VIEW, old, new)


def drop_view(attempt: Attempt, name: CatalogName) -> None:
    """Drop a view. Raises ``NoSuchViewError``."""
    definition_of_view(attempt.txn, name)
    attempt.txn.drop_view(*name)


def _as_stored(places: MetadataFiles, location: str) -> str:
    """Return a location as a definition has it: a path below the root, or a URI."""
    return path_below(places.storage.root, location) or location
