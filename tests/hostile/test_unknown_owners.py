"""What cannot be read protects the places that it may name, and nobody's own ones: the message says what mends it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from pyiceberg.catalog import Catalog, load_catalog

from pipelines import mend
from tests.core.test_rest import Client
from tests.hostile.lakehouse import HOSTILE, NAMESPACE, make_people, new_lakehouse
from tests.hostile.served import FIELDS, TABLES, VIEWS, commit, served, setting, view_of
from tests.support.icebergs import ids, rows
from tests.support.lakes import reopened
from trinitylake_core.iceberg import ALLOWED_LOCATIONS, TrinityLakeCatalog

_RIGHTS: Final = {
    "mallory": {"manage": [f"{NAMESPACE}.*"], "write": [NAMESPACE]},
    "anna": {"manage": ["hr.*"]},
    "walter": {"write": ["hr.others"]},
}


@pytest.fixture
def catalog(tmp_path: Path) -> TrinityLakeCatalog:
    """Return a lakehouse with two tables of `hr` that lie in an allowed prefix."""
    catalog = new_lakehouse(tmp_path)
    shared = (tmp_path / "shared").as_uri()
    catalog.create_namespace("hr")
    make_people(catalog, "hr.people", f"{shared}/people")
    paths = {"write.data.path": f"{shared}/data/others"}
    make_people(catalog, "hr.others", f"{shared}/others", **paths)
    return catalog


def _file_of(catalog: TrinityLakeCatalog, kind: str, name: str) -> Path:
    """Return the file of the newest definition of an object."""
    lake = catalog.lakehouse.refresh()
    (entry,) = [each for each in lake.objects() if (each.kind, each.name or each.namespace) == (kind, name)]
    return Path(lake.root.removeprefix("file://")) / entry.path


@contextmanager
def _damaged(file: Path) -> Iterator[None]:
    content = file.read_bytes()
    file.write_bytes(b"damaged")
    yield
    file.write_bytes(content)


def _client(call: Client, name: str) -> Catalog:
    return load_catalog(name, type="rest", uri=call.uri, warehouse="lake", token=name)


def _ways(call: Client, place: str) -> Iterator[tuple[str, int, str]]:
    """Yield what is answered to ways to have a place in an allowed prefix."""
    made = call("POST", TABLES, {"name": "new", "schema": FIELDS, "location": place})
    yield "create", made.status, made.text
    changed = commit(call, HOSTILE, setting(write__data__path=place))
    yield "data path", changed.status, changed.text
    view = call("POST", VIEWS, view_of("v", location=place))
    yield "view", view.status, view.text
    path = f"/v1/lake/namespaces/{NAMESPACE}/properties"
    namespace = call("POST", path, {"updates": {"location": place}})
    yield "namespace", namespace.status, namespace.text


@pytest.mark.parametrize("gone", [False, True])
def test_a_definition_that_cannot_be_read_leaves_no_place_free(
    gone: bool, catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    shared = (tmp_path / "shared").as_uri()
    file = _file_of(catalog, "table", "people")
    if gone:
        catalog.drop_table("hr.people")
    with served(catalog, {ALLOWED_LOCATIONS: shared}, **_RIGHTS) as call:
        with _damaged(file):
            for place in (f"{shared}/people", f"{shared}/people/data/x", f"{shared}/new"):
                for way, status, text in _ways(call, place):
                    assert 403 == status, f"{way} of {place}: {text}"
                    assert "people" not in text.replace(place, "")
                    assert gone or "`trinitylake mend ROOT --from BACKUP`" in text
            made = call("POST", TABLES, {"name": "own", "schema": FIELDS})
            assert 200 == made.status, "in the directory that the catalog makes"
            _client(call, "walter").load_table("hr.others").append(rows(4243))  # an owner goes on in what is theirs
            if not gone:
                with catalog.lakehouse.refresh().transaction() as txn:
                    txn.drop_table("hr", "people")
            here = {"name": "people", "schema": FIELDS, "location": f"{shared}/people"}
            back = Client(call.uri, "anna")("POST", "/v1/lake/namespaces/hr/tables", here)
            assert 200 == back.status, f"who may manage what cannot be read: {back.text}"
        for way, status, text in _ways(call, f"{shared}/people"):
            assert 403 == status, f"{way}: {text}"
        for way, status, text in _ways(call, f"{shared}/new"):
            assert (200 if way == "create" else 403) == status, f"{way}: {text}"
    assert [4242, 4243] == ids(catalog.load_table("hr.others"))


def test_a_namespace_that_cannot_be_read_may_have_any_location(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    shared = (tmp_path / "shared").as_uri()
    body = {"namespace": ["new"], "properties": {"location": f"{shared}/new"}}
    with served(catalog, {ALLOWED_LOCATIONS: shared}) as call:
        with _damaged(_file_of(catalog, "namespace", "hr")):
            made = call("POST", "/v1/lake/namespaces", body)
            assert (403, "ForbiddenException") == made.problem
            assert "mend ROOT" in made.text
        assert 200 == call("POST", "/v1/lake/namespaces", body).status


@pytest.mark.parametrize("what", ["in the middle", "the oldest one", "missing"])
def test_a_damaged_version_stops_no_owner(what: str, catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    shared = (tmp_path / "shared").as_uri()
    damaged = catalog.lakehouse.refresh().version
    catalog.drop_table("hr.people")
    if what == "the oldest one":
        damaged = 0
    versions = catalog.lakehouse.backend.versions
    root = Path(catalog.lakehouse.root.removeprefix("file://")) / versions.path(damaged)
    if what == "missing":
        root.unlink()
    else:
        root.write_bytes(b"damaged")
    with served(catalog, {ALLOWED_LOCATIONS: shared}, **_RIGHTS) as call:
        _client(call, "walter").load_table("hr.others").append(rows(4243))
        for place in (f"{shared}/people", f"{shared}/new"):
            for way, status, text in _ways(call, place):
                assert 403 == status, f"{way} of {place}: {text}"
                assert f"version {damaged} cannot be read" in text
                assert "`trinitylake mend ROOT --from BACKUP`" in text
        config = mend.Config(reason="nobody has it any more", lost=(damaged,), engine="local")
        mend.run(reopened(catalog.lakehouse), config)
        for place, allowed in ((f"{shared}/people", 403), (f"{shared}/new", 200)):
            made = call("POST", TABLES, {"name": "new", "schema": FIELDS, "location": place})
            assert allowed == made.status, made.text
    assert [4242, 4243] == ids(catalog.load_table("hr.others"))


@pytest.mark.parametrize("odd", ["write.data.path", "metadata_location"])
def test_one_odd_place_gives_away_no_other_one(odd: str, catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    """A definition that another program wrote may name a place that leads out of the lakehouse."""
    shared = (tmp_path / "shared").as_uri()
    root = catalog.lakehouse.root
    with catalog.lakehouse.refresh().transaction() as txn:
        stored = txn.table("hr", "others")
        properties, facts = dict(stored.properties), dict(stored.format_properties)
        properties["write.object-storage.path"] = f"{shared}/objects"
        if odd == "write.data.path":
            properties[odd] = f"{root}/a/../b"
        else:
            facts[odd] = f"{root}/a/../b"
        txn.alter_table("hr", "others", properties=properties, format_properties=facts)
    with served(catalog, {ALLOWED_LOCATIONS: shared}) as call:
        made = call("POST", TABLES, {"name": "new", "schema": FIELDS, "location": f"{shared}/objects/x"})
        assert 403 == made.status, made.text
