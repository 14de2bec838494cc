"""Keys for one table: what their policy says, who gets them, and what happens where there are none."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import pytest

from tests.core.test_rest import Client
from tests.support.clock import Clock
from tests.support.icebergs import request_key, with_table
from tests.support.s3_servers import KEY, SECRET, S3Server
from trinitylake_core import Lakehouse
from trinitylake_core.errors import InvalidInput, TrinityLakeError
from trinitylake_core.iceberg import ALLOWED_LOCATIONS
from trinitylake_core.rest import Principals, Served, Warehouses, application, lending
from trinitylake_core.rest.lending import Lender, policy_for
from trinitylake_core.rest.principals import Principal, hash_token
from trinitylake_core.rest.serving import running

_ROOT: Final = "s3://lakes/prod/"
_TABLE: Final = f"{_ROOT}tables/sales/orders-0123456789ab/"
_ROLE: Final = "arn:aws:iam::123456789012:role/tables"
_ASKS: Final = {"X-Iceberg-Access-Delegation": "remote-signing, vended-credentials"}
_READER: Final = {"read": ["a.t"]}
_WRITER: Final = {"write": ["a.t"]}
_KEYS: Final = {
    "AccessKeyId": "k",
    "SecretAccessKey": "s",
    "SessionToken": "t",
    "Expiration": "2099-01-01T00:00:00Z",
}
_RIGHTS: Final = {"reader": _READER, "writer": _WRITER, "owner": {"manage": ["*"]}}


@pytest.fixture(autouse=True)
def _asks_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


def test_the_policy_of_a_reader_reads_and_lists_one_directory() -> None:
    policy = policy_for(_ROOT, _TABLE, writes=False)
    assert policy is not None
    files, listing = policy["Statement"]
    assert (["s3:GetObject"], f"arn:aws:s3:::{_TABLE[5:]}*") == (files["Action"], files["Resource"])
    assert ("s3:ListBucket", "arn:aws:s3:::lakes") == (listing["Action"], listing["Resource"])
    assert {"StringLike": {"s3:prefix": "prod/tables/sales/orders-0123456789ab/*"}} == listing["Condition"]


def test_the_policy_of_a_writer_adds_and_deletes_nothing() -> None:
    policy = policy_for(_ROOT, _TABLE, "aws-cn", writes=True)
    assert policy is not None
    assert "s3:PutObject" in policy["Statement"][0]["Action"]
    assert policy["Statement"][0]["Resource"].startswith("arn:aws-cn:s3:::")
    assert "Delete" not in json.dumps(policy)
    assert len(json.dumps(policy, separators=(",", ":"))) < 2048  # what AWS takes


@pytest.mark.parametrize(
    "directory",
    [
        "s3://lakes/",
        "s3://lakes/prod/",
        "s3://lakes/prod/nodes/x/",
        "s3://lakes/prod/tables/*/t-0123456789ab/",
        "s3://lakes/prod/tables/a/?-0123456789ab/",
        "s3://lakes/prod/tables/${aws:username}/t/",
        "s3://lakes/prod/tables/a/../../",
        "s3://lakes/prod/tables/a b/t/",
        "s3://lakes/prod/tables/ü/t/",
        "s3://lakes/prod/tables/a/t",
        "s3://lakes/prod/tables/a//",
        "s3://*/prod/tables/a/t/",
        "gs://lakes/prod/tables/a/t/",
        "file:///lakes/prod/tables/a/t/",
    ],
)
def test_no_policy_names_more_than_one_directory_of_tables(directory: str) -> None:
    assert policy_for(_ROOT, directory, writes=True) is None


def test_no_policy_is_longer_than_an_sts_takes() -> None:
    """A client chooses the name of a directory, up to what a store takes."""
    assert policy_for(_ROOT, f"s3://lakes/ext/{'y' * 600}/", writes=True) is not None
    assert policy_for(_ROOT, f"s3://lakes/ext/{'y' * 1000}/", writes=True) is None


@contextmanager
def _sts(refused: str, status: int, code: str) -> Iterator[tuple[str, list[str]]]:
    """Run an STS that refuses somebody; yield where it is, and who has asked."""
    asked: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
            asked.append(form["RoleSessionName"][0])
            is_refused = asked[-1] == refused
            parts = (
                {"Error": {"Code": code, "Message": "no"}}
                if is_refused
                else {"AssumeRoleResult": {"Credentials": _KEYS}}
            )
            body = f"<Answer>{_as_xml(parts)}</Answer>".encode()
            self.send_response(status if is_refused else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def _as_xml(found: Any) -> str:
    if not isinstance(found, dict):
        return str(found)
    return "".join(f"<{name}>{_as_xml(each)}</{name}>" for name, each in found.items())


@pytest.mark.parametrize(
    ("status", "code", "is_for_all"),
    [
        (400, "ValidationError", False),
        (400, "PackedPolicyTooLarge", False),
        (400, "MalformedPolicyDocument", False),
        (403, "AccessDenied", False),
        (400, "Throttling", True),
        (503, "ServiceUnavailable", True),
    ],
)
def test_what_an_sts_refuses_to_one_it_lends_to_others(
    status: int, code: str, is_for_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one that is broken or busy is asked no more for a while."""
    monkeypatch.setattr(lending, "_PAUSE_SECONDS", 600.0)
    with _sts("mallory", status, code) as (endpoint, asked):
        lender = Lender(_ROLE, endpoint=endpoint)
        assert lender.lend(_ROOT, _TABLE, "mallory", writes=True) is None
        lent = lender.lend(_ROOT, _TABLE, "etl", writes=True)
        assert is_for_all == (lent is None)
        assert (["mallory"] if is_for_all else ["mallory", "etl"]) == asked


