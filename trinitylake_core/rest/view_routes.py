"""Views: list, create, load, commit, rename, drop."""

from __future__ import annotations

import json

from pydantic import BaseModel, Field
from pyiceberg.catalog.rest import CreateViewRequest

from trinitylake_core.iceberg.border import as_json_for_clients
from trinitylake_core.iceberg.views.catalog_views import StoredView
from trinitylake_core.iceberg.views.view_metadata import AssertViewUUID, ViewUpdate
from trinitylake_core.rest.principals import MANAGE, READ, WRITE
from trinitylake_core.rest.problems import Problem
from trinitylake_core.rest.requests import NOTHING, Reply, Request
from trinitylake_core.rest.table_routes import page_of_names, renaming


class RegisterView(BaseModel):
    """A view whose metadata are already written."""

    name: str
    location: str = Field(alias="metadata-location")


class ViewCommit(BaseModel):
    """A commit to a view."""

    requirements: tuple[AssertViewUUID, ...] = ()
    updates: tuple[ViewUpdate, ...]


def list_views(request: Request) -> Reply:
    """Return the views of a namespace that the principal may read."""
    return page_of_names(request, request.warehouse.catalog.list_views)


def create_view(request: Request) -> Reply:
    """Create a view."""
    wanted = request.read_body(CreateViewRequest, location=None)
    identifier = (*request.namespace, wanted.name)
    request.require(MANAGE, identifier)
    view = request.warehouse.catalog.create_view_as_is(
        identifier, wanted.view_schema, wanted.view_version, wanted.location, wanted.properties
    )
    return _answer_with(request, view)


def register_view(request: Request) -> Reply:
    """Create a view that is already written."""
    wanted = request.read_body(RegisterView)
    request.asked.note_location(wanted.location)
    identifier = (*request.namespace, wanted.name)
    request.require(MANAGE, identifier)
    return _answer_with(request, request.warehouse.catalog.register_view(identifier, wanted.location))


def load_view(request: Request) -> Reply:
    """Return the metadata of a view."""
    request.require(READ, request.identifier)
    return _answer_with(request, request.warehouse.catalog.load_view(request.identifier))


def commit_view(request: Request) -> Reply:
    """Apply the updates of a commit to a view."""
    request.require(WRITE, request.identifier)
    commit = request.read_body(ViewCommit)
    view = request.warehouse.catalog.commit_view(request.identifier, (commit.requirements, commit.updates))
    return _answer_with(request, view)


def has_view(request: Request) -> Reply:
    """Answer whether there is a view."""
    request.require(READ, request.identifier)
    if not request.warehouse.catalog.view_exists(request.identifier):
        raise Problem(404, "NoSuchViewException", f"View {'.'.join(request.identifier)} does not exist")
    return NOTHING


def drop_view(request: Request) -> Reply:
    """Drop a view."""
    request.require(MANAGE, request.identifier)
    request.warehouse.catalog.drop_view(request.identifier)
    return NOTHING


def rename_view(request: Request) -> Reply:
    """Rename a view."""
    request.warehouse.catalog.rename_view(*renaming(request))
    return NOTHING


def _answer_with(request: Request, view: StoredView) -> Reply:
    metadata = json.loads(as_json_for_clients(view.metadata))
    version = view.metadata.current_version_id
    location = view.metadata_location or f"{view.metadata.location}/metadata/{version}.metadata.json"
    request.asked.note_location(location)
    return Reply({"metadata-location": location, "metadata": metadata, "config": request.warehouse.client_properties()})
