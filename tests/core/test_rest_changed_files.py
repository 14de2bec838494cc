"""Files of an operator change while clients work: none of them is refused that should not be."""

from __future__ import annotations

import errno
import json
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.support.certificates import make_certificate
from trinitylake_core import Lakehouse
from trinitylake_core.errors import InvalidInput
from trinitylake_core.rest import Principals, Warehouses, application
from trinitylake_core.rest.principals import hash_token
from trinitylake_core.rest.serving import running, tls_of
from trinitylake_core.rest.watched import Watched

_CLIENTS: Final = 16
_REQUESTS: Final = 8
"""Of each client, between two changes."""


def _place(directory: Path, name: str, text: str) -> None:
    """Put a file in its place as a whole, as the pages say."""
    (directory / "new").write_text(text, encoding="utf-8")
    (directory / "new").replace(directory / name)


def _place_tokens(directory: Path, *tokens: str) -> None:
    known = [{"sha256": hash_token(each)} for each in tokens]
    _place(directory, "tokens.yaml", json.dumps({"principals": {"etl": {"tokens": known, "read": ["*"]}}}))


def _place_certificate(directory: Path, made: Path, *names: str) -> None:
    for name in names:
        _place(directory, name, (made / name).read_text(encoding="utf-8"))


def _make_certificates(directory: Path) -> list[Path]:
    made = [directory / "first", directory / "second"]
    for each in made:
        each.mkdir()
        make_certificate(each)
    return made


@contextmanager
def _endpoint(lake: Lakehouse, directory: Path) -> Iterator[str]:
    app = application(Warehouses({"lake": lambda: lake}), Principals.of_file(directory / "tokens.yaml"))
    with running(app, tls_of(directory / "cert.pem", directory / "key.pem")) as uri:
        yield uri


def _ask(uri: str, trusted: ssl.SSLContext, token: str) -> tuple[str, bytes]:
    """Send a request in a connection of its own; the status, and the certificate of the endpoint."""
    parts = urlsplit(uri)
    with (
        socket.create_connection((parts.hostname, parts.port), timeout=60) as plain,
        trusted.wrap_socket(plain, server_hostname="localhost") as at,
    ):
        head = f"GET /v1/lake/namespaces HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
        at.sendall(f"{head}connection: close\r\n\r\n".encode())
        return at.recv(100).decode().split(" ")[1], at.getpeercert(binary_form=True) or b""


def test_a_certificate_and_tokens_change_under_load(lake: Lakehouse, tmp_path: Path) -> None:
    """Certificate and key are two files: in between the old ones serve. Clients take a new token when it is known."""
    first, second = _make_certificates(tmp_path)
    trusted = ssl.create_default_context()
    for each in (first, second):
        trusted.load_verify_locations(each / "cert.pem")
    _place_certificate(tmp_path, first, "cert.pem", "key.pem")
    _place_tokens(tmp_path, "old")
    together = threading.Barrier(_CLIENTS + 1, timeout=60)
    changes = (
        ("old", lambda: _place_certificate(tmp_path, second, "cert.pem")),
        ("old", lambda: _place_tokens(tmp_path, "old", "new")),
        ("new", lambda: _place_certificate(tmp_path, second, "key.pem")),
        ("new", lambda: _place_tokens(tmp_path, "new")),
    )

    with _endpoint(lake, tmp_path) as uri:

        def work(_: int) -> list[tuple[str, bytes]]:
            answers = []
            for token, _change in changes:
                together.wait()
                answers += [_ask(uri, trusted, token) for _ in range(_REQUESTS)]
            return answers

        with ThreadPoolExecutor(_CLIENTS) as pool:
            asked = pool.map(work, range(_CLIENTS))
            for _, change in changes:
                together.wait()
                change()
            answers = [answer for each in asked for answer in each]
        last = _ask(uri, trusted, "new")
    certificates = [ssl.PEM_cert_to_DER_cert((each / "cert.pem").read_text()) for each in (first, second)]
    assert {"200"} == {status for status, _ in answers}
    assert _CLIENTS * _REQUESTS * len(changes) == len(answers)
    assert set(certificates) == {certificate for _, certificate in answers}
    assert ("200", certificates[1]) == last


def test_a_certificate_that_cannot_be_used_changes_nothing(
    lake: Lakehouse, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = _make_certificates(tmp_path)
    trusted = ssl.create_default_context(cafile=str(first / "cert.pem"))
    _place_certificate(tmp_path, first, "cert.pem", "key.pem")
    _place_tokens(tmp_path, "token")
    with _endpoint(lake, tmp_path) as uri, caplog.at_level(logging.WARNING):
        for broken in ("", (second / "cert.pem").read_text(), None):
            caplog.clear()
            if broken is None:
                (tmp_path / "cert.pem").unlink()
            else:
                _place(tmp_path, "cert.pem", broken)
            assert ["200"] * 2 == [_ask(uri, trusted, "token")[0] for _ in range(2)]
            (said,) = [each.getMessage() for each in caplog.records if "cert.pem" in each.getMessage()]
            assert "connections get the one of before" in said
        assert "(No such file or directory)" in said, "which is tried again, unlike what was read"


def test_a_key_that_needs_a_password_asks_nobody(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    key = tmp_path / "key.pem"
    key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
    with pytest.raises(InvalidInput, match="cannot be used as a certificate with its key"):
        tls_of(made, key)


def test_a_file_that_could_not_be_read_for_a_moment_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that has too many files open may read it later; a token that was withdrawn does not stay."""
    _place(tmp_path, "x", "old")
    failures: list[OSError] = []

    def read() -> str:
        if failures:
            raise failures.pop()
        return (tmp_path / "x").read_text(encoding="utf-8")

    watched = Watched([tmp_path / "x"], read, "what was there before counts")
    _place(tmp_path, "x", "new")
    failures += [OSError(errno.EMFILE, "Too many open files"), OSError(errno.EMFILE, "Too many open files")]
    assert ["old", "old", "new"] == [watched.get() for _ in range(3)]
    assert ["WARNING"] == [each.levelname for each in caplog.records if each.levelno > logging.INFO]