def test_a_directory_elsewhere_may_be_lent_and_none_above_the_root() -> None:
    assert policy_for(_ROOT, "s3://other/t/", writes=False) is not None
    assert policy_for("s3://other/t/lake/", "s3://other/t/", writes=False) is None


@pytest.mark.parametrize(("role", "seconds"), [("tables", 3600), (_ROLE, 899), (_ROLE, 43_201)])
def test_a_lender_that_no_sts_takes_is_refused(role: str, seconds: int) -> None:
    with pytest.raises(InvalidInput):
        Lender(role, seconds=seconds)


@contextmanager
def _served(lake: Lakehouse, lender: Lender | None, **properties: str) -> Iterator[dict[str, Client]]:
    known = Principals({hash_token(name): Principal(name, allowed) for name, allowed in _RIGHTS.items()})
    with running(application(Warehouses({"lake": lambda: lake}, properties, lender), known)) as uri:
        yield {name: Client(uri, name) for name in _RIGHTS}


def _make_table(client: Client) -> None:
    with_table(Served(client.uri, client.token or "", "lake").catalog(), "a.t", 1)


def _load(client: Client, warehouse: str = "lake", **headers: str) -> dict[str, Any]:
    answer = client("GET", f"/v1/{warehouse}/namespaces/a/tables/t", **(_ASKS | headers))
    assert 200 == answer.status
    lent = "vended-credentials" if "storage-credentials" in answer.json() else "none"
    assert lent == answer.headers["x-iceberg-access-delegation"]
    return answer.json()  # type: ignore[no-any-return]


@pytest.fixture
def lake_on_s3(moto_server: S3Server) -> Lakehouse:
    return Lakehouse.create(moto_server.new_root(), storage_options=moto_server.options)


