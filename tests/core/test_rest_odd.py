"""Odd requests, byte by byte: each gets an answer of the specification or is cut off, and costs nobody else."""

from __future__ import annotations

import gzip
import logging
import socket
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.core.test_rest import Client
from trinitylake_core import Lakehouse
from trinitylake_core.rest import Limits, Principals, Warehouses, application
from trinitylake_core.rest.serving import running

_AUTH: Final = b"host: x\r\nauthorization: Bearer token\r\ncontent-type: application/json\r\n"
_LIST: Final = b"/v1/lake/namespaces"
_BOMB: Final = gzip.compress(b'{"namespace": ["a"], "x": "' + b" " * (8 << 20) + b'"}')


def _get(target: bytes, *lines: bytes, method: bytes = b"GET") -> bytes:
    return b"\r\n".join(
        [method + b" " + target + b" HTTP/1.1", _AUTH + b"".join(line + b"\r\n" for line in lines), b""]
    )


def _post(body: bytes, *lines: bytes) -> bytes:
    return _get(_LIST, f"content-length: {len(body)}".encode(), *lines, method=b"POST") + body


_ODD: Final = {
    "not HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", {400}),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}),
    "HTTP/0.9": (b"GET /healthz\r\n\r\n", {400}),
    "HTTP/1.0": (b"GET /healthz HTTP/1.0\r\n\r\n", {200}),
    "no host": (b"GET /healthz HTTP/1.1\r\n\r\n", {400}),
    "two hosts": (b"GET /healthz HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", {400}),
    "a very long line": (_get(b"/" + b"x" * 60_000), {431}),
    "a long line": (_get(b"/v1/lake/namespaces/" + b"x" * 20_000), {400, 404}),
    "a header without a name": (_get(_LIST, b": x"), {400}),
    "a header with a NUL": (_get(_LIST, b"x: a\x00b"), {400}),
    "a folded header": (_get(_LIST, b"x: a", b" b"), {200, 400}),
    "a space before the colon": (_get(_LIST, b"content-length : 5"), {400}),
    "thousands of parameters": (_get(_LIST + b"?" + b"&".join(b"a%d=b" % each for each in range(3000))), {200}),
    "the same parameter twice": (_get(_LIST + b"?pageSize=1&pageSize=2"), {200}),
    "a parameter that is no text": (_get(_LIST + b"?pageToken=%FF%FE"), {200}),
    "a NUL in a name": (_get(_LIST + b"/%00"), {400}),
    "a path that is no UTF-8": (_get(_LIST + b"/%C0%AE%C0%AE"), {400}),
    "a slash in a name": (_get(_LIST + b"/a%2Fb"), {400}),
    "a slash behind a name, which was that of another": (_get(_LIST + b"/a%2f"), {400}),
    "an encoded separator alone": (_get(_LIST + b"/%1F"), {400}),
    "a percent sign encoded twice": (_get(_LIST + b"/%252e%252e"), {404}),
    "dots in the path": (_get(b"/v1/lake/../../etc/passwd"), {404}),
    "encoded dots in the path": (_get(_LIST + b"/%2e%2e/tables"), {400, 404}),
    "an absolute target": (_get(b"http://evil.example" + _LIST), {404}),
    "CONNECT": (_get(b"evil.example:443", method=b"CONNECT"), {404, 405}),
    "TRACE": (_get(_LIST, method=b"TRACE"), {405}),
    "OPTIONS": (_get(_LIST, method=b"OPTIONS"), {405}),
    "OPTIONS of the server": (_get(b"*", method=b"OPTIONS"), {404, 405}),
    "HEAD": (_get(_LIST + b"/none", method=b"HEAD"), {404}),
    "an unknown method": (_get(_LIST, method=b"EXPLODE"), {405}),
    "a method with a body of its own": (_get(_LIST, b"content-length: 5") + b"GET /", {200}),
    "a websocket": (_get(_LIST, b"connection: upgrade", b"upgrade: websocket", b"sec-websocket-key: x"), {200}),
    "HTTP/2 by upgrade": (_get(_LIST, b"connection: upgrade, http2-settings", b"upgrade: h2c"), {200}),
    "a negative length": (_get(_LIST, b"content-length: -5", method=b"POST"), {400}),
    "a length that is no number": (_get(_LIST, b"content-length: 5e3", method=b"POST"), {400}),
    "a length beyond all bounds": (_get(_LIST, b"content-length: " + b"9" * 19, method=b"POST"), {413}),
    "more digits than Python takes": (_get(_LIST, b"content-length: " + b"9" * 5000, method=b"POST"), {400, 413}),
    "two lengths": (_post(b"{}", b"content-length: 3"), {400}),
    "the same length twice": (_post(b'{"namespace": ["a"]}', b"content-length: 20"), {200, 400, 409}),
    "chunks and a length": (_post(b"0\r\n\r\n", b"transfer-encoding: chunked"), {400}),
    "another encoding": (_get(_LIST, b"transfer-encoding: gzip, chunked", method=b"POST"), {400}),
    "a chunk with a bad size": (_get(_LIST, b"transfer-encoding: chunked", method=b"POST") + b"zz\r\n", {0, 400}),
    "a chunk with a long comment": (
        _get(_LIST, b"transfer-encoding: chunked", method=b"POST") + b"1;" + b"x" * 60_000, {0, 400, 431}),
    "a compressed body": (_post(_BOMB, b"content-encoding: gzip"), {415}),
    "a body that is no JSON": (_post(_BOMB), {400}),
    "an expectation": (_post(b'{"namespace": ["b"]}', b"expect: 100-continue"), {100}),
    "an unknown expectation": (_post(b'{"namespace": ["c"]}', b"expect: coffee"), {200, 417}),
    "a token that is no text": (_get(_LIST).replace(b"token", b"\xff\xfe"), {401}),
    "an empty token": (_get(_LIST).replace(b" token", b""), {401}),
}  # fmt: skip
"""What is sent, and the statuses that are right; 0 is a closed connection."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    lake = Lakehouse.create((tmp_path_factory.mktemp("odd") / "lake").as_uri())
    limits = Limits(wrong_token_seconds=0, seconds=10)
    with running(application(Warehouses({"lake": lambda: lake}), Principals.one("token", "one"), limits)) as uri:
        yield Client(uri, "token")


def _status(client: Client, sent: bytes) -> int:
    at = urlsplit(client.uri)
    with socket.create_connection((at.hostname, at.port), timeout=30) as connection:
        try:
            connection.sendall(sent)
            answer = connection.recv(1 << 16)
        except (BrokenPipeError, ConnectionResetError):
            return 0
    return int(answer.split()[1]) if answer else 0


@pytest.mark.parametrize("name", _ODD)
def test_an_odd_request_is_refused_in_order_and_others_are_served(
    client: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent, right = _ODD[name]
    assert _status(client, sent) in right
    assert 200 == client("GET", "/v1/lake/namespaces").status
    assert [] == [each for each in caplog.records if each.levelno >= logging.ERROR]


def test_requests_that_are_sent_in_a_row_are_answered_in_their_order(client: Client) -> None:
    at = urlsplit(client.uri)
    names = [f"row{number}" for number in range(30)]
    with socket.create_connection((at.hostname, at.port), timeout=30) as connection:
        made = [_post(f'{{"namespace": ["{name}"]}}'.encode()) for name in names]
        connection.sendall(b"".join([*made, _get(b"/healthz", b"connection: close")]))
        answers = b""
        while part := connection.recv(1 << 16):
            answers += part
    places = [answers.index(f'["{name}"]'.encode()) for name in names]
    assert sorted(places) == places
    assert answers.endswith(b"ok\n")
