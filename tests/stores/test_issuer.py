"""Tokens of an issuer that others wrote: Keycloak, with PyIceberg, DuckDB and Spark. `make test-stores`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import ForbiddenError, UnauthorizedError

from tests.support.engines import by_spark_sql, connected
from tests.support.icebergs import ids, with_table
from tests.support.real_stores import CACHE
from tests.support.s3_servers import free_port, wait_for_port
from tests.support.writers import pool
from trinitylake_core import Lakehouse
from trinitylake_core.rest import Principals, Served, Warehouses, application
from trinitylake_core.rest.serving import running

_ZIP: Final = CACHE / "jars" / "keycloak-quarkus-dist-26.7.3.zip"
_START_SECONDS: Final = 900.0
_STOP_SECONDS: Final = 60.0
_AUDIENCE: Final = {
    "name": "audience",
    "protocol": "openid-connect",
    "protocolMapper": "oidc-audience-mapper",
    "config": {"included.custom.audience": "lakehouse", "access.token.claim": "true"},
}


def _client(name: str, *mappers: dict[str, Any]) -> dict[str, Any]:
    return {
        "clientId": name,
        "secret": f"{name}-secret",
        "serviceAccountsEnabled": True,
        "standardFlowEnabled": False,
        "protocolMappers": list(mappers),
    }


_REALM: Final = {
    "realm": "lake",
    "enabled": True,
    "sslRequired": "none",
    "clients": [_client("etl", _AUDIENCE), _client("stranger", _AUDIENCE), _client("payroll")],
}


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a realm."""
    if not _ZIP.exists() or shutil.which("java") is None:
        pytest.skip("scripts/stores.sh has no Keycloak")
    directory = tmp_path_factory.mktemp("keycloak")
    with zipfile.ZipFile(_ZIP) as packed:
        packed.extractall(directory)
    (home,) = directory.glob("keycloak-*")
    (home / "data" / "import").mkdir(parents=True)
    (home / "data" / "import" / "lake.json").write_text(json.dumps(_REALM), encoding="utf-8")
    port = free_port()
    log = directory / "log"
    command = ["bash", str(home / "bin" / "kc.sh"), "start-dev", "--import-realm", "--http-host=127.0.0.1"]
    command += [f"--http-port={port}", "--cache=local"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "JAVA_OPTS_APPEND": "-Xmx512m"}
        )
    try:
        wait_for_port(process, port, log, _START_SECONDS)
        yield f"http://127.0.0.1:{port}/realms/lake"
    finally:
        process.terminate()
        process.wait(_STOP_SECONDS)


@pytest.fixture
def uri(realm: str, tmp_path: Path) -> Iterator[str]:
    """An endpoint that takes tokens of the realm."""
    certs = f"{realm}/protocol/openid-connect/certs"
    issuers = {"corp": {"issuer": realm, "audience": "lakehouse", "jwks": certs, "subject": "azp"}}
    principals = {"etl": {"subjects": {"corp": ["etl"]}, "manage": ["a", "a.*"]}}
    path = tmp_path / "tokens.yaml"
    path.write_text(json.dumps({"issuers": issuers, "principals": principals}), encoding="utf-8")
    lake = Lakehouse.create((tmp_path / "lake").as_uri())
    with running(application(Warehouses({"lake": lambda: lake}), Principals.of_file(path))) as found:
        yield found


def _asks(realm: str, name: str) -> dict[str, str]:
    """Return the properties by which a client asks the realm for its token."""
    return {"credential": f"{name}:{name}-secret", "oauth2-server-uri": _tokens_at(realm), "scope": "profile"}


def _tokens_at(realm: str) -> str:
    return f"{realm}/protocol/openid-connect/token"


def test_clients_get_their_tokens_from_the_issuer(uri: str, realm: str) -> None:
    """PyIceberg writes, DuckDB and Spark read and write; who has no right or no audience is refused."""
    catalog = load_catalog("lake", type="rest", uri=uri, warehouse="lake", **_asks(realm, "etl"))
    with_table(catalog, "a.t", 1)
    for name, kind, words in (
        ("stranger", ForbiddenError, "neither 'stranger' nor a group of it is a principal here"),
        ("payroll", UnauthorizedError, "is for another audience|has no claim 'aud'"),
    ):
        with pytest.raises(kind, match=words):
            load_catalog("lake", type="rest", uri=uri, warehouse="lake", **_asks(realm, name))
    secret = "CLIENT_ID 'etl', CLIENT_SECRET 'etl-secret', OAUTH2_SCOPE 'profile', "
    secret += f"OAUTH2_SERVER_URI '{_tokens_at(realm)}'"
    with connected(_WithoutToken(uri, "", "lake"), secret=secret) as duck:
        duck.execute("INSERT INTO l.a.t VALUES (5, 'x')")
        assert [(1,), (5,)] == duck.execute("SELECT id FROM l.a.t ORDER BY id").fetchall()
    with pool(1) as process:
        statements = ("INSERT INTO l.a.t VALUES (7, 'x')", "SELECT id FROM l.a.t ORDER BY id")
        asks = _asks(realm, "etl") | {"token-exchange-enabled": "false"}
        run = partial(by_spark_sql, _WithoutToken(uri, "", "lake"), "lake", *statements, **asks)
        assert [(1,), (5,), (7,)] == process.submit(run).result()[-1]
    assert [1, 5, 7] == ids(catalog.load_table("a.t"))


class _WithoutToken(Served):
    """An endpoint whose clients bring no token."""

    def properties(self) -> dict[str, str]:
        """Return what a client has to know."""
        return {"uri": self.uri, "warehouse": self.warehouse}
