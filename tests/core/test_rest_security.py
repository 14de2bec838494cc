"""Who is let in, what a web page can send, what is written down of a request, and what of it nobody learns."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import pytest

from tests.core.test_rest import Client
from trinitylake_core import Lakehouse
from trinitylake_core.errors import InvalidInput
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.rest import Limits, Principals, Warehouses, application, serve
from trinitylake_core.rest.audit import AUDIT
from trinitylake_core.rest.logs import LogFormat, log_to_stderr
from trinitylake_core.rest.principals import Principal, hash_token
from trinitylake_core.rest.serving import running

_NAMESPACES: Final = "/v1/lake/namespaces"
_BODY: Final = {"namespace": ["a"]}
_FIELDS: Final = {"type": "struct", "fields": [{"id": 1, "name": "x", "type": "long", "required": False}]}


@contextmanager
def _endpoint(lake: Lakehouse, known: Principals | None, limits: Limits | None = None) -> Iterator[str]:
    with running(application(Warehouses({"lake": lambda: lake}), known, limits)) as uri:
        yield uri


@pytest.fixture
def open_to_all(lake: Lakehouse) -> Iterator[Client]:
    with _endpoint(lake, None) as uri:
        yield Client(uri)


@pytest.fixture
def guarded(lake: Lakehouse) -> Iterator[Client]:
    with _endpoint(lake, Principals.one("token", "somebody")) as uri:
        yield Client(uri, "token")


# -- web pages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8181"}, 200),
        ({"Host": "127.9.9.9"}, 200),
        ({"Host": "[::1]:8181"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "localhost.evil.example:8181"}, 403),
        ({"Host": "10.0.0.1"}, 403),
        ({"Host": "0.0.0.0"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost:8181", "Origin": "http://localhost:8181"}, 200),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=application/json"}, 415),
        ({"Content-Type": ""}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
    ],
)
def test_without_tokens_no_web_page_is_answered(
    open_to_all: Client, lake: Lakehouse, headers: dict[str, str], status: int
) -> None:
    """A page can post a form to 127.0.0.1, or to a name of its own that means 127.0.0.1 by now."""
    answer = open_to_all("POST", _NAMESPACES, _BODY, **headers)
    assert (status, ["a"] if status == 200 else []) == (answer.status, list(lake.refresh().namespaces()))
    if status == 403:
        assert 403 == open_to_all("GET", "/metrics", **headers).status


def test_with_tokens_any_name_of_the_machine_will_do(guarded: Client) -> None:
    assert 200 == guarded("GET", _NAMESPACES, Host="lake.example", Origin="https://console.example").status


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "lake.example"])
def test_tokens_do_not_travel_unencrypted_without_a_word(lake: Lakehouse, host: str) -> None:
    warehouses = Warehouses({"lake": lambda: lake})
    with pytest.raises(InvalidInput, match="--insecure-plain-http"):
        serve(warehouses, host=host, principals=Principals.one("token", "somebody"))
    with pytest.raises(InvalidInput, match="--tokens"):
        serve(warehouses, host=host, insecure_plain_http=True)


# -- tokens --------------------------------------------------------------------------------------------


def test_two_authorization_headers_are_refused(guarded: Client) -> None:
    at = urlsplit(guarded.uri)
    with socket.create_connection((at.hostname, at.port), timeout=20) as client:
        tokens = "authorization: Bearer token\r\nauthorization: Bearer token\r\n"
        client.sendall(f"GET {_NAMESPACES} HTTP/1.1\r\nhost: x\r\n{tokens}\r\n".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("path", ["/metrics", "/v1/config", "/v1/config?warehouse=none", "/v1/none/namespaces"])
def test_nothing_but_the_pulse_is_shown_without_a_token(guarded: Client, path: str) -> None:
    stranger = Client(guarded.uri)
    answer = stranger("GET", path)
    assert (401, False) == (answer.status, "lake" in answer.text)
    assert "ok\n" == stranger("GET", "/healthz").text
    assert 401 != guarded("GET", path).status


def test_a_wrong_token_waits_and_keeps_nobody_else_waiting(lake: Lakehouse) -> None:
    known = Principals.one("token", "somebody")
    with _endpoint(lake, known, Limits(threads=1, waiting=0, wrong_token_seconds=3)) as uri:
        answers = list[int]()
        guess = Client(uri, "guess")
        guessing = [threading.Thread(target=lambda: answers.append(guess("GET", _NAMESPACES).status)) for _ in range(9)]
        for each in guessing:
            each.start()
        right = Client(uri, "token")("GET", _NAMESPACES).status
        assert (200, []) == (right, answers)
        for each in guessing:
            each.join()
        assert [401] * 9 == answers


def _write(path: Path, **tokens: str) -> None:
    lines = [f"  {name}: {{token_sha256: {hash_token(token)}, manage: ['*']}}" for name, token in tokens.items()]
    new = path.with_suffix(".new")
    new.write_text("\n".join(["principals:", *lines]), encoding="utf-8")
    new.replace(path)


def test_the_file_of_tokens_is_read_again_when_it_changes(
    lake: Lakehouse, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens.yaml"
    _write(path, old="old")

    def who_may(uri: str) -> list[str]:
        return [token for token in ("old", "new") if Client(uri, token)("GET", _NAMESPACES).status == 200]

    with _endpoint(lake, Principals.of_file(path), Limits(wrong_token_seconds=0)) as uri:
        assert ["old"] == who_may(uri)
        _write(path, old="old", new="new")
        assert ["old", "new"] == who_may(uri)
        for broken in ("principals: {", "principals: {new: {token_sha256: 1}}", None):
            caplog.clear()
            path.unlink() if broken is None else path.write_text(broken, encoding="utf-8")
            assert ["old", "new"] == who_may(uri)
            assert ["stay valid" in each.getMessage() for each in caplog.records if "tokens.yaml" in each.getMessage()]
            assert 1 == sum("tokens.yaml" in each.getMessage() for each in caplog.records)
        _write(path, new="new")
        assert ["new"] == who_may(uri)


def test_a_dot_in_the_name_of_a_table_is_no_level_of_a_namespace(lake: Lakehouse) -> None:
    known = {
        hash_token("all"): Principal("all", {"manage": ["*"]}),
        hash_token("sub"): Principal("sub", {"read": ["a.b.*"]}),
    }
    with _endpoint(lake, Principals(known)) as uri:
        owner = Client(uri, "all")
        owner("POST", _NAMESPACES, _BODY)
        owner("POST", _NAMESPACES, {"namespace": ["a", "b"]})
        for namespace, name in (("a", "b.c"), ("a%1Fb", "c")):
            path = f"{_NAMESPACES}/{namespace}/tables"
            assert 200 == owner("POST", path, {"name": name, "schema": _FIELDS}).status
        reader = Client(uri, "sub")
        assert 200 == reader("GET", f"{_NAMESPACES}/a%1Fb/tables/c").status
        assert 403 == reader("GET", f"{_NAMESPACES}/a/tables/b.c").status


# -- names ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [" a", "a ", ".", "..", "a/b", "", "\x00", "a\x7f", "a\u202eb", "a\u00a0"])
def test_a_name_that_a_path_cannot_hold_is_refused(open_to_all: Client, lake: Lakehouse, name: str) -> None:
    assert 200 == open_to_all("POST", _NAMESPACES, {"namespace": ["n"]}).status
    before = lake.refresh().version
    rename = {"source": {"namespace": ["n"], "name": "t"}, "destination": {"namespace": ["n"], "name": name}}
    for path, body in (
        (_NAMESPACES, {"namespace": [name]}),
        (_NAMESPACES, {"namespace": ["n", name]}),
        (f"{_NAMESPACES}/n/tables", {"name": name, "schema": _FIELDS}),
        (f"{_NAMESPACES}/{quote(name, safe='')}/tables", {"name": "t", "schema": _FIELDS}),
        (f"{_NAMESPACES}/n/register", {"name": name, "metadata-location": "s3://b/m"}),
        ("/v1/lake/tables/rename", rename),
    ):
        assert open_to_all("POST", path, body).status in {400, 404, 405}
    assert before == lake.refresh().version


def test_a_path_that_is_no_text_is_refused(open_to_all: Client) -> None:
    assert (400, "BadRequestException") == open_to_all("GET", f"{_NAMESPACES}/%FF").problem


# -- what is written down ------------------------------------------------------------------------------


@pytest.fixture
def audited(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, AUDIT.name)
    return caplog


def _lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    found = [json.loads(each.getMessage()) for each in caplog.records if each.name == AUDIT.name]
    caplog.clear()
    return found


def test_each_change_and_each_refusal_is_one_line_of_the_audit_log(
    lake: Lakehouse, audited: pytest.LogCaptureFixture
) -> None:
    known = {
        hash_token("etl"): Principal("etl", {"manage": ["a", "a.*"]}),
        hash_token("ro"): Principal("ro", {"read": ["*"]}),
    }
    with _endpoint(lake, Principals(known), Limits(wrong_token_seconds=0)) as uri:
        etl, reader, stranger = Client(uri, "etl"), Client(uri, "ro"), Client(uri, "guess")
        etl("POST", _NAMESPACES, _BODY)
        made = etl("POST", f"{_NAMESPACES}/a/tables", {"name": "t", "schema": _FIELDS}).json()
        etl("GET", f"{_NAMESPACES}/a/tables/t")
        etl("GET", f"{_NAMESPACES}/a/tables/none")
        reader("DELETE", f"{_NAMESPACES}/a/tables/t")
        stranger("GET", _NAMESPACES)
        etl("DELETE", f"{_NAMESPACES}/a/tables/t")
        lines = _lines(audited)
    fields = ("principal", "right", "objects", "location", "version", "outcome", "status")
    location = made["metadata-location"]
    assert [
        ("etl", "manage", ["a"], None, 1, "done", 200),
        ("etl", "manage", ["a.t"], location, 2, "done", 200),
        ("ro", "manage", ["a.t"], None, None, "refused", 403),
        ("-", None, [], None, None, "refused", 401),
        ("etl", "manage", ["a.t"], None, 3, "done", 204),
    ] == [tuple(each[name] for name in fields) for each in lines]
    assert "guess" not in json.dumps(lines)


def test_reads_are_in_the_audit_log_where_the_operator_asks_for_it(
    lake: Lakehouse, audited: pytest.LogCaptureFixture
) -> None:
    known = Principals({hash_token("ro"): Principal("ro", {"read": ["*"]})})
    with running(application(Warehouses({"lake": lambda: lake}), known, audits_reads=True)) as uri:
        reader = Client(uri, "ro")
        for path in ("/v1/config", _NAMESPACES, f"{_NAMESPACES}/none", "/metrics", "/healthz"):
            reader("GET", path)
    fields = ("principal", "operation", "right", "objects", "outcome", "status")
    assert [
        ("ro", "config", None, [], "done", 200),
        ("ro", "list_namespaces", None, [], "done", 200),
        ("ro", "load_namespace", None, [], "refused", 404),
    ] == [tuple(each[name] for name in fields) for each in _lines(audited)]


def test_a_principal_with_a_rate_sends_no_more_than_that(lake: Lakehouse) -> None:
    """Others have theirs."""
    rates = {"slow": 0.001, "fast": 1000.0, "free": None}
    known = {hash_token(name): Principal(name, {"read": ["*"]}, rate=rate) for name, rate in rates.items()}
    with _endpoint(lake, Principals(known)) as uri:
        slow, fast, free = (Client(uri, name) for name in rates)
        found = [slow("GET", _NAMESPACES) for _ in range(3)]
        assert [200, 429, 429] == [each.status for each in found]
        assert "1" == found[1].headers["retry-after"]
        assert {200} == {client("GET", _NAMESPACES).status for client in [fast, free] * 10}


def test_no_credentials_that_a_client_sends_are_in_the_audit_log(
    open_to_all: Client, audited: pytest.LogCaptureFixture
) -> None:
    open_to_all("POST", _NAMESPACES, _BODY)
    for location in ("s3://key:a-secret@b/m.json", "https://b.example/m.json?sig=a-secret", "s3://[a-secret"):
        body = {"name": "t", "metadata-location": location}
        assert open_to_all("POST", f"{_NAMESPACES}/a/register", body).status in {400, 403}
    lines = _lines(audited)
    assert 4 == len(lines)
    assert "a-secret" not in json.dumps(lines)


@pytest.mark.parametrize("kind", [RuntimeError, OSError, ValueError, KeyError, FileNotFoundError, NotImplementedError])
def test_the_words_of_other_peoples_exceptions_reach_nobody(
    open_to_all: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """They may quote a line of a file, or a secret. Where they were raised is in the log."""

    def fail(*_: Any) -> None:
        raise kind("a-secret")

    monkeypatch.setattr(TrinityLakeCatalog, "load_namespace_properties", fail)
    answer = open_to_all("GET", f"{_NAMESPACES}/a")
    assert answer.status >= 400
    written = caplog.text + "".join(LogFormat().format(each) for each in caplog.records)
    assert "a-secret" not in answer.text + written
    if answer.status == 500:
        assert "tests.core.test_rest_security:" in written


def test_the_log_has_no_words_of_other_libraries(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = logging.root.handlers, logging.root.level, AUDIT.handlers, AUDIT.propagate
    try:
        log_to_stderr(tmp_path / "audit.jsonl")
        try:
            raise RuntimeError("a-secret")
        except RuntimeError:
            logging.getLogger("asyncio").exception("%s failed", "a-secret")
            logging.getLogger("trinitylake.rest").exception("our words")
        AUDIT.info("{}")
        AUDIT.handlers[0].close()
    finally:
        logging.root.handlers, logging.root.level, AUDIT.handlers, AUDIT.propagate = before
    log = capsys.readouterr().err
    assert "a-secret" not in log
    assert 2 == log.count("(RuntimeError at tests.core.test_rest_security:") + log.count("our words\nRuntimeError at ")
    assert "{}\n" == (tmp_path / "audit.jsonl").read_text()
    assert 0o600 == (tmp_path / "audit.jsonl").stat().st_mode & 0o777
