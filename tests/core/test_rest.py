"""The REST endpoint, by PyIceberg's own client and by plain requests: what works, and what bad input gets."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from uuid import UUID

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    ForbiddenError,
    NamespaceNotEmptyError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.types import StringType

from tests.support.icebergs import SCHEMA, ids, rows, write_empty_list
from tests.support.lakes import FAST
from tests.support.s3_servers import S3Server, free_port
from trinitylake_core import Lakehouse
from trinitylake_core.commits.changes import Fence, commit_summary
from trinitylake_core.commits.commit import commit
from trinitylake_core.errors import InvalidInput
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.rest import Limits, Principals, Served, Warehouses, application, serve
from trinitylake_core.rest.principals import Principal, hash_token
from trinitylake_core.rest.serving import running


@pytest.fixture
def catalog(served: Served) -> RestCatalog:
    return _client(served)


def _client(served: Served, **more: str) -> RestCatalog:
    made = load_catalog("lake", type="rest", **(served.properties() | more))
    assert isinstance(made, RestCatalog)
    return made


class Answer(NamedTuple):
    """What an endpoint answered."""

    status: int
    text: str
    headers: dict[str, str]

    def json(self) -> Any:
        """Return the body."""
        return json.loads(self.text)

    @property
    def problem(self) -> tuple[int, str]:
        """The status and the type of an error."""
        return self.status, self.json()["error"]["type"]


class Client:
    """Plain requests to an endpoint."""

    def __init__(self, uri: str, token: str | None = None) -> None:
        self.uri, self.token = uri, token

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send a request; a body that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        given = {"Content-Type": "application/json"}
        given |= {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"{self.uri}{path}", data, given, method=method)
        try:
            with urllib.request.urlopen(request) as answer:
                return Answer(answer.status, answer.read().decode(), dict(answer.headers))
        except HTTPError as error:
            with error:
                return Answer(error.code, error.read().decode(), dict(error.headers))


@pytest.fixture
def call(served: Served) -> Client:
    return Client(served.uri, served.token)


_FIELDS = {"type": "struct", "fields": [{"id": 1, "name": "x", "type": "long", "required": False}]}


# -- what clients do -----------------------------------------------------------------------------------


def test_a_table_is_written_evolved_renamed_and_dropped(catalog: RestCatalog, lake: Lakehouse) -> None:
    catalog.create_namespace("sales", {"owner": "emea"})
    table = catalog.create_table("sales.orders", SCHEMA)
    table.append(rows(1, 2))
    with table.update_schema() as change:
        change.add_column("city", StringType())
    table.delete("id = 1")
    assert [2] == ids(catalog.load_table("sales.orders"))
    catalog.rename_table("sales.orders", "sales.archive")
    assert [("sales", "archive")] == catalog.list_tables("sales")
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("sales")
    catalog.drop_table("sales.archive")
    catalog.drop_namespace("sales")
    assert [] == catalog.list_namespaces()
    reasons = [each.summary.get("reason") for each in lake.refresh().history()]
    assert "append sales.orders" in reasons
    assert [] == list(lake.refresh().check())


def test_a_created_table_with_rows_is_one_version(catalog: RestCatalog, lake: Lakehouse) -> None:
    catalog.create_namespace("a")
    before = lake.refresh().version
    with catalog.create_table_transaction("a.t", SCHEMA) as txn:
        txn.append(rows(7))
    assert [7] == ids(catalog.load_table("a.t"))
    assert before + 1 == lake.refresh().version


def test_a_name_is_taken_once(catalog: RestCatalog) -> None:
    catalog.create_namespace("a")
    catalog.create_table("a.t", SCHEMA)
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("a.t", SCHEMA)
    with pytest.raises(NoSuchTableError):
        catalog.load_table("a.none")


def _view(name: str, *queries: tuple[str, str], **properties: str) -> dict[str, Any]:
    return {
        "name": name,
        "schema": _FIELDS | {"schema-id": 0},
        "view-version": _view_version(*queries),
        "properties": properties,
    }


def _view_version(*queries: tuple[str, str]) -> dict[str, Any]:
    return {
        "version-id": 1,
        "timestamp-ms": 1,
        "schema-id": -1,
        "summary": {"engine": "spark"},
        "default-namespace": ["a"],
        "representations": [{"type": "sql", "sql": sql, "dialect": dialect} for dialect, sql in queries],
    }


_VIEWS = "/v1/lake/namespaces/a/views"


def test_of_eight_racing_transactions_over_two_tables_exactly_one_wins(lake: Lakehouse) -> None:
    """Through two endpoints, which know nothing of each other; both tables stand where the winner put them."""
    other = Lakehouse.open(lake.root, storage_options=FAST)
    names = ("t0", "t1")
    with _app(lake) as first, _app(other) as second:
        first("POST", "/v1/lake/namespaces", {"namespace": ["a"]})
        for name in names:
            first("POST", "/v1/lake/namespaces/a/tables", {"name": name, "schema": _FIELDS})
        places = [first("GET", f"/v1/lake/namespaces/a/tables/{name}").json()["metadata"]["location"] for name in names]
        before = None
        for turn in range(3):
            ready = threading.Barrier(8)

            def commit(number: int, turn: int = turn, ready: threading.Barrier = ready, before: Any = before) -> int:
                snapshot = turn * 100 + number + 1
                changes = [
                    _moves(name, place, before, snapshot, turn) for name, place in zip(names, places, strict=True)
                ]
                ready.wait()
                client = (first, second)[number % 2]
                return client("POST", "/v1/lake/transactions/commit", {"table-changes": changes}).status

            with ThreadPoolExecutor(8) as threads:
                statuses = list(threads.map(commit, range(8)))
            assert [204, *[409] * 7] == sorted(statuses)
            found = [first("GET", f"/v1/lake/namespaces/a/tables/{name}").json()["metadata"] for name in names]
            before = turn * 100 + statuses.index(204) + 1
            assert [before, before] == [each["current-snapshot-id"] for each in found]


def _moves(name: str, place: str, before: int | None, snapshot: int, turn: int) -> dict[str, Any]:
    """Return the change that moves the main branch of a table to a new snapshot, if it stands where it stood."""
    listed = f"{place}/metadata/{snapshot}.avro"
    write_empty_list(listed)
    made = {
        "snapshot-id": snapshot,
        "sequence-number": turn + 1,
        "timestamp-ms": time.time_ns() // 1_000_000,
        "manifest-list": listed,
        "summary": {"operation": "append"},
        "schema-id": 0,
    } | ({} if before is None else {"parent-snapshot-id": before})
    return {
        "identifier": {"namespace": ["a"], "name": name},
        "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": before}],
        "updates": [
            {"action": "add-snapshot", "snapshot": made},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot},
        ],
    }


def test_a_view_is_created_loaded_renamed_and_dropped(call: Client, catalog: RestCatalog) -> None:
    catalog.create_namespace("a")
    made = call("POST", _VIEWS, _view("v", ("spark", "select 1 x"), owner="emea")).json()
    assert "select 1 x" == made["metadata"]["versions"][0]["representations"][0]["sql"]
    assert [("a", "v")] == catalog.list_views("a")
    names = {"source": {"namespace": ["a"], "name": "v"}, "destination": {"namespace": ["a"], "name": "w"}}
    assert 204 == call("POST", "/v1/lake/views/rename", names).status
    assert made == call("GET", f"{_VIEWS}/w").json()
    catalog.drop_view("a.w")
    assert not catalog.view_exists("a.w")
    again = {"name": "again", "metadata-location": made["metadata-location"]}
    registered = call("POST", "/v1/lake/namespaces/a/register-view", again).json()["metadata"]
    assert made["metadata"] | {"view-uuid": registered["view-uuid"]} == registered


def test_a_view_is_replaced_and_keeps_its_older_versions(call: Client, catalog: RestCatalog, lake: Lakehouse) -> None:
    catalog.create_namespace("a")
    made = call("POST", _VIEWS, _view("v", ("spark", "select 1 x"), owner="emea")).json()["metadata"]

    def replace(number: int, *more: dict[str, Any], uuid: str = made["view-uuid"]) -> Answer:
        columns = _FIELDS | {"schema-id": 7, "fields": [{"id": 1, "name": "y", "type": "string", "required": False}]}
        updates = [
            {"action": "add-schema", "schema": columns, "last-column-id": 1},
            {"action": "add-view-version", "view-version": _view_version(("spark", f"select {number} y"))},
            {"action": "set-current-view-version", "view-version-id": -1},
        ]
        needs = [{"type": "assert-view-uuid", "uuid": uuid}]
        return call("POST", f"{_VIEWS}/v", {"requirements": needs, "updates": [*updates, *more]})

    properties = [
        {"action": "set-properties", "updates": {"tier": "gold"}},
        {"action": "remove-properties", "removals": ["owner", "none"]},
    ]
    found = replace(2, *properties).json()["metadata"]
    assert (2, [1, 2], [0, 1]) == (
        found["current-version-id"],
        [each["version-id"] for each in found["versions"]],
        [each["schema-id"] for each in found["schemas"]],
    )
    assert {"tier": "gold"} == found["properties"]
    assert found == call("GET", f"{_VIEWS}/v").json()["metadata"]
    assert {"spark": "select 2 y"} == lake.refresh().view_info("a", "v").sql
    back = {"updates": [{"action": "set-current-view-version", "view-version-id": 1}]}
    assert {"spark": "select 1 x"} == _after(call("POST", f"{_VIEWS}/v", back), lake)
    for number in range(3, 15):
        found = replace(number).json()["metadata"]
    assert 10 == len(found["versions"])
    assert (409, "CommitFailedException") == replace(20, uuid=str(UUID(int=1))).problem
    assert (400, "IllegalArgumentException") == call(
        "POST", f"{_VIEWS}/v", {"updates": [{"action": "set-current-view-version", "view-version-id": 99}]}
    ).problem
    assert [] == list(lake.refresh().check())


def _after(answer: Answer, lake: Lakehouse) -> dict[str, str]:
    assert 200 == answer.status, answer.text
    return lake.refresh().view_info("a", "v").sql


def test_a_view_whose_columns_count_from_zero_comes_back_as_it_was(call: Client, catalog: RestCatalog) -> None:
    """As Spark makes them; the format counts from one."""
    catalog.create_namespace("a")
    fields = [{"id": number, "name": f"c{number}", "type": "long", "required": False} for number in range(2)]
    body = _view("v", ("spark", "select 1 c0, 2 c1"))
    body["schema"] = {"type": "struct", "schema-id": 0, "fields": fields}
    assert fields == call("POST", _VIEWS, body).json()["metadata"]["schemas"][0]["fields"]
    properties = {"updates": [{"action": "set-properties", "updates": {"k": "v"}}]}
    for answer in (call("POST", f"{_VIEWS}/v", properties), call("GET", f"{_VIEWS}/v")):
        assert fields == answer.json()["metadata"]["schemas"][0]["fields"]


def test_a_dialect_of_a_view_is_not_lost_by_accident(call: Client, catalog: RestCatalog) -> None:
    catalog.create_namespace("a")
    both = ("spark", "select 1 x"), ("trino", "select 1 x")
    call("POST", _VIEWS, _view("v", *both))
    twice = call("POST", _VIEWS, _view("w", ("spark", "select 1 x"), ("Spark", "select 2 x")))
    assert (400, "IllegalArgumentException") == twice.problem
    updates = [
        {"action": "add-view-version", "view-version": _view_version(("spark", "select 3 x")) | {"schema-id": 0}},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]
    refused = call("POST", f"{_VIEWS}/v", {"updates": updates})
    assert (400, "replace.drop-dialect.allowed") == (refused.status, refused.text.split("(")[1].split("=")[0])
    allowed = {"action": "set-properties", "updates": {"replace.drop-dialect.allowed": "true"}}
    assert 200 == call("POST", f"{_VIEWS}/v", {"updates": [allowed, *updates]}).status


def test_ids_that_another_client_has_taken_are_given_anew(call: Client, catalog: RestCatalog) -> None:
    """Two clients that replace a table from one state choose the same IDs for what they add."""
    catalog.create_namespace("a")
    catalog.create_table("a.t", SCHEMA)

    def replace(field: str, source: int) -> dict[str, Any]:
        order = {"transform": "identity", "source-id": source, "direction": "asc", "null-order": "nulls-first"}
        columns = {
            "type": "struct",
            "schema-id": 1,
            "fields": [{"id": 1, "name": field, "type": "long", "required": False}],
        }
        updates = [
            {"action": "add-schema", "schema": columns, "last-column-id": 2},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-sort-order", "sort-order": {"order-id": 1, "fields": [order | {"direction": field}]}},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "remove-properties", "removals": ["not there"]},
        ]
        return call("POST", "/v1/lake/namespaces/a/tables/t", {"requirements": [], "updates": updates}).json()

    replace("asc", 1)
    again = replace("desc", 1)["metadata"]
    assert ([0, 1, 2], [0, 1, 2]) == (
        [each["schema-id"] for each in again["schemas"]],
        [each["order-id"] for each in again["sort-orders"]],
    )
    back = replace("asc", 1)["metadata"]
    assert (1, 1, 3) == (back["current-schema-id"], back["default-sort-order-id"], len(back["schemas"]))


def test_lists_come_in_pages(call: Client, catalog: RestCatalog) -> None:
    for number in range(5):
        catalog.create_namespace(f"n{number}")
    found, token = [], ""
    while token is not None:
        page = call("GET", f"/v1/lake/namespaces?pageSize=2&pageToken={token}").json()
        assert len(page["namespaces"]) <= 2
        found += page["namespaces"]
        token = page["next-page-token"]
    assert [[f"n{number}"] for number in range(5)] == found


def test_a_table_that_the_client_knows_is_not_read_again(call: Client, catalog: RestCatalog, lake: Lakehouse) -> None:
    catalog.create_namespace("a")
    catalog.create_table("a.t", SCHEMA)
    path = "/v1/lake/namespaces/a/tables/t"
    known = call("GET", path).headers["etag"]
    before = lake.storage.counts.snapshot()
    assert (304, "") == call("GET", path, If_None_Match=known)[:2]
    spent = lake.storage.counts - before
    assert (4, 0) == (spent.get, spent.list)  # one root is read; the table's metadata are not
    catalog.load_table("a.t").append(rows(1))
    assert 200 == call("GET", path, If_None_Match=known).status


def test_old_versions_are_warehouses_that_nothing_changes(
    served: Served, call: Client, catalog: RestCatalog, lake: Lakehouse
) -> None:
    catalog.create_namespace("a")
    table = catalog.create_table("a.t", SCHEMA)
    table.append(rows(1))
    version = lake.refresh().version
    lake.refresh().create_snapshot("monday")
    table.append(rows(2))
    for name in (f"lake@{version}", "lake@monday"):
        past = _client(served, warehouse=name)
        assert [1] == ids(past.load_table("a.t"))
        with pytest.raises(ForbiddenError):
            past.drop_table("a.t")
    assert (404, "NotFoundException") == call("GET", "/v1/config?warehouse=lake@tuesday").problem


# -- who may do what -----------------------------------------------------------------------------------


@contextmanager
def _app(lake: Lakehouse, limits: Limits | None = None, **principals: dict[str, list[str]]) -> Iterator[Client]:
    known = Principals({hash_token(f"{name}-token"): Principal(name, allowed) for name, allowed in principals.items()})
    with running(application(Warehouses({"lake": lambda: lake}), known if principals else None, limits)) as uri:
        yield Client(uri)


def test_a_principal_sees_and_changes_what_patterns_allow_and_is_the_author(lake: Lakehouse) -> None:
    with _app(lake, etl={"manage": ["sales", "sales.*"]}, reader={"read": ["sales.public*"]}) as client:
        etl, reader = (Client(client.uri, f"{name}-token") for name in ("etl", "reader"))
        assert 200 == etl("POST", "/v1/lake/namespaces", {"namespace": ["sales"]}).status
        denied = etl("POST", "/v1/lake/namespaces", {"namespace": ["hr"]})
        assert (403, "etl may not manage 'hr'") == (denied.status, denied.json()["error"]["message"])
        for name in ("public", "secret"):
            assert 200 == etl("POST", "/v1/lake/namespaces/sales/tables", {"name": name, "schema": _FIELDS}).status
        listed = reader("GET", "/v1/lake/namespaces/sales/tables").json()["identifiers"]
        assert ["public"] == [each["name"] for each in listed]
        assert 403 == reader("GET", "/v1/lake/namespaces/sales/tables/secret").status
        assert 403 == reader("DELETE", "/v1/lake/namespaces/sales/tables/public").status
        assert [401, 401] == [Client(client.uri, token)("GET", "/v1/config").status for token in (None, "x")]
    assert "etl" == lake.refresh().info().summary["author"]


def test_what_is_frozen_is_not_taken_for_what_exists(served: Served, lake: Lakehouse) -> None:
    """A client that creates "if it is not there" would go on as if it was."""
    catalog = _client(served)
    catalog.create_namespace("a")
    catalog.create_table("a.t", SCHEMA)
    lake.refresh().freeze(reason="incident")
    with pytest.raises(RESTError, match="is frozen"):
        catalog.create_namespace_if_not_exists("b")
    with pytest.raises(RESTError, match="is frozen"):
        catalog.create_table_if_not_exists("a.new", SCHEMA)
    with pytest.raises(CommitFailedException, match="is frozen"):
        catalog.load_table("a.t").transaction().set_properties(a="b").commit_transaction()
    for answer in (
        Client(served.uri, served.token)("DELETE", "/v1/lake/namespaces/a"),
        Client(served.uri, served.token)("POST", "/v1/lake/namespaces/a/views", _view("v", ("spark", "select 1"))),
    ):
        assert answer.status in {409, 503}
        assert "CommitFailedException" != answer.problem[1]


@pytest.mark.s3
def test_clients_learn_where_the_storage_is_and_no_credentials(moto_server: S3Server) -> None:
    lake = Lakehouse.create(moto_server.new_root(), storage_options=moto_server.options)
    with _app(lake) as client:
        client("POST", "/v1/lake/namespaces", {"namespace": ["a"]})
        made = client("POST", "/v1/lake/namespaces/a/tables", {"name": "t", "schema": _FIELDS})
        config = client("GET", "/v1/config")
    assert moto_server.options["endpoint_url"] == config.json()["defaults"]["s3.endpoint"]
    for text in (config.text, made.text):
        assert "secret" not in text.lower()
        assert "access-key" not in text


def test_no_client_connects_where_a_table_says(lake: Lakehouse, catalog: RestCatalog) -> None:
    """PyIceberg takes the properties of a table for those of its connection, and signs what it sends there."""
    evil = {
        "s3.proxy-uri": "http://127.0.0.1:9",
        "s3.endpoint": "http://127.0.0.1:9",
        " S3.Signer.uri": "http://127.0.0.1:9",
        "client.role-arn": "arn:aws:iam::1:role/x",
        "adls.account-host": "127.0.0.1:9",
        "gcs.service.host": "http://127.0.0.1:9",
        "hf.endpoint": "http://127.0.0.1:9",
        "uri": "http://127.0.0.1:9",
    }
    catalog.create_namespace("a")
    made = catalog.create_table("a.t", SCHEMA, properties=evil | {"owner": "me"})
    with made.transaction() as change:
        change.set_properties(owner="you")
    loaded = catalog.load_table("a.t")
    for table in (made, loaded):
        assert {"owner": "you"} == table.properties
        assert "http://127.0.0.1:9" not in table.io.properties.values()
        assert evil.keys().isdisjoint(table.io.properties.keys() - {"uri"})
    stored = TrinityLakeCatalog.over(lake).load_table("a.t")
    assert evil.items() <= stored.properties.items()


def test_a_wrong_token_is_refused_in_the_words_of_the_client(served: Served) -> None:
    with pytest.raises(UnauthorizedError, match="not known"):
        _client(served, token="guess")


def test_an_endpoint_that_others_reach_needs_principals(lake: Lakehouse) -> None:
    with pytest.raises(InvalidInput, match="--tokens"):
        serve(Warehouses({"lake": lambda: lake}), host="0.0.0.0")


@pytest.mark.parametrize("text", ["", "principals: []", "principals: {a: {}}", "principals: {a: {token_sha256: x}}"])
def test_a_file_of_principals_that_is_wrong_is_named(tmp_path: Path, text: str) -> None:
    (path := tmp_path / "tokens.yaml").write_text(text)
    with pytest.raises(InvalidInput, match=r"tokens\.yaml"):
        Principals.of_file(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{a: {token_sha256: 'HASH0', read: 'sales.*'}}", r"a\.read: it is no list"),
        ("{a: {token_sha256: 'HASH0', write: [1]}}", r"a\.write\.0: it is no text"),
        ("{a: {token_sha256: 'HASH0', read: ['*']}, b: {token_sha256: 'HASH0'}}", "b has the token of a"),
        ("{a: {token_sha256: 'éHASH'}}", r"a\.token_sha256: it is not a SHA-256"),
    ],
)
def test_a_file_of_principals_grants_only_what_it_lists(tmp_path: Path, text: str, problem: str) -> None:
    """A pattern without its brackets was a list of characters, of which * allowed everything."""
    (path := tmp_path / "tokens.yaml").write_text(f"principals: {text.replace('HASH', '0' * 63)}", encoding="utf-8")
    with pytest.raises(InvalidInput, match=problem):
        Principals.of_file(path)


def test_a_commit_makes_the_endpoint_read_no_file_of_its_machine(lake: Lakehouse, call: Client, tmp_path: Path) -> None:
    """Since the first cleaning of tables, it reads the manifests of commits: /dev/zero would have no end."""
    call("POST", "/v1/lake/namespaces", {"namespace": ["a"]})
    call("POST", "/v1/lake/namespaces/a/tables", {"name": "t", "schema": _FIELDS})
    (secret := tmp_path / "secret").write_bytes(b"x")
    path = "/v1/lake/namespaces/a/tables/t"
    commit(lake.backend, lake.backend.newest(), Fence(1, commit_summary(), of_tables=True))
    for uri in (secret.as_uri(), (tmp_path / "missing").as_uri(), "file:///dev/zero", "/dev/zero"):
        snapshot = {
            "snapshot-id": 1,
            "sequence-number": 1,
            "timestamp-ms": int(time.time() * 1000),
            "manifest-list": uri,
        }
        update = {"action": "add-snapshot", "snapshot": snapshot | {"summary": {"operation": "append"}, "schema-id": 0}}
        answer = call("POST", path, {"requirements": [], "updates": [update]})
        assert (403, "ForbiddenException") == answer.problem
        assert "is outside what this catalog may use" in answer.text


# -- what bad input gets -------------------------------------------------------------------------------

_TABLE = "/v1/lake/namespaces/a/tables/t"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("POST", "/v1/lake/namespaces", b"{", 400, "BadRequestException"),
        ("POST", "/v1/lake/namespaces", b"[]", 400, "BadRequestException"),
        ("POST", "/v1/lake/namespaces", b"[" * 100_000, 400, "BadRequestException"),
        ("POST", "/v1/lake/namespaces", b'{"namespace": "a"}', 400, "BadRequestException"),
        ("POST", "/v1/lake/namespaces", b'{"namespace": []}', 400, "BadRequestException"),
        ("POST", "/v1/lake/namespaces", b'{"namespace": ["a.b"]}', 400, "BadRequestException"),
        ("POST", "/v1/lake/namespaces", b'{"namespace": ["a"], "properties": {"x": 1}}', 400, "BadRequestException"),
        ("POST", "/v1/lake/namespaces", b'{"namespace": ["a"]}', 409, "AlreadyExistsException"),
        ("POST", "/v1/lake/namespaces/a/properties", b'{"removals": ["x"], "updates": {"x": "1"}}', 422,
         "UnprocessableEntityException"),
        ("GET", "/v1/lake/namespaces?pageSize=many", None, 400, "BadRequestException"),
        ("GET", "/v1/lake/namespaces/none", None, 404, "NoSuchNamespaceException"),
        ("GET", "/v1/lake/namespaces/none/tables", None, 404, "NoSuchNamespaceException"),
        ("GET", "/v1/lake/namespaces/a/tables/none", None, 404, "NoSuchTableException"),
        ("GET", "/v1/lake/namespaces/a/views/none", None, 404, "NoSuchViewException"),
        ("GET", "/v1/lake/namespaces/a.b", None, 404, "NoSuchNamespaceException"),
        ("GET", "/v1/lake/namespaces/a%1Fb.c/tables/files", None, 404, "NoSuchTableException"),
        ("GET", "/v1/lake/namespaces/a%1Fb.c/views/files", None, 404, "NoSuchViewException"),
        ("GET", "/v1/none/namespaces", None, 404, "NotFoundException"),
        ("GET", "/v1/lake@99/namespaces", None, 404, "NotFoundException"),
        ("GET", "/v2/lake/namespaces", None, 404, "NotFoundException"),
        ("PATCH", "/v1/lake/namespaces", None, 405, "UnsupportedOperationException"),
        ("POST", _TABLE, b'{"requirements": [], "updates": [{"action": "explode"}]}', 400, "BadRequestException"),
        ("POST", _TABLE, {"requirements": [{"type": "assert-table-uuid", "uuid": str(UUID(int=1))}], "updates": []},
         409, "CommitFailedException"),
        ("POST", _TABLE, {"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": {"snapshot-id": 7,
         "timestamp-ms": 1, "sequence-number": 1, "manifest-list": "s3://b/m.avro", "summary": {}}}]},
         400, "BadRequestException"),
        ("POST", "/v1/lake/namespaces/a/tables",
         {"name": "u", "schema": _FIELDS, "properties": {"format-version": "9"}}, 400, "IllegalArgumentException"),
        ("POST", "/v1/lake/namespaces/a/register", b'{"name": "r", "metadata-location": "file:///none.json"}', 403,
         "ForbiddenException"),
    ],
)  # fmt: skip
def test_bad_input_gets_what_the_specification_names_and_changes_nothing(
    lake: Lakehouse, method: str, path: str, body: Any, status: int, kind: str
) -> None:
    with _app(lake) as client:
        client("POST", "/v1/lake/namespaces", {"namespace": ["a"]})
        assert 200 == client("POST", "/v1/lake/namespaces/a/tables", {"name": "t", "schema": _FIELDS}).status
        version = lake.refresh().version
        answer = client(method, path, body)
        error = answer.json()["error"]
        assert (status, kind, status) == (answer.status, error["type"], error["code"]), error["message"]
        assert version == lake.refresh().version


def test_what_a_file_contains_is_not_in_the_answer(lake: Lakehouse, tmp_path: Path) -> None:
    """A file that is no metadata may be one that the client must not read."""
    for place, status in ((tmp_path / "lake" / "x.json", 400), (tmp_path / "y.json", 403)):
        place.write_text('{"format-version": 2, "location": "a-secret", "table-uuid": 7}')
        with _app(lake) as client:
            client("POST", "/v1/lake/namespaces", {"namespace": ["a"]})
            for what in ("register", "register-view"):
                body = {"name": "r", "metadata-location": place.as_uri()}
                answer = client("POST", f"/v1/lake/namespaces/a/{what}", body)
                assert (status, False) == (answer.status, "a-secret" in answer.text), answer.text


def test_a_body_that_is_too_large_is_refused(lake: Lakehouse) -> None:
    with _app(lake, Limits(body_bytes=1000)) as client:
        answer = client("POST", "/v1/lake/namespaces", b" " * 2000)
    assert (413, "the body is larger than 1000 bytes") == (answer.status, answer.json()["error"]["message"])


def test_beyond_the_limits_a_client_is_asked_to_come_again(lake: Lakehouse) -> None:
    with _app(lake, Limits(threads=0, waiting=0)) as client:
        answer = client("GET", "/v1/lake/namespaces")
    assert (503, "1") == (answer.status, answer.headers["retry-after"])


def test_a_storage_that_hangs_leaves_an_unknown_outcome(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(type(lake.storage), "create", lambda *_: released.wait(60))
    with _app(lake, Limits(seconds=0.3)) as client:
        answer = client("POST", "/v1/lake/namespaces", {"namespace": ["a"]})
        released.set()
    assert (504, "CommitStateUnknownException") == answer.problem


def test_metrics_count_requests_by_operation_and_status(lake: Lakehouse) -> None:
    with _app(lake) as client:
        assert "ok\n" == client("GET", "/healthz").text
        client("GET", "/v1/lake/namespaces")
        client("GET", "/v1/lake/namespaces/none")
        text = client("GET", "/metrics").text
    assert 'trinitylake_requests_total{operation="list_namespaces",status="200"} 1.0' in text
    assert 'trinitylake_requests_total{operation="load_namespace",status="404"} 1.0' in text


def test_the_command_serves_until_it_is_ended(lake: Lakehouse, tmp_path: Path) -> None:
    port = free_port()
    words = ["serve", lake.root, "--name", "prod", "--also", f"copy={lake.root}", "--port", str(port), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pipelines.cli", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        for line in iter(process.stderr.readline, ""):  # type: ignore[union-attr]
            if "serving prod, copy" in line:
                break
        client = Client(f"http://127.0.0.1:{port}")
        while (config := _answered(client)) is None:
            assert process.poll() is None
        assert (400, "BadRequestException") == config.problem
        assert {"prefix": "copy", "warehouse": "copy"} == client("GET", "/v1/config?warehouse=copy").json()["overrides"]
    finally:
        process.send_signal(signal.SIGTERM)
        out, log = process.communicate(timeout=300)
    assert "GET '/v1/config' 200 " in log
    assert (0, {"served": ["prod", "copy"]}) == (process.returncode, json.loads(out))


def _answered(client: Client) -> Answer | None:
    try:
        return client("GET", "/v1/config")
    except URLError:
        time.sleep(0.05)
        return None