@pytest.mark.s3
def test_keys_are_lent_to_those_who_ask_and_kept_for_half_of_their_time(
    lake_on_s3: Lakehouse, moto_server: S3Server, clock: Clock
) -> None:
    """Moto's STS gives out keys, and looks at no policy: tests/stores asks one that does."""
    with _served(lake_on_s3, Lender(_ROLE, endpoint=moto_server.endpoint)) as clients:
        _make_table(clients["owner"])
        before = moto_server.requests_by_method("/")["POST"]
        found = [_load(clients[name]) for name in ("reader", "reader", "writer")]
        keys = [each["storage-credentials"][0] for each in found]
        assert 2 == moto_server.requests_by_method("/")["POST"] - before
        assert keys[0] == keys[1] != keys[2]
        assert found[0]["metadata"]["location"] + "/" == keys[0]["prefix"]
        assert KEY not in {each["config"]["s3.access-key-id"] for each in keys}
        assert int(keys[0]["config"]["s3.session-token-expires-at-ms"]) > clock.now() + 1_800_000
        again = f"/{found[0]['config']['client.refresh-credentials-endpoint']}"
        assert {"storage-credentials": [keys[0]]} == clients["reader"]("GET", again).json()
        tag = clients["reader"]("GET", "/v1/lake/namespaces/a/tables/t").headers["etag"]
        assert keys[0] == _load(clients["reader"], **{"If-None-Match": tag})["storage-credentials"][0]
        clock.forward(hours=0.6)
        assert keys[0] != _load(clients["reader"])["storage-credentials"][0]
        plain = clients["reader"]("GET", "/v1/lake/namespaces/a/tables/t")
        assert "storage-credentials" not in plain.json()
        assert "x-iceberg-access-delegation" not in plain.headers


@pytest.mark.s3
def test_a_load_with_keys_that_are_kept_asks_no_more_than_one_without(
    lake_on_s3: Lakehouse, moto_server: S3Server
) -> None:
    path = lake_on_s3.root.removeprefix("s3:/")
    with _served(lake_on_s3, Lender(_ROLE, endpoint=moto_server.endpoint)) as clients:
        _make_table(clients["owner"])
        _load(clients["reader"])
        asked = [moto_server.requests(path)]
        for headers in ({}, _ASKS):
            assert 200 == clients["reader"]("GET", "/v1/lake/namespaces/a/tables/t", **headers).status
            asked.append(moto_server.requests(path))
        assert asked[1] - asked[0] == asked[2] - asked[1]


@pytest.mark.s3
def test_a_created_table_and_a_staged_one_come_with_keys(lake_on_s3: Lakehouse, moto_server: S3Server) -> None:
    with _served(lake_on_s3, Lender(_ROLE, endpoint=moto_server.endpoint)) as clients:
        owner = clients["owner"]
        owner("POST", "/v1/lake/namespaces", {"namespace": ["a"]})
        for name, staged in (("t", False), ("u", True)):
            made = _create(owner, name, staged=staged)
            assert [f"{made['metadata']['location']}/"] == [each["prefix"] for each in made["storage-credentials"]]


def _create(
    client: Client, name: str, headers: Mapping[str, str] = _ASKS, *, staged: bool = False, **more: Any
) -> dict[str, Any]:
    fields = {"type": "struct", "fields": [{"id": 1, "name": "x", "type": "long", "required": False}]}
    body = {"name": name, "schema": fields, "stage-create": staged, **more}
    answer = client("POST", "/v1/lake/namespaces/a/tables", body, **headers)
    assert 200 == answer.status, answer.text
    lent = "vended-credentials" if "storage-credentials" in answer.json() else "none"
    assert lent == answer.headers["x-iceberg-access-delegation"]
    return answer.json()  # type: ignore[no-any-return]


def _prefixes(answer: dict[str, Any]) -> list[str]:
    return [each["prefix"] for each in answer.get("storage-credentials", ())]


