"""Where there is nothing to do, that is an answer too, and a true one: whichever endpoint was asked before."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from pipelines import clean, expire
from tests.core.test_rest import _FIELDS, Client, _app
from tests.support.clock import Clock
from tests.support.lakes import FAST
from trinitylake_core import Lakehouse

_TABLE: Final = "/v1/lake/namespaces/a/tables/t"
_OTHER: Final = "/v1/lake/namespaces/a/tables/u"
_PROPERTIES: Final = "/v1/lake/namespaces/a/properties"


@pytest.fixture
def two(lake: Lakehouse) -> Iterator[tuple[Client, Client]]:
    """Two endpoints over a lakehouse with two tables, each of which has seen all there is."""
    with _app(lake) as first, _app(Lakehouse.open(lake.root, storage_options=FAST)) as second:
        first("POST", "/v1/lake/namespaces", {"namespace": ["a"]})
        for name in ("t", "u"):
            first("POST", "/v1/lake/namespaces/a/tables", {"name": name, "schema": _FIELDS})
        second("GET", _TABLE)
        yield first, second


def _update(action: str, **about: Any) -> dict[str, Any]:
    return {"requirements": [], "updates": [{"action": action, **about}]}


_SET: Final = _update("set-properties", updates={"x": "1"})
_REMOVE: Final = _update("remove-properties", removals=["x"])


def _named(name: str, commit: dict[str, Any]) -> dict[str, Any]:
    return {"identifier": {"namespace": ["a"], "name": name}, **commit}


def test_a_property_of_a_namespace_that_another_endpoint_has_set_is_removed(two: tuple[Client, Client]) -> None:
    first, second = two
    assert 200 == first("POST", _PROPERTIES, {"updates": {"x": "1"}}).status
    assert ["x"] == second("POST", _PROPERTIES, {"removals": ["x"]}).json()["removed"]
    assert {} == first("GET", "/v1/lake/namespaces/a").json()["properties"]


def test_what_is_missing_is_missing_in_the_newest_version(two: tuple[Client, Client], lake: Lakehouse) -> None:
    """Nothing is committed for that."""
    version = lake.refresh().version
    assert ["x"] == two[1]("POST", _PROPERTIES, {"removals": ["x"]}).json()["missing"]
    assert version == lake.refresh().version


def test_a_property_of_a_table_that_another_endpoint_has_set_is_removed(two: tuple[Client, Client]) -> None:
    first, second = two
    assert 200 == first("POST", _TABLE, _SET).status
    assert "x" not in second("POST", _TABLE, _REMOVE).json()["metadata"]["properties"]
    assert "x" not in first("GET", _TABLE).json()["metadata"]["properties"]


def test_that_there_is_nothing_to_do_for_one_of_two_tables_stays_true(two: tuple[Client, Client]) -> None:
    """The commit of the other one stands on the version that has what is to be removed."""
    first, second = two
    assert 200 == first("POST", _TABLE, _SET).status
    both = {"table-changes": [_named("t", _REMOVE), _named("u", _SET)]}
    assert 204 == second("POST", "/v1/lake/transactions/commit", both).status
    properties = [first("GET", path).json()["metadata"]["properties"] for path in (_TABLE, _OTHER)]
    assert [False, True] == ["x" in each for each in properties]


def test_an_endpoint_that_was_idle_for_long_reads_before_it_refuses(
    two: tuple[Client, Client], lake: Lakehouse, clock: Clock
) -> None:
    """All versions that it has seen have expired, and their files are gone."""
    first, second = two
    for number in range(3):
        assert 200 == first("POST", _PROPERTIES, {"updates": {"n": str(number)}}).status
    month = time.time_ns() // 1_000_000 + 30 * 86_400_000
    expire.run(lake.refresh(), expire.Config(keep_last=1, engine="local", now_millis=month))
    clean.run(lake.refresh(), clean.Config(engine="local", now_millis=month))
    clock.set(month)
    assert 200 == second("POST", _PROPERTIES, {"updates": {"n": "3"}}).status
    assert {"n": "3"} == first("GET", "/v1/lake/namespaces/a").json()["properties"]
