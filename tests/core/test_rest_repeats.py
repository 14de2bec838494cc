"""Requests with an idempotency key that a client sends again: each is carried out once, whichever endpoint gets it."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any, Final

import pytest

from pipelines import clean, expire
from tests.core.test_rest import _FIELDS, Answer, Client, _app, _view
from tests.support.clock import Clock
from tests.support.faults import FaultPlan, Mode, attach, detach
from tests.support.icebergs import request_key
from tests.support.lakes import FAST, compacted, new_lake
from trinitylake_core import Lakehouse
from trinitylake_core.transactions import requests as keys

_TABLES: Final = "/v1/lake/namespaces/a/tables"


def _sets(**properties: str) -> dict[str, Any]:
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": properties}]}


@pytest.fixture
def crowded(tmp_path: Path) -> Lakehouse:
    """A lakehouse with room for pivots in its root, and for nothing else: each commit is a bulk version."""
    sizes = {f"{kind}_name_max_size_bytes": 300 for kind in ("namespace", "table", "view")}
    made = new_lake(tmp_path, target=4060, **sizes)
    with made.transaction() as txn:
        txn.create_namespace("b0")
        for number in range(28):
            txn.create_table("b0", f"t{number:03}")
    made.refresh()
    compacted(made)
    return made.refresh()


@pytest.fixture
def two(lake: Lakehouse) -> Iterator[tuple[Client, Client]]:
    """Two endpoints that know nothing of each other, over a lakehouse with a table."""
    with _app(lake) as first, _app(Lakehouse.open(lake.root, storage_options=FAST)) as second:
        first("POST", "/v1/lake/namespaces", {"namespace": ["a"], "properties": {"old": "1"}})
        first("POST", _TABLES, {"name": "t", "schema": _FIELDS})
        yield first, second


_REQUESTS: Final[dict[str, tuple[str, str, Any]]] = {
    "namespace": ("POST", "/v1/lake/namespaces", {"namespace": ["b"], "properties": {"x": "1"}}),
    "properties": ("POST", "/v1/lake/namespaces/a/properties", {"removals": ["old", "none"], "updates": {"x": "1"}}),
    "table": ("POST", _TABLES, {"name": "new", "schema": _FIELDS}),
    "commit": ("POST", f"{_TABLES}/t", _sets(x="1")),
    "transaction": (
        "POST",
        "/v1/lake/transactions/commit",
        {"table-changes": [{"identifier": {"namespace": ["a"], "name": "t"}, **_sets(x="1")}]},
    ),
    "rename": (
        "POST",
        "/v1/lake/tables/rename",
        {"source": {"namespace": ["a"], "name": "t"}, "destination": {"namespace": ["a"], "name": "u"}},
    ),
    "drop": ("DELETE", f"{_TABLES}/t", None),
    "view": ("POST", "/v1/lake/namespaces/a/views", _view("v", ("spark", "select 1"))),
}


@pytest.mark.parametrize("digest", ["same", "other"])
@pytest.mark.parametrize("name", _REQUESTS)
def test_an_endpoint_takes_no_version_of_another_one_for_its_own(name: str, digest: str, crowded: Lakehouse) -> None:
    """It loses the race to a version that has its key, and too many changes for a root: the answer is the first one's.

    Where another request had the key the answer is a refusal, also if both mean the same.
    """
    elsewhere = Lakehouse.open(crowded.root, storage_options=FAST)
    with _app(crowded) as first, _app(elsewhere) as second:
        first("POST", "/v1/lake/namespaces", {"namespace": ["a"], "properties": {"old": "1"}})
        first("POST", _TABLES, {"name": "t", "schema": _FIELDS})
        method, path, body = _REQUESTS[name]
        key = request_key()
        answers: list[Answer] = []

        def send_first(kind: str, file: str, action: Callable[[], Any]) -> Any:
            if kind == "create" and not answers:
                answers.append(first(method, path, body, Idempotency_Key=key))
            return action()

        elsewhere.storage.interceptor = send_first
        url = path if digest == "same" else f"{path}?other=1"
        late = second(method, url, body, Idempotency_Key=key)
        made = crowded.refresh()
        assert made.root_node.is_bulk
        if digest == "same":
            assert _content(answers[0]) == _content(late)
        else:
            assert (422, "UnprocessableEntityException") == late.problem
        assert [key] == [each["txn"] for each in next(made.history()).summary["members"]]


def _content(answer: Answer) -> tuple[int, Any]:
    """Return what matters of an answer: lists in any order, and not what clients know of the storage already."""
    found = json.loads(answer.text) if answer.text else {}
    shown = {name: sorted(value) if name in {"removed", "missing"} else value for name, value in found.items()}
    shown.pop("config", None)
    return answer.status, shown


def test_of_the_same_request_at_two_endpoints_at_once_one_is_carried_out(
    two: tuple[Client, Client], lake: Lakehouse
) -> None:
    """Both are told the same, though each made metadata of its own; others commit to the table at the same time."""
    for number in range(12):
        before, key, ready = lake.refresh().version, request_key(), Barrier(5)

        def send(index: int, key: str = key, number: int = number, ready: Barrier = ready) -> Answer:
            ready.wait()
            if index == 4:
                return two[0]("POST", f"{_TABLES}/t", _sets(other=str(number)))
            return two[index % 2]("POST", f"{_TABLES}/t", _sets(number=str(number)), Idempotency_Key=key)

        with ThreadPoolExecutor(5) as threads:
            *twins, other = threads.map(send, range(5))
        assert {200} == {each.status for each in (*twins, other)}, [each.text for each in (*twins, other)]
        assert 1 == len({each.json()["metadata-location"] for each in twins})
        members = [
            each["txn"]
            for info in lake.refresh().history(limit=lake.refresh().version - before)
            for each in info.summary.get("members", ())
        ]
        assert 1 == members.count(key)


@pytest.mark.parametrize("mode", ["fail_from", "lose_from"])
def test_an_endpoint_that_ends_at_any_request_is_asked_again_elsewhere(
    mode: Mode, two: tuple[Client, Client], lake: Lakehouse
) -> None:
    """From one request of the storage on nothing reaches it, or no answer reaches the endpoint: as if it was killed."""
    path, refused, plan = f"{_TABLES}/t", 0, FaultPlan(mode)
    for number in range(1, 60):
        two[0]("POST", path, _sets(number="0"), Idempotency_Key=request_key())  # it knows all versions now
        storage, key, before = lake.storage, request_key(), lake.refresh().version
        plan = attach(storage, FaultPlan(mode, at=number))
        first = two[0]("POST", path, _sets(number=str(number)), Idempotency_Key=key)
        detach(storage)
        again = two[1]("POST", path, _sets(number=str(number)), Idempotency_Key=key)
        assert (200, str(number)) == (again.status, again.json()["metadata"]["properties"]["number"]), again.text
        assert before + 1 == lake.refresh().version
        if plan.count < number:
            break
        refused += first.status != 200
    assert refused > 2
    assert plan.count < plan.at


def test_a_key_serves_one_request(two: tuple[Client, Client], lake: Lakehouse) -> None:
    key = request_key()
    assert 200 == two[0]("POST", f"{_TABLES}/t", _sets(x="1"), Idempotency_Key=key.upper()).status
    version = lake.refresh().version
    for client in two:
        other = client("POST", f"{_TABLES}/t", _sets(x="2"), Idempotency_Key=key)
        assert (422, "UnprocessableEntityException") == other.problem
    assert version == lake.refresh().version
    assert "PT30M" == two[0]("GET", "/v1/config").json()["idempotency-key-lifetime"]


@pytest.mark.parametrize("key", ["", "x", "550e8400-e29b-41d4-a716-446655440000", "a" * 36, -1900, 90])
def test_a_key_that_is_none_is_refused(key: str | int, two: tuple[Client, Client], lake: Lakehouse) -> None:
    """A number is the time of a key, in seconds from now."""
    is_key = isinstance(key, int)
    key = request_key(key) if isinstance(key, int) else key
    version = lake.refresh().version
    answer = two[0]("POST", f"{_TABLES}/t", _sets(x="1"), Idempotency_Key=key)
    refused = (400, "BadRequestException")
    if is_key:
        refused = (500, "CommitStateUnknownException")  # it may have been carried out, by a clock that was right then
    assert refused == answer.problem
    assert "idempotency key" in answer.json()["error"]["message"]
    assert version == lake.refresh().version
    assert 200 == two[0]("GET", f"{_TABLES}/t", Idempotency_Key=key).status  # nothing is changed, so nothing is asked


def test_what_was_refused_is_judged_again(two: tuple[Client, Client]) -> None:
    key, body = request_key(), {"name": "t", "schema": _FIELDS}
    assert 409 == two[0]("POST", _TABLES, body, Idempotency_Key=key).status
    two[0]("DELETE", f"{_TABLES}/t")
    assert 200 == two[1]("POST", _TABLES, body, Idempotency_Key=key).status


def test_the_answer_is_that_of_its_version_or_of_now(two: tuple[Client, Client], lake: Lakehouse) -> None:
    key, path = request_key(), f"{_TABLES}/t"
    made = two[0]("POST", path, _sets(x="1"), Idempotency_Key=key)
    two[0]("POST", path, _sets(x="2"))
    assert made.json()["metadata"] == two[1]("POST", path, _sets(x="1"), Idempotency_Key=key).json()["metadata"]
    lake.refresh().rollback(version=lake.refresh().version - 2, reason="a rollback undoes it, and it stays done")
    assert "1" == two[1]("POST", path, _sets(x="1"), Idempotency_Key=key).json()["metadata"]["properties"]["x"]
    assert "x" not in two[1]("GET", path).json()["metadata"]["properties"]


def _gets(client: Client, lake: Lakehouse, key: str | None = None) -> int:
    """Return how many files of the lakehouse an endpoint reads for a commit with a key, or without one."""
    before = lake.storage.counts.snapshot()
    given = {} if key is None else {"Idempotency_Key": key}
    assert 200 == client("POST", f"{_TABLES}/t", _sets(z=secrets.token_hex(4)), **given).status
    return (lake.storage.counts - before).get


def _keys_of_now(number: int) -> list[str]:
    """Return keys of which each has a later time than the one before."""
    return [request_key((each - number) / 1000) for each in range(number)]


def test_a_key_that_is_newer_than_all_is_not_looked_for(two: tuple[Client, Client], lake: Lakehouse) -> None:
    """The newest version contains how new a key can be in any version up to it."""
    for number in range(20):
        two[0]("POST", f"{_TABLES}/t", _sets(x=str(number)))
    cold = Lakehouse.open(lake.root, storage_options=FAST)
    with _app(cold) as client:
        first, plain = _gets(client, cold), _gets(client, cold)
        assert plain == first - 1  # the metadata that the first one wrote are not read
        assert plain == _gets(client, cold, request_key())


def _let_expire(lake: Lakehouse) -> None:
    """Have all versions but the newest one expire, and clean."""
    month = time.time_ns() // 1_000_000 + 30 * 86_400_000  # younger versions than a transaction may live never expire
    expire.run(lake.refresh(), expire.Config(keep_last=1, engine="local", now_millis=month))
    clean.run(lake.refresh(), clean.Config(engine="local", now_millis=month))


def test_where_versions_have_expired_the_outcome_is_unknown(two: tuple[Client, Client], lake: Lakehouse) -> None:
    """Unless the key is newer than all that these can contain."""
    early, late, newest = _keys_of_now(3)
    for number in range(3):
        two[0]("POST", f"{_TABLES}/t", _sets(x=str(number)))
    two[0]("POST", f"{_TABLES}/t", _sets(x="8"), Idempotency_Key=late)
    _let_expire(lake)
    with _app(Lakehouse.open(lake.root, storage_options=FAST)) as cold:
        answer = cold("POST", f"{_TABLES}/t", _sets(x="9"), Idempotency_Key=early)
        assert 200 == cold("POST", f"{_TABLES}/t", _sets(x="9"), Idempotency_Key=newest).status
    assert (500, "CommitStateUnknownException") == answer.problem


def test_a_version_with_a_time_in_the_future_makes_no_key_unknown(
    two: tuple[Client, Client], lake: Lakehouse, clock: Clock
) -> None:
    """Every version after it has a later time; those before it have expired."""
    ahead = time.time_ns() // 1_000_000 + 365 * 86_400_000
    with clock.another():
        clock.set(ahead)
        with lake.refresh().transaction() as txn:
            txn.create_namespace("by_another_clock")
    assert ahead <= lake.refresh().root_node.created_at_millis
    expire.run(lake, expire.Config(keep_last=1, engine="local", now_millis=ahead + 30 * 86_400_000))
    key = request_key()
    with _app(Lakehouse.open(lake.root, storage_options=FAST)) as cold:
        first = cold("POST", f"{_TABLES}/t", _sets(x="1"), Idempotency_Key=key)
        again = cold("POST", f"{_TABLES}/t", _sets(x="1"), Idempotency_Key=key)
    assert (200, 200) == (first.status, again.status), first.text
    assert first.json()["metadata-location"] == again.json()["metadata-location"]


def test_a_key_lives_no_longer_than_a_transaction(tmp_path: Path) -> None:
    """Versions that are older than that may have expired."""
    lake = Lakehouse.create((tmp_path / "short").as_uri(), storage_options=FAST, txn_ttl_millis=600_000)
    with _app(lake) as client:
        assert "PT7M" == client("GET", "/v1/config").json()["idempotency-key-lifetime"]
        body = {"namespace": ["a"]}
        old = client("POST", "/v1/lake/namespaces", body, Idempotency_Key=request_key(-500))
        assert (500, "CommitStateUnknownException") == old.problem
        assert 200 == client("POST", "/v1/lake/namespaces", body, Idempotency_Key=request_key(-400)).status


def test_what_is_remembered_is_bounded(
    two: tuple[Client, Client], lake: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "_MOST", 8)
    first = request_key()
    for number in range(30):
        two[0]("POST", f"{_TABLES}/t", _sets(x=str(number)), Idempotency_Key=first if number == 0 else request_key())
    version = lake.refresh().version
    again = two[0]("POST", f"{_TABLES}/t", _sets(x="0"), Idempotency_Key=first)
    assert "0" == again.json()["metadata"]["properties"]["x"]
    assert version == lake.refresh().version
