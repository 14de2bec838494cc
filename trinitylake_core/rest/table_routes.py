"""Tables: list, create, load, commit, rename, drop; several at once; what engines report."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pydantic import BaseModel, Field
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import Table, TableIdentifier
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import AssertCreate, TableRequirement
from pyiceberg.typedef import Identifier

from trinitylake_core import clock
from trinitylake_core.errors import Corrupt, FileMissing, StorageError
from trinitylake_core.iceberg.border import TableUpdate, as_json_for_clients
from trinitylake_core.iceberg.commit_rules.table_updates import order_times
from trinitylake_core.iceberg.rights.moved import MovedIO
from trinitylake_core.rest.namespace_routes import require_seen
from trinitylake_core.rest.principals import MANAGE, READ, WRITE, name_for_rights
from trinitylake_core.rest.problems import Problem, message_for_log
from trinitylake_core.rest.requests import NOTHING, SEPARATOR, Reply, Request, namespace_of
from trinitylake_core.tables import own_directory

if TYPE_CHECKING:
    from trinitylake_core.rest.lending import Lent
    from trinitylake_core.rest.warehouses import Warehouse

LOG: Final = logging.getLogger("trinitylake.rest")
_DELEGATION: Final = "x-iceberg-access-delegation"
_VENDED: Final = "vended-credentials"
_SIGNED: Final = "remote-signing"
_SIGNS_AT: Final = ("rest.remote-signing.endpoint", "signer.endpoint", "s3.signer.endpoint")
"""The names under which Iceberg 1.12, those before it, and PyIceberg look for the path at which requests are signed."""
_ABSENT: Final = {"location": None, "partition-spec": None, "write-order": None}


class CommitBody(BaseModel):
    """A commit to one table. The path names the table where there is only one."""

    identifier: TableIdentifier | None = None
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]


class Commits(BaseModel):
    """A commit to several tables."""

    changes: list[CommitBody] = Field(alias="table-changes")


class Register(BaseModel):
    """A table that is already written."""

    name: str
    location: str = Field(alias="metadata-location")
    overwrite: bool = False


class UnsignedRequest(BaseModel):
    """A request to the store that a client wants to have signed."""

    method: str
    uri: str
    headers: dict[str, list[str]] = Field(default_factory=dict)


class Rename(BaseModel):
    """The old and the new name of a table or a view."""

    source: TableIdentifier
    destination: TableIdentifier


def list_tables(request: Request) -> Reply:
    """Return the tables of a namespace that the principal may read."""
    return page_of_names(request, request.warehouse.catalog.list_tables)


def page_of_names(request: Request, find: Callable[[Identifier], list[Identifier]]) -> Reply:
    """Return a page of the tables or views that a function finds in a namespace."""
    require_seen(request, request.namespace)
    found = find(request.namespace)
    page, following = request.page([each for each in found if request.principal.may(READ, name_for_rights(each))])
    identifiers = [{"namespace": list(each[:-1]), "name": each[-1]} for each in page]
    return Reply({"identifiers": identifiers, "next-page-token": following})


def create_table(request: Request) -> Reply:
    """Create a table; staged, only its metadata are made, and a commit creates it."""
    wanted = request.read_body(CreateTableRequest, **_ABSENT)
    identifier = (*request.namespace, wanted.name)
    request.require(MANAGE, identifier)
    make = request.warehouse.catalog.stage_table if wanted.stage_create else request.warehouse.catalog.create_table
    table = make(
        identifier,
        wanted.table_schema,
        wanted.location,
        wanted.partition_spec or UNPARTITIONED_PARTITION_SPEC,
        wanted.write_order or UNSORTED_SORT_ORDER,
        wanted.properties,
    )
    return _answer_with(request, table, staged=wanted.stage_create)


def register_table(request: Request) -> Reply:
    """Add a table that is already written."""
    wanted = request.read_body(Register)
    request.asked.note_location(wanted.location)
    identifier = (*request.namespace, wanted.name)
    request.require(MANAGE, identifier)
    return _answer_with(
        request, request.warehouse.catalog.register_table(identifier, wanted.location, wanted.overwrite)
    )


def load_table(request: Request) -> Reply:
    """Return the metadata of a table, or 304 where the client has them already: then no metadata file is read."""
    request.require(READ, request.identifier)
    known = request.headers.get("if-none-match")
    if _wants_keys(request):
        known = None  # the keys that the client has with those metadata may have ended
    if known and known == _tag(request, request.warehouse.catalog.metadata_location(request.identifier)):
        return Reply(status=304, headers={"etag": known})
    return _answer_with(request, request.warehouse.catalog.load_table(request.identifier))


def load_table_of(request: Request, then: Warehouse) -> Reply:
    """Return the metadata of a table in another version of a warehouse, with keys where it has the directory now."""
    request.require(READ, request.identifier)
    return _answer_with(request, then.catalog.load_table(request.identifier))


def has_table(request: Request) -> Reply:
    """Answer whether there is a table."""
    request.require(READ, request.identifier)
    if not request.warehouse.catalog.table_exists(request.identifier):
        raise Problem(404, "NoSuchTableException", f"Table {'.'.join(request.identifier)} does not exist")
    return NOTHING


def commit_table(request: Request) -> Reply:
    """Apply the updates of a commit to one table."""
    request.require(WRITE, request.identifier)
    commit = request.read_body(CommitBody)
    _require_manage_to_create(request, request.identifier, commit)
    made = request.warehouse.catalog.commit_tables([(request.identifier, commit.requirements, commit.updates)])[0]
    return _at(request, made.metadata_location, made.metadata)


def commit_tables(request: Request) -> Reply:
    """Apply the updates of several tables as one version, or none of them."""
    commits = []
    for each in request.read_body(Commits).changes:
        if each.identifier is None:
            raise Problem(400, "BadRequestException", "each of 'table-changes' needs an 'identifier'")
        identifier = name_in_body(each.identifier)
        request.require(WRITE, identifier)
        _require_manage_to_create(request, identifier, each)
        commits.append((identifier, each.requirements, each.updates))
    if commits:
        request.warehouse.catalog.commit_tables(commits)
    return NOTHING


def _require_manage_to_create(request: Request, identifier: Identifier, commit: CommitBody) -> None:
    """Refuse a commit that creates a table to those who may only change it. Raises ``Problem`` (403)."""
    if any(isinstance(each, AssertCreate) for each in commit.requirements):
        request.require(MANAGE, identifier)


def drop_table(request: Request) -> Reply:
    """Drop a table; ``purgeRequested`` stands in the history, and a cleaning of tables removes the files of both."""
    request.require(MANAGE, request.identifier)
    if request.query.get("purgeRequested", "").lower() == "true":
        request.warehouse.catalog.purge_table(request.identifier)
    else:
        request.warehouse.catalog.drop_table(request.identifier)
    return NOTHING


def rename_table(request: Request) -> Reply:
    """Rename a table."""
    source, destination = renaming(request)
    request.warehouse.catalog.rename_table(source, destination)
    return NOTHING


def renaming(request: Request) -> tuple[Identifier, Identifier]:
    """Return the old and the new name, if the principal may manage both."""
    wanted = request.read_body(Rename)
    source, destination = name_in_body(wanted.source), name_in_body(wanted.destination)
    request.require(MANAGE, source)
    request.require(MANAGE, destination)
    return source, destination


def name_in_body(identifier: TableIdentifier) -> Identifier:
    """Return the name that a body contains."""
    return (*namespace_of(identifier.namespace.root), identifier.name)


def accept_metrics(request: Request) -> Reply:
    """Accept what an engine reports of a scan or a commit; it is not kept."""
    request.require(READ, request.identifier)
    request.json()
    return NOTHING


def load_credentials(request: Request) -> Reply:
    """Return keys for the directory of a table; none where this endpoint lends none."""
    request.require(READ, request.identifier)
    if request.warehouse.lender is None:
        return Reply({"storage-credentials": []})
    location = request.warehouse.catalog.metadata_location(request.identifier)
    lent = _lend(request, request.identifier, location)
    if lent is None:
        raise Problem(503, "ServiceUnavailableException", "no keys can be lent for this table now; try again later")
    return Reply({"storage-credentials": [lent.as_credential()]})


def sign_request(request: Request) -> Reply:
    """Sign a request for a file of a table, for a client without keys."""
    request.require(WRITE, request.identifier)
    signer = request.warehouse.signer
    if signer is None:
        raise Problem(404, "NotFoundException", "this endpoint signs no requests for this lakehouse")
    wanted = request.read_body(UnsignedRequest)
    headers = signer.sign_request(request.identifier, wanted.method, wanted.uri, wanted.headers)
    return Reply({"uri": wanted.uri, "headers": headers})


def _wants_keys(request: Request) -> bool:
    """Whether a client asks for keys, and there is somebody who lends some."""
    return request.warehouse.lender is not None and _VENDED in _ways_to_files(request)


def _ways_to_files(request: Request) -> list[str]:
    """Return the ways to the files of a table that a client asks for."""
    asked = request.headers.get(_DELEGATION, "")
    return [each.strip() for each in asked.split(",")]


def _lend(
    request: Request, identifier: Identifier, metadata_location: str, staged: TableMetadata | None = None
) -> Lent | None:
    """Return keys for the directory of a table, as the principal may read or write it; ``None``: there are none."""
    warehouse = request.warehouse
    if warehouse.lender is None:
        return None
    root = warehouse.catalog.root
    directory = own_directory(root, metadata_location)
    try:
        if directory is None or not warehouse.catalog.is_of_one_table(identifier, directory, staged):
            return None
    except (Corrupt, FileMissing, StorageError) as error:  # a table may be read although another one cannot
        LOG.warning("no keys are lent: whose directory it is cannot be read (%s)", message_for_log(error))
        return None
    may_write = request.principal.may(WRITE, name_for_rights(identifier))
    return warehouse.lender.lend(root, directory, request.principal.name, writes=may_write)


def _keys_for(request: Request, table: Table, staged: TableMetadata | None) -> dict[str, Any]:
    """Return the fields of an answer that say how a client reaches the files of a table.

    A client that asks for signatures may have requests for these files signed from now on.
    """
    config = request.warehouse.client_properties()
    ways = _ways_to_files(request)
    identifier = table.name()
    signer = request.warehouse.signer
    if signer is not None and _SIGNED in ways and table.metadata_location:
        config |= signer.admit_table(identifier, table.metadata_location)
        config |= dict.fromkeys(_SIGNS_AT, _path_of(request, identifier, "sign"))
    if _VENDED not in ways:
        return {"config": config}
    # A table that is only staged has no metadata file yet; of this name nothing counts but its directory.
    location = table.metadata_location or f"{table.metadata.location}/metadata/new"
    lent = _lend(request, identifier, location, staged)
    if lent is None:
        return {"config": config}
    config["client.refresh-credentials-endpoint"] = _path_of(request, identifier, "credentials")
    return {"config": config, "storage-credentials": [lent.as_credential()]}


def _path_of(request: Request, identifier: Identifier, what: str) -> str:
    """Return the path at which a client asks for something that it needs for the files of a table."""
    levels = SEPARATOR.join(identifier[:-1])
    parts = (request.warehouse.name, "namespaces", levels, "tables", identifier[-1], what)
    return "/".join(("v1", *(quote(each, safe="") for each in parts)))


def _answer_with(request: Request, table: Table, *, staged: bool = False) -> Reply:
    metadata = table.metadata
    if isinstance(table.io, MovedIO):
        raise table.io.refusal(".".join(table.name()))
    more = _keys_for(request, table, metadata if staged else None)
    if staged:
        return _say_what_is_lent(request, Reply(_text(metadata, **more)), more)
    if request.query.get("snapshots") == "refs":
        named = {each.snapshot_id for each in metadata.refs.values()}
        kept = [each for each in metadata.snapshots if each.snapshot_id in named]
        metadata = metadata.model_copy(update={"snapshots": kept})
    reply = _at(request, table.metadata_location, metadata, **more)
    return _say_what_is_lent(request, reply, more)


def _say_what_is_lent(request: Request, reply: Reply, fields: Mapping[str, Any]) -> Reply:
    """Return an answer with a header that says whether it has the keys that were asked for.

    No property says it: with one, DuckDB takes a table on a disk for one on S3.
    """
    if _DELEGATION not in request.headers:
        return reply
    lent = _VENDED if "storage-credentials" in fields else "none"
    headers = dict(reply.headers or {})
    headers[_DELEGATION] = lent
    return replace(reply, headers=headers)


def _at(request: Request, location: str, metadata: TableMetadata, **more: Any) -> Reply:
    request.asked.note_location(location)
    # Engines that write take the time of now for that of their update; it must not lie before the one before it.
    metadata = order_times(metadata, clock.now_millis())
    text = _text(metadata, **more, **{"metadata-location": location})
    return Reply(text, headers={"etag": _tag(request, location)})


def _text(metadata: TableMetadata, **more: Any) -> str:
    """Return metadata and more as one JSON object; large metadata are written once, and never parsed again."""
    return f'{json.dumps(more)[:-1]}, "metadata": {as_json_for_clients(metadata)}}}'


def _tag(request: Request, location: str) -> str:
    """Return the ETag of a table: a metadata file never changes, so its name identifies its content."""
    shown = f"{location} {request.query.get('snapshots', 'all')}"
    return f'"{hashlib.sha256(shown.encode()).hexdigest()[:32]}"'
