"""Malformed requests by chance: each gets an answer of the specification, and none learns what is not its own."""

from __future__ import annotations

import asyncio
import json
import random
import resource
from collections import Counter
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest

from tests.support.icebergs import request_key
from trinitylake_core import Lakehouse
from trinitylake_core.rest import Limits, Principals, Warehouses, application
from trinitylake_core.rest.app import HANDLERS

TOKEN: Final = "a-token-that-no-answer-contains"
_STRUCT: Final = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "x", "type": "long", "required": False},
        {"id": 2, "name": "y", "type": {"type": "list", "element-id": 3, "element": "string", "element-required": True},
         "required": False},
    ],
}  # fmt: skip
_VERSION: Final = {
    "version-id": 1, "timestamp-ms": 1, "schema-id": 0, "summary": {"engine": "x"}, "default-namespace": ["a"],
    "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
}  # fmt: skip
_SNAPSHOT: Final = {
    "snapshot-id": 7, "timestamp-ms": 1, "sequence-number": 1, "manifest-list": "s3://b/m.avro", "schema-id": 0,
    "summary": {"operation": "append"},
}  # fmt: skip
_UPDATES: Final[tuple[dict[str, Any], ...]] = (
    {"action": "assign-uuid", "uuid": "00000000-0000-0000-0000-000000000001"},
    {"action": "upgrade-format-version", "format-version": 2},
    {"action": "add-schema", "schema": _STRUCT, "last-column-id": 3},
    {"action": "set-current-schema", "schema-id": -1},
    {"action": "add-spec", "spec": {"spec-id": 1, "fields": [
        {"source-id": 1, "field-id": 1000, "name": "p", "transform": "bucket[4]"}]}},
    {"action": "set-default-spec", "spec-id": -1},
    {"action": "add-sort-order", "sort-order": {"order-id": 1, "fields": [
        {"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}]}},
    {"action": "set-default-sort-order", "sort-order-id": -1},
    {"action": "add-snapshot", "snapshot": _SNAPSHOT},
    {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 7},
    {"action": "remove-snapshots", "snapshot-ids": [7]},
    {"action": "remove-snapshot-ref", "ref-name": "main"},
    {"action": "set-location", "location": "file:///elsewhere"},
    {"action": "set-properties", "updates": {"a": "b"}},
    {"action": "remove-properties", "removals": ["a"]},
    {"action": "set-statistics", "snapshot-id": 7, "statistics": {"snapshot-id": 7, "statistics-path": "s3://b/s",
        "file-size-in-bytes": 1, "file-footer-size-in-bytes": 1, "blob-metadata": []}},
    {"action": "remove-statistics", "snapshot-id": 7},
    {"action": "remove-schemas", "schema-ids": [0]},
    {"action": "remove-partition-specs", "spec-ids": [0]},
    {"action": "add-view-version", "view-version": _VERSION},
    {"action": "set-current-view-version", "view-version-id": -1},
)  # fmt: skip
_REQUIREMENTS: Final[tuple[dict[str, Any], ...]] = (
    {"type": "assert-create"},
    {"type": "assert-table-uuid", "uuid": "00000000-0000-0000-0000-000000000001"},
    {"type": "assert-view-uuid", "uuid": "00000000-0000-0000-0000-000000000001"},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
    {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 3},
    {"type": "assert-current-schema-id", "current-schema-id": 0},
    {"type": "assert-default-spec-id", "default-spec-id": 0},
)
_JUNK: Final[tuple[Any, ...]] = (
    None, True, -1, 0, 2**31, 2**63, 2**70, 1e308, "", " ", ".", "..", "a.b", "../../etc/passwd", "\x00", "\x1f", "é",
    "\ud800", "x" * 3000, "s3://user:secret@b/k", "file:///etc/passwd", [], {}, [[]], [None], {"": ""}, [{"type": "x"}],
    "struct", "decimal(99,99)", "fixed[-1]", "bucket[0]", "truncate[-5]",
)  # fmt: skip
_NAMES: Final = ("a", "t", "v", "none", "a\x1fb", "\x1f", "..", "%", "a.b", " ", "\x00", "é", "x" * 2000, "a/b", "lake")


class Fuzz:
    """Requests near those that the endpoint offers."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._keys = [request_key() for _ in range(5)]

    def request(self) -> dict[str, Any]:
        """Return the arguments of one request."""
        method, path = self._random.choice(list(HANDLERS))
        for name, usual in (("prefix", "lake"), ("namespace", "a"), ("table", "t"), ("view", "v")):
            odd = self._random.random() < 0.15
            path = path.replace(f"{{{name}}}", quote(self._random.choice(_NAMES) if odd else usual, safe=""))
        found: dict[str, Any] = {"method": method, "url": path, "headers": self._headers()}
        if self._random.random() < 0.3:
            names = ("pageSize", "pageToken", "parent", "snapshots", "purgeRequested", "x")
            found["params"] = {
                self._random.choice(names): str(self._random.choice((*_NAMES, "true", "0", "-1", "9" * 400)))
            }
        if method == "POST":
            found["content"] = self._content(path)
        return found

    def _headers(self) -> dict[str, str]:
        odd = self._random.random()
        given = {"authorization": f"Bearer {TOKEN}"}
        if odd < 0.05:
            given["authorization"] = self._random.choice(
                ("", "Bearer", "Basic eDp5", "Bearer x", "Bearer " + "y" * 5000)
            )
        elif odd < 0.1:
            given["if-none-match"] = self._random.choice(('"', "*", "x" * 3000))
        elif odd < 0.2:
            keys = (*self._keys, request_key(), request_key(-9999), "", "x" * 36)
            given["idempotency-key"] = self._random.choice(keys)
        return given

    def _content(self, path: str) -> bytes:
        whole = json.dumps(self._mutated(self._body(path))).encode()
        odd = self._random.random()
        if odd < 0.05:
            return whole[: self._random.randrange(len(whole) + 1)]
        if odd < 0.08:
            return self._random.randbytes(self._random.randrange(200))
        return b"[" * 5000 if odd < 0.09 else whole

    def _body(self, path: str) -> Any:
        names = {"source": {"namespace": ["a"], "name": "t"}, "destination": {"namespace": ["a"], "name": "u"}}
        changes = {
            "requirements": self._random.sample(_REQUIREMENTS, self._random.randrange(3)),
            "updates": self._random.sample(_UPDATES, self._random.randrange(1, 5)),
        }
        bodies = {
            "namespaces": {"namespace": ["a", "b"], "properties": {"k": "v"}},
            "properties": {"removals": ["k"], "updates": {"l": "w"}},
            "tables": {"name": "t", "schema": _STRUCT, "stage-create": False, "properties": {"format-version": "2"}},
            "views": {"name": "v", "schema": _STRUCT, "view-version": _VERSION, "properties": {}},
            "register": {"name": "r", "metadata-location": "file:///none", "overwrite": False},
            "register-view": {"name": "r", "metadata-location": "file:///none"},
            "rename": names,
            "metrics": {"report-type": "scan-report"},
            "commit": {"table-changes": [{"identifier": names["source"], **changes}]},
        }
        return bodies.get(path.rsplit("/", 1)[-1], changes)

    def _mutated(self, value: Any) -> Any:
        """Return a copy of which some parts are replaced, left out, or doubled."""
        odd = self._random.random()
        if odd < 0.04:
            return self._random.choice(_JUNK)
        if isinstance(value, dict):
            return {
                (key if self._random.random() > 0.02 else str(self._random.choice(_NAMES))): self._mutated(each)
                for key, each in value.items()
                if self._random.random() > 0.03
            }
        if isinstance(value, list):
            return [self._mutated(each) for each in value for _ in range(1 if self._random.random() > 0.05 else 2)]
        return value


def _judged(answer: httpx.Response) -> None:
    """An answer is one of the specification; one that refuses says what is wrong, and no more."""
    is_old_key = answer.status_code == 500 and answer.json()["error"]["type"] == "CommitStateUnknownException"
    assert answer.status_code < 500 or (is_old_key and "idempotency key" in answer.text), answer.text
    for hidden in (TOKEN, "Traceback", "site-packages", "password"):
        assert hidden not in answer.text or hidden in answer.request.content.decode(errors="replace"), answer.text
    if answer.status_code >= 400 and answer.request.method != "HEAD":
        error = answer.json()["error"]
        assert (answer.status_code, True) == (error["code"], bool(error["message"] and error["type"]))


async def _fuzzed(lake: Lakehouse, count: int, seed: int) -> Counter[int]:
    fuzz, found = Fuzz(seed), Counter[int]()
    app = application(Warehouses({"lake": lambda: lake}), Principals.one(TOKEN, "fuzz"), Limits(body_bytes=1 << 16))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for _ in range(count):
            request = fuzz.request()
            answer = await client.request(**request)
            try:
                _judged(answer)
            except AssertionError as error:
                raise AssertionError(f"{request}: {error}") from error
            found[answer.status_code] += 1
    return found


def test_malformed_requests_are_refused_in_the_words_of_the_specification(lake: Lakehouse) -> None:
    found = asyncio.run(_fuzzed(lake, 400, seed=7))
    assert found[400] > 50
    assert found[200] + found[204] > 20
    assert [] == list(lake.refresh().check())


@pytest.mark.slow
def test_twenty_thousand_malformed_requests(lake: Lakehouse) -> None:
    """The memory that the process had after the first thousands is enough for the others."""
    found = asyncio.run(_fuzzed(lake, 4000, seed=1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(2, 6):
        found += asyncio.run(_fuzzed(lake, 4000, seed))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert 20_000 == found.total()
    assert grown < 200 * 1024, f"{grown} KiB more"
    assert [] == list(lake.refresh().check())