@pytest.mark.s3
def test_where_a_client_chose_the_place_keys_come_when_the_table_has_it(
    lake_on_s3: Lakehouse, moto_server: S3Server
) -> None:
    """A staged table has no claim: another one may be created there, and its files would be open to those keys."""
    ext, made_here = moto_server.new_root(), moto_server.new_root()
    lender = Lender(_ROLE, endpoint=moto_server.endpoint)
    with _served(lake_on_s3, lender, warehouse=made_here, **{ALLOWED_LOCATIONS: ext}) as clients:
        owner = clients["owner"]
        owner("POST", "/v1/lake/namespaces", {"namespace": ["a"]})
        for place in (f"{ext}payroll", f"{ext}team"):
            assert [] == _prefixes(_create(owner, "s", location=place, staged=True))
        assert [f"{ext}payroll/"] == _prefixes(_create(owner, "payroll", location=f"{ext}payroll"))
        assert [f"{ext}team/q/"] == _prefixes(_create(owner, "q", location=f"{ext}team/q"))
        staged = _create(owner, "u", staged=True)
        assert [f"{staged['metadata']['location']}/"] == _prefixes(staged)


@pytest.mark.s3
def test_no_keys_are_lent_for_an_allowed_prefix_or_what_is_above_one(
    lake_on_s3: Lakehouse, moto_server: S3Server
) -> None:
    """A table may have had the directory before the operator allowed it to all tables."""
    base = moto_server.new_root()
    lender = Lender(_ROLE, endpoint=moto_server.endpoint)
    with _served(lake_on_s3, lender, **{ALLOWED_LOCATIONS: base}) as clients:
        owner = clients["owner"]
        owner("POST", "/v1/lake/namespaces", {"namespace": ["a"]})
        made = _create(owner, "t", location=f"{base}ext/t", properties={"write.metadata.path": f"{base}ext/metadata"})
        assert [f"{base}ext/"] == _prefixes(made)
    for allowed in (f"{base}ext/", f"{base}ext/team/"):
        with _served(lake_on_s3, lender, **{ALLOWED_LOCATIONS: allowed}) as clients:
            assert [] == _prefixes(_load(clients["reader"]))


@pytest.mark.s3
def test_no_keys_are_lent_for_a_directory_that_two_tables_have(lake_on_s3: Lakehouse, moto_server: S3Server) -> None:
    """No catalog makes them; writers of the format may."""
    with _served(lake_on_s3, Lender(_ROLE, endpoint=moto_server.endpoint)) as clients:
        clients["owner"]("POST", "/v1/lake/namespaces", {"namespace": ["a"]})
        _create(clients["owner"], "t")
        assert _prefixes(_load(clients["reader"]))
        newest = lake_on_s3.refresh()
        with newest.transaction() as txn:
            first = newest.table("a", "t")
            where = {"table_format": first.table_format, "table_type": first.table_type}
            txn.create_table("a", "second", first.schema, format_properties=dict(first.format_properties), **where)
        assert [] == _prefixes(_load(clients["reader"]))
        assert 503 == clients["reader"]("GET", "/v1/lake/namespaces/a/tables/t/credentials").status


@pytest.mark.s3
def test_no_keys_are_lent_for_the_past(lake_on_s3: Lakehouse, moto_server: S3Server) -> None:
    """The directory of a table that had another name is that of a table which its reader may not read now."""
    with _served(lake_on_s3, Lender(_ROLE, endpoint=moto_server.endpoint)) as clients:
        owner = clients["owner"]
        owner("POST", "/v1/lake/namespaces", {"namespace": ["a"]})
        _create(owner, "t")
        then = f"lake@{lake_on_s3.refresh().version}"
        names = {each: {"namespace": ["a"], "name": name} for each, name in (("source", "t"), ("destination", "hr"))}
        assert 204 == owner("POST", "/v1/lake/tables/rename", names).status
        assert [] == _prefixes(_load(clients["reader"], then))
        answer = clients["reader"]("GET", f"/v1/{then}/namespaces/a/tables/t/credentials")
        assert (200, {"storage-credentials": []}) == (answer.status, answer.json())


