"""A principal learns nothing of what it may not see, and a file of rights means what it says, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.core.test_rest import _FIELDS, Client, _view
from tests.support.clock import Clock
from tests.support.lakes import FAST
from trinitylake_core import Lakehouse
from trinitylake_core.errors import InvalidInput
from trinitylake_core.rest import Principals, Warehouses, application
from trinitylake_core.rest.app import HANDLERS
from trinitylake_core.rest.principals import hash_token
from trinitylake_core.rest.serving import running

_HASH = {name: hash_token(name) for name in ("etl", "reader", "nobody", "old", "new")}
_RIGHTS = f"""
principals:
  etl:
    token_sha256: {_HASH["etl"]}
    manage: {{prod: [sales, "sales.*"]}}
    read: {{test: ["*"]}}
  reader: {{token_sha256: {_HASH["reader"]}, read: {{test: [mine]}}}}
  nobody: {{token_sha256: {_HASH["nobody"]}}}
"""


@contextmanager
def _served(directory: Path, rights: str, *names: str) -> Iterator[str]:
    path = directory / "tokens.yaml"
    path.write_text(rights, encoding="utf-8")
    lakes = {name: Lakehouse.create((directory / name).as_uri(), storage_options=FAST) for name in names}
    for lake in lakes.values():
        with lake.transaction() as txn:
            for namespace in ("sales", "hr", "mine"):
                txn.create_namespace(namespace)
    warehouses = Warehouses({name: lambda lake=lake: lake for name, lake in lakes.items()})
    with running(application(warehouses, Principals.of_file(path))) as uri:
        yield uri


def test_a_right_counts_in_the_lakehouse_that_it_names(tmp_path: Path) -> None:
    with _served(tmp_path, _RIGHTS, "prod", "test") as uri:
        etl = Client(uri, "etl")
        table = {"name": "t", "schema": _FIELDS}
        statuses = [etl("POST", f"/v1/{name}/namespaces/sales/tables", table).status for name in ("prod", "test")]
        assert [200, 403] == statuses
        assert [403, 200] == [etl("GET", f"/v1/{name}/namespaces/hr").status for name in ("prod", "test")]
        past = etl("GET", "/v1/prod@0/namespaces/hr")
        assert 403 == past.status


def test_a_lakehouse_without_rights_looks_like_none(tmp_path: Path) -> None:
    """Whatever version of it is asked for, also where it was never opened; and ``config`` names those that count."""
    with _served(tmp_path, _RIGHTS, "prod", "test") as uri:
        reader, nobody = Client(uri, "reader"), Client(uri, "nobody")
        for path in ("/v1/{}/namespaces", "/v1/config?warehouse={}"):
            for asker, known in ((reader, ("prod", "test")), (nobody, ("prod", "none for nobody"))):
                told = set()
                for name in ("prod", "none"):
                    for version in ("", "@0", "@1", "@99", "@nope"):
                        answer = asker("GET", path.format(name + version))
                        told.add((answer.status, answer.text.replace(f"'{name}'", "'x'")))
                ((status, text),) = told
                assert 404 == status
                assert known[1] in text
                assert "prod" not in text
        assert "test" == reader("GET", "/v1/config").json()["overrides"]["prefix"]
        assert 400 == nobody("GET", "/v1/config").status
        assert 200 == nobody("GET", "/metrics").status


def test_what_a_principal_may_not_see_looks_like_what_is_not_there(tmp_path: Path) -> None:
    """By every route: the right is asked for before the catalog is."""
    owner = f"  owner: {{token_sha256: {_HASH['new']}, manage: ['*']}}\n"
    rights = f"principals:\n{owner}  reader: {{token_sha256: {_HASH['reader']}, manage: [mine, 'mine.*']}}\n"
    with _served(tmp_path, rights, "lake") as uri:
        make, reader = Client(uri, "new"), Client(uri, "reader")
        assert 200 == make("POST", "/v1/lake/namespaces/hr/tables", {"name": "t", "schema": _FIELDS}).status
        assert 200 == make("POST", "/v1/lake/namespaces/hr/views", _view("v", ("spark", "select 1"))).status
        assert 200 == make("POST", "/v1/lake/namespaces", {"namespace": ["hr", "inner"]}).status
        asked = 0
        for method, route in HANDLERS:
            if "{namespace}" not in route and method == "GET":
                route = f"{route}?parent={{namespace}}"  # noqa: PLW2901 - what is listed
            for table, view in (("t", "v"), ("none", "none")):
                answers = [
                    reader(method, *_request(route, namespace, table, view, method)) for namespace in ("hr", "no")
                ]
                told = {(each.status, each.text.replace("'hr", "'x").replace("'no", "'x")) for each in answers}
                assert 1 == len(told), (method, route, told)
                if answers[0].status != 400:
                    assert 403 == answers[0].status, (method, route, answers[0].text)
                    asked += 1
        assert asked > 40


def test_a_right_on_a_table_with_a_dot_counts_for_no_other_name(tmp_path: Path) -> None:
    owner = f"  owner: {{token_sha256: {_HASH['new']}, manage: ['*']}}\n"
    rights = rf"principals:{chr(10)}{owner}  reader: {{token_sha256: {_HASH['reader']}, read: ['a.b\.c', 'a.d\\e']}}"
    names = {(("a",), "b.c"): 200, (("a", "b"), "c"): 403, (("a", "b\\"), "c"): 403, (("a",), "d\\e"): 200}
    with _served(tmp_path, rights, "lake") as uri:
        make, reader = Client(uri, "new"), Client(uri, "reader")
        for namespace in (("a",), ("a", "b"), ("a", "b\\")):
            assert 200 == make("POST", "/v1/lake/namespaces", {"namespace": namespace}).status
        for (namespace, name), status in names.items():
            levels = quote("\x1f".join(namespace))
            tables = f"/v1/lake/namespaces/{levels}/tables"
            assert 200 == make("POST", tables, {"name": name, "schema": _FIELDS}).status
            assert status == reader("GET", f"{tables}/{quote(name)}").status, (namespace, name)


def _request(route: str, namespace: str, table: str, view: str, method: str) -> tuple[str, Any]:
    path = route.format(prefix="lake", namespace=namespace, table=table, view=view)
    if method in {"GET", "HEAD", "DELETE"}:
        return path, None
    name = view if "view" in route else table
    here = {"namespace": [namespace], "name": name}
    there = {"namespace": ["mine"], "name": name}
    body: dict[str, Any] = {
        "namespace": [namespace],
        "name": name,
        "schema": _FIELDS,
        "metadata-location": "s3://b/m",
        "source": here,
        "destination": there,
        "requirements": [],
        "updates": {} if route.endswith("properties") else [],
        "removals": [],
        "table-changes": [{"identifier": here, "requirements": [], "updates": []}],
    }
    if route.endswith("/views"):
        body = _view(name, ("spark", "select 1"))
    if route.endswith("/metrics"):
        body = {"report-type": "scan-report"}
    return path, body


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("principals:\n  a: {token_sha256: H0}\n  a: {token_sha256: H1}", "line 3: 'a' appears twice"),
        ("principals:\n  a:\n    token_sha256: H0\n    read: [x]\n    read: [y]", "line 5: 'read' appears twice"),
        ("principals: {}\nprincipals: {}", "line 2: 'principals' appears twice"),
        ("principals: {}\nprinciples: {}", "line 2: principles: there is no such field"),
        ("principals:\n  1: {token_sha256: H0}\n  '1': {token_sha256: H1}", "a principal is there twice"),
        ("principals:\n  a:\n    token_sha256: H0\n    reed: [x]", "line 4: a.reed: there is no such field"),
        (
            "principals:\n  a:\n    token_sha256: H0\n    read:\n    - ok\n    - 'a/*'",
            r"line 6: a\.read\.1: no name",
        ),
        ("principals:\n  a: {token_sha256: H0, write: [' sales']}", r"line 2: a\.write\.0: no name matches ' sales'"),
        ("principals:\n  a: {token_sha256: H0, write: ['sales..t']}", "no name matches 'sales..t'"),
        ("principals:\n  a: {token_sha256: H0, write: ['']}", "no name matches ''"),
        (
            "principals:\n  a: {token_sha256: H0, write: {'': ['*']}}",
            r"line 2: a\.write: no lakehouse has an empty name",
        ),
        ("principals:\n  a: {token_sha256: H0, write: ['a.b\\c']}", "no name matches"),
        ("principals:\n  a: {token_sha256: H0, rate: 0}", r"line 2: a\.rate: "),
        ("principals:\n  a: {token_sha256: H0, rate: true}", r"line 2: a\.rate: "),
        ("principals:\n  a: {token_sha256: H0, rate: '5'}", r"line 2: a\.rate: "),
        ("principals:\n  a: {token_sha256: H0, rate: .nan}", r"line 2: a\.rate: "),
        ("principals:\n  a: {token_sha256: H0, write: ['*.']}", r"no name matches '\*.'"),
        (
            "principals:\n  a: {token_sha256: H0, read: {prod: [x]}}",
            "a.read matches nothing: no lakehouse",
        ),
        ("principals:\n  a: {token_sha256: H0}\n  b: {token_sha256: H0}", "line 3: b has the token of a"),
        ("principals:\n  b: &b {token_sha256: H0, manage: ['*']}\n  a: *b", "line 3: a has the token of b"),
        ("principals:\n  a: {token_sha256: H0}\n---\nprincipals: {}", "line 3: not YAML: but found another document"),
        ("principals:\n  a: {tokens: [{sha256: H0}, {sha256: H0}]}", "line 2: a has the token of a"),
        (
            "principals:\n  a: {tokens: [{sha256: H0, expires: soon}]}",
            r"line 2: a\.tokens\.0\.expires: 'soon' is not an ISO 8601",
        ),
        ("principals:\n  a: {tokens: [{sha: H0}]}", "a.tokens.0.sha256: it is missing"),
        ("principals:\n  a: {read: [x]}", "a: it has no token_sha256, and no list of tokens"),
    ],
)
def test_a_file_of_rights_is_strict(text: str, problem: str, tmp_path: Path) -> None:
    """It names the line. What was read before stays in force (``test_rest_security``)."""
    for number in range(2):
        text = text.replace(f"H{number}", f"'{str(number) * 64}'")
    path = tmp_path / "tokens.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput, match=rf"tokens\.yaml.*{problem}"):
        Principals.of_file(path).bind_rights(["lake"])


@pytest.mark.parametrize("pattern", ["*", "sales", "sales.*", "*.orders", "s?les", "[st]ales.*", r"a.b\.c", "a.b.c*"])
def test_a_pattern_that_a_name_can_match_is_taken(pattern: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(f"principals: {{a: {{token_sha256: {_HASH['etl']}, read: ['{pattern}']}}}}", encoding="utf-8")
    known = Principals.of_file(path)
    known.bind_rights(["lake"])
    assert (pattern,) == known.of("Bearer etl").within("lake").allowed["read"]
    with pytest.raises(InvalidInput, match=r"line 1: a\.read names no lakehouse, and there are lake, other"):
        known.bind_rights(["lake", "other"])


def test_tokens_of_a_principal_are_replaced_one_after_the_other(tmp_path: Path, clock: Clock) -> None:
    """Each expires by itself, and its owner learns why."""
    clock.set(int(datetime(2027, 1, 30, tzinfo=UTC).timestamp() * 1000))
    text = f"""
principals:
  etl:
    tokens:
      - {{sha256: {_HASH["old"]}, expires: 2027-01-31}}
      - {{sha256: {_HASH["new"]}, expires: 2027-02-28T12:00:00+01:00}}
      - {{sha256: {_HASH["etl"]}}}
    read: ["*"]
"""
    with _served(tmp_path, text, "lake") as uri:

        def answers() -> list[int]:
            return [Client(uri, token)("GET", "/v1/lake/namespaces").status for token in ("old", "new", "etl")]

        assert [200, 200, 200] == answers()
        clock.forward(days=1)
        assert [401, 200, 200] == answers()
        refused = Client(uri, "old")("GET", "/v1/lake/namespaces")
        assert "has expired" in refused.json()["error"]["message"]
        clock.forward(days=29)
        assert [401, 401, 200] == answers()