@pytest.mark.s3
def test_an_answer_that_is_given_again_has_the_keys_of_now(lake_on_s3: Lakehouse, moto_server: S3Server) -> None:
    with _served(lake_on_s3, Lender(_ROLE, endpoint=moto_server.endpoint)) as clients:
        owner = clients["owner"]
        owner("POST", "/v1/lake/namespaces", {"namespace": ["a"]})
        headers = {**_ASKS, "Idempotency-Key": request_key()}
        first, again = [_create(owner, "t", headers) for _ in range(2)]
        assert first["storage-credentials"] == again["storage-credentials"]
        assert first["config"] == again["config"]
        names = {each: {"namespace": ["a"], "name": name} for each, name in (("source", "t"), ("destination", "hr"))}
        assert 204 == owner("POST", "/v1/lake/tables/rename", names).status
        assert [] == _prefixes(_create(owner, "t", headers))


def test_where_no_keys_are_lent_the_answer_says_so(lake: Lakehouse) -> None:
    """Nobody lends; or a disk has no keys."""
    for lender in (None, Lender(_ROLE, endpoint="http://127.0.0.1:1")):
        with _served(lake, lender) as clients:
            if lender is None:
                _make_table(clients["owner"])
            found = _load(clients["reader"])
            assert "storage-credentials" not in found
            assert found["config"] == {}
            answer = clients["reader"]("GET", "/v1/lake/namespaces/a/tables/t/credentials")
            assert answer.status == (200 if lender is None else 503)


def test_a_table_is_loaded_without_keys_where_another_one_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody knows whose the directory is, but the table is there."""
    lake = Lakehouse.create(tmp_path.as_uri(), order=4, node_file_max_size_bytes=6000)
    lender = Lender(_ROLE, endpoint="http://127.0.0.1:1")
    with _served(lake, lender) as clients:
        owner = clients["owner"]
        for number in range(40):
            owner("POST", "/v1/lake/namespaces", {"namespace": [f"z{number}"]})
        owner("POST", "/v1/lake/namespaces", {"namespace": ["a"]})
        _create(owner, "t")
    _lose_a_node(tmp_path)
    with _served(Lakehouse.open(lake.root), lender) as clients:
        caplog.clear()
        assert "storage-credentials" not in _load(clients["reader"])
        assert "whose directory it is cannot be read" in caplog.text


def _lose_a_node(directory: Path) -> None:
    """Take a node away by which the table ``a.t`` is not found, but others are."""
    for node in sorted(directory.rglob("*node-*.ipc")):
        hidden = node.rename(f"{node}.hidden")
        lake = Lakehouse.open(directory.as_uri())
        if _can(partial(lake.table, "a", "t")) and not _can(partial(list, lake.objects())):
            return
        hidden.rename(node)
    pytest.fail("no node is lost")


def _can(read: Callable[[], object]) -> bool:
    try:
        read()
    except TrinityLakeError:
        return False
    return True


@pytest.mark.s3
def test_an_sts_that_hangs_or_is_away_stops_nobody(
    lake_on_s3: Lakehouse, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked once, and then not for a while; tables load without keys of it."""
    monkeypatch.setattr(lending, "_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(lending, "_PAUSE_SECONDS", 600.0)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        for port in (hanging.getsockname()[1], 1):
            with _served(lake_on_s3, Lender(_ROLE, endpoint=f"http://127.0.0.1:{port}")) as clients:
                caplog.clear()
                if port != 1:
                    _make_table(clients["owner"])
                assert all("storage-credentials" not in _load(clients["reader"]) for _ in range(3))
                said = [each.getMessage() for each in caplog.records if "no keys can be lent" in each.getMessage()]
                assert 1 == len(said)
                assert 503 == clients["reader"]("GET", "/v1/lake/namespaces/a/tables/t/credentials").status
                assert 403 == clients["reader"]("GET", "/v1/lake/namespaces/a/tables/u/credentials").status
