"""Rights on names bind places: a client gets at nothing but the table's own directory, and at allowed prefixes."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import ForbiddenError, ValidationError

from tests.core.test_rest import Client
from tests.hostile.lakehouse import HOSTILE, NAMESPACE, SOUND, metadata_file, new_lakehouse
from tests.hostile.served import (
    FIELDS,
    REGISTER,
    TABLES,
    VIEWS,
    adding_snapshot,
    commit,
    create_by_commit,
    served,
    setting,
    view_of,
)
from tests.support.opened_files import watched
from tests.support.respelled import local
from trinitylake_core.errors import InvalidInput
from trinitylake_core.iceberg import ALLOWED_LOCATIONS, TrinityLakeCatalog
from trinitylake_core.rest import Warehouses


@pytest.fixture
def catalog(tmp_path: Path) -> TrinityLakeCatalog:
    return new_lakehouse(tmp_path)


@pytest.fixture
def call(catalog: TrinityLakeCatalog) -> Iterator[Client]:
    with served(catalog) as client:
        yield client


@pytest.fixture
def elsewhere(catalog: TrinityLakeCatalog, tmp_path: Path) -> dict[str, str]:
    """Return places that are not the tenth table's, by what they are."""
    base = catalog._places.base
    other = metadata_file(catalog, SOUND[0]).parents[1]
    own = metadata_file(catalog).parents[1]
    return {
        "outside": (tmp_path / "outside").as_uri(),
        "the root": base,
        "all tables": f"{base}tables",
        "a namespace": f"{base}tables/{NAMESPACE}",
        "another table": f"file://{other}",
        "another table by a way around": f"file://{own}/../{other.name}",
        "another table in percent": f"file://{own}/%2e%2e/{other.name}",
        "another bucket": "s3://other/bucket",
        "nothing": "relative/path",
        "a name like its own": f"file://{own}-more",
        "python": "print('x')",
    }


def _statistics(kind: str, location: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"snapshot-id": 1, "statistics-path": location, "file-size-in-bytes": 1}
    if kind == "statistics":
        fields |= {"file-footer-size-in-bytes": 1, "blob-metadata": []}
    return {"action": f"set-{kind}", "snapshot-id": 1, kind: fields}


def _ways_to_name(place: str) -> list[dict[str, Any]]:
    """Return the updates by which a commit may name a place."""
    return [
        {"action": "set-location", "location": place},
        setting(write__data__path=place),
        setting(write__metadata__path=place),
        setting(write__object_storage__path=place),
        setting(write__folder_storage__path=place),
        setting(write__anything__location=place),
        adding_snapshot(f"{place}/snap-77.avro"),
        _statistics("statistics", f"{place}/77.stats"),
        _statistics("partition-statistics", f"{place}/77.stats"),
    ]


def test_a_commit_names_no_place_but_the_tables_own(
    catalog: TrinityLakeCatalog, call: Client, elsewhere: dict[str, str], tmp_path: Path
) -> None:
    before = sorted(path for path in tmp_path.rglob("*") if path.name != "pulse")
    version = catalog.lakehouse.version
    for what, place in elsewhere.items():
        for update in _ways_to_name(place):
            answer = commit(call, HOSTILE, update)
            assert answer.status in {400, 403}, f"{what}: {update}: {answer.text}"
            assert any(words in answer.text for words in ("outside", "absolute", "lead anywhere")), answer.text
    assert version == catalog.lakehouse.version
    assert before == sorted(path for path in tmp_path.rglob("*") if path.name != "pulse")


def test_a_commit_may_name_any_place_in_the_tables_directory(catalog: TrinityLakeCatalog, call: Client) -> None:
    own = metadata_file(catalog).parents[1].as_uri()
    snapshot = catalog.load_table(f"{NAMESPACE}.{HOSTILE}").current_snapshot()
    assert snapshot is not None
    listed = local(snapshot.manifest_list)
    shutil.copy(listed, listed.with_name("snap-77.avro"))
    for update in (
        {"action": "set-location", "location": f"{own}/inner"},
        setting(write__data__path=f"{own}/data2", write__metadata__path=f"{own}/metadata2"),
        adding_snapshot(f"{own}/metadata/snap-77.avro"),
        {"action": "set-location", "location": own},
    ):
        assert 200 == commit(call, HOSTILE, update).status
    assert metadata_file(catalog).parent.name == "metadata2"


def test_a_table_is_created_where_it_is_its_own_and_nowhere_else(
    catalog: TrinityLakeCatalog, call: Client, elsewhere: dict[str, str]
) -> None:
    version = catalog.lakehouse.version
    for what, place in elsewhere.items():
        for body in (
            {"name": "new", "schema": FIELDS, "location": place},
            {"name": "new", "schema": FIELDS, "location": place, "stage-create": True},
            {"name": "new", "schema": FIELDS, "properties": {"write.data.path": place}},
        ):
            answer = call("POST", TABLES, body)
            assert answer.status in {400, 403}, f"{what}: {answer.text}"
        created = create_by_commit(call, "new", place)
        assert created.status in {400, 403}, f"{what}: {created.text}"
    assert version == catalog.lakehouse.version


def test_a_staged_table_is_created_where_it_was_staged_by_whichever_endpoint(catalog: TrinityLakeCatalog) -> None:
    body = {"name": "new", "schema": FIELDS, "stage-create": True}
    with served(catalog) as one, served(catalog) as other:
        for client, name in ((one, "new"), (other, "newer")):
            staged = one("POST", TABLES, body | {"name": name}).json()["metadata"]
            made = create_by_commit(client, name, staged["location"], staged["table-uuid"])
            assert (200, staged["table-uuid"]) == (made.status, made.json()["metadata"]["table-uuid"])


def test_a_directory_of_another_table_is_no_place_for_a_new_one(catalog: TrinityLakeCatalog, call: Client) -> None:
    """Also where it was made for this name: the table that lies there has been renamed since."""
    place = metadata_file(catalog).parents[1].as_uri()
    names = {
        "source": {"namespace": [NAMESPACE], "name": HOSTILE},
        "destination": {"namespace": [NAMESPACE], "name": "b"},
    }
    assert 204 == call("POST", "/v1/lake/tables/rename", names).status
    assert 409 == create_by_commit(call, HOSTILE, place).status
    assert 200 == create_by_commit(call, HOSTILE, f"{place[:-12]}{'0' * 12}").status


def test_the_location_of_a_namespace_is_a_place_like_others(
    catalog: TrinityLakeCatalog, elsewhere: dict[str, str]
) -> None:
    with served(catalog) as call:
        for what, place in elsewhere.items():
            changes = {"updates": {"location": place}}
            answer = call("POST", f"/v1/lake/namespaces/{NAMESPACE}/properties", changes)
            assert answer.status in {400, 403}, f"{what}: {answer.text}"
            made = {"namespace": ["new"], "properties": {"location": place}}
            answer = call("POST", "/v1/lake/namespaces", made)
            assert answer.status in {400, 403}, f"{what}: {answer.text}"


def test_what_the_operator_allows_is_allowed(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    allowed = (tmp_path / "allowed").as_uri()
    with served(catalog, {ALLOWED_LOCATIONS: f"s3://other/x, {allowed}"}) as call:
        for update in _ways_to_name(f"{allowed}/t")[:5]:
            assert 200 == commit(call, SOUND[0], update).status
        made = call("POST", TABLES, {"name": "new", "schema": FIELDS, "location": f"{allowed}/new"})
        assert made.json()["metadata"]["location"] == f"{allowed}/new"
        file = Path(made.json()["metadata-location"].removeprefix("file://"))
        assert file.is_relative_to(tmp_path / "allowed")
        assert 204 == call("DELETE", f"{TABLES}/new").status
        assert 200 == call("POST", REGISTER, {"name": "again", "metadata-location": file.as_uri()}).status
        assert 403 == call("POST", TABLES, {"name": "x", "schema": FIELDS, "location": f"{allowed}-more/new"}).status


def test_what_the_operator_allows_around_the_lakehouse_allows_nothing_in_it(
    catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    """There are the files of the catalog, and those that it makes itself."""
    above = tmp_path.as_uri()
    with served(catalog, {ALLOWED_LOCATIONS: above}) as call:
        for place in (f"{catalog._places.base}nodes/x", f"{catalog._places.base}vn", f"{catalog._places.base}new/t"):
            made = call("POST", TABLES, {"name": "new", "schema": FIELDS, "location": place})
            assert (403, "ForbiddenException") == made.problem, place
            assert 403 == commit(call, HOSTILE, setting(write__data__path=place)).status
        assert 200 == call("POST", TABLES, {"name": "new", "schema": FIELDS, "location": f"{above}/new/t"}).status
        assert 200 == call("POST", TABLES, {"name": "own", "schema": FIELDS}).status
        assert 200 == commit(call, "own", setting(comment="x")).status


def test_lakehouses_of_one_endpoint_share_no_places(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    lakes = {"one": lambda: catalog.lakehouse, "two": lambda: catalog.lakehouse}
    for name in ("warehouse", ALLOWED_LOCATIONS):
        with pytest.raises(InvalidInput, match="serve each by an endpoint of its own"):
            Warehouses(lakes, {name: tmp_path.as_uri()})
    assert ["one", "two"] == Warehouses(lakes, {"s3.region": "x"}).names


# -- views ---------------------------------------------------------------------------------------------


def test_a_view_names_no_place_but_its_own(
    catalog: TrinityLakeCatalog, call: Client, elsewhere: dict[str, str], tmp_path: Path
) -> None:
    made = call("POST", VIEWS, view_of("v"))
    assert 200 == made.status, made.text
    version = catalog.lakehouse.version
    for what, place in elsewhere.items():
        answers = [
            call("POST", VIEWS, view_of("w", location=place)),
            call("POST", VIEWS, view_of("w", properties={"write.metadata.path": place})),
            call("POST", f"{VIEWS}/v", {"updates": [{"action": "set-location", "location": place}]}),
            call("POST", f"{VIEWS}/v", {"updates": [setting(write__metadata__path=place)]}),
        ]
        for answer in answers:
            assert answer.status in {400, 403}, f"{what}: {answer.text}"
    assert version == catalog.lakehouse.version
    assert not (tmp_path / "outside").exists()


def test_the_file_of_a_view_is_registered_only_while_no_other_view_has_it(call: Client) -> None:
    location = call("POST", VIEWS, view_of("v")).json()["metadata-location"]
    body = {"name": "again", "metadata-location": location}
    path = f"/v1/lake/namespaces/{NAMESPACE}/register-view"
    assert 409 == call("POST", path, body).status
    assert 204 == call("DELETE", f"{VIEWS}/v").status
    assert 200 == call("POST", path, body).status


# -- what is registered --------------------------------------------------------------------------------


def _written(catalog: TrinityLakeCatalog, directory: Path, **fields: Any) -> Path:
    """Write the metadata of a table that nobody has registered, in a directory of its own."""
    document = json.loads(metadata_file(catalog).read_text())
    document |= {"table-uuid": str(uuid.uuid4()), "location": f"file://{directory}", "metadata-log": []}
    document |= {"snapshots": [], "refs": {}, "snapshot-log": [], "current-snapshot-id": None}
    file = directory / "metadata" / f"00000-{uuid.uuid4()}.metadata.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document | fields))
    return file


def _places_in(file: str) -> list[dict[str, Any]]:
    """Return the fields by which registered metadata may name a place."""
    snapshot = adding_snapshot(file)["snapshot"]
    return [
        {"location": file},
        {"properties": {"write.data.path": file}},
        {"snapshots": [snapshot], "current-snapshot-id": 77},
        {"statistics": [_statistics("statistics", file)["statistics"]]},
        {"partition-statistics": [_statistics("partition-statistics", file)["partition-statistics"]]},
        {"metadata-log": [{"timestamp-ms": 1, "metadata-file": file}]},
    ]


def test_registered_metadata_name_no_place_but_their_own(
    catalog: TrinityLakeCatalog, call: Client, elsewhere: dict[str, str]
) -> None:
    root = Path(catalog._places.base.removeprefix("file://"))
    own = root / "tables" / "brought" / "t-0123456789ab"
    version = catalog.lakehouse.version
    for what, place in elsewhere.items():
        for fields in _places_in(place):
            file = _written(catalog, own, **fields)
            answer = call("POST", REGISTER, {"name": "new", "metadata-location": file.as_uri()})
            assert answer.status in {400, 403}, f"{what}: {fields}: {answer.text}"
    assert version == catalog.lakehouse.version
    file = _written(catalog, own, properties={"write.data.path": f"file://{own}/data"})
    made = call("POST", REGISTER, {"name": "new", "metadata-location": file.as_uri()})
    assert 200 == made.status, made.text


def test_register_reads_below_the_root_and_allowed_prefixes_only(
    catalog: TrinityLakeCatalog, call: Client, tmp_path: Path
) -> None:
    file = _written(catalog, tmp_path / "theirs")
    for location in (file.as_uri(), str(file), "file:///etc/passwd", "s3://other/m.metadata.json", "/dev/zero"):
        for kind in ("register", "register-view"):
            path = f"/v1/lake/namespaces/{NAMESPACE}/{kind}"
            answer = call("POST", path, {"name": "new", "metadata-location": location})
            assert (403, "ForbiddenException") == answer.problem, location
    assert "theirs" not in call("GET", "/metrics").text


# -- rights --------------------------------------------------------------------------------------------


def test_who_may_write_a_table_may_not_create_one(catalog: TrinityLakeCatalog) -> None:
    place = f"{catalog._places.base}tables/{NAMESPACE}/new-{'0' * 12}"
    with served(catalog, writer={"write": [f"{NAMESPACE}.*"]}) as call:
        refused = create_by_commit(call, "new", place)
        assert (403, "writer may not manage 'sales.new'") == (refused.status, refused.json()["error"]["message"])
        change = {
            "identifier": {"namespace": [NAMESPACE], "name": "new"},
            "requirements": [{"type": "assert-create"}],
            "updates": [],
        }
        assert 403 == call("POST", "/v1/lake/transactions/commit", {"table-changes": [change]}).status
        assert 200 == commit(call, HOSTILE, setting(owner="me")).status
    assert not catalog.table_exists(f"{NAMESPACE}.new")


# -- links that whoever may write a directory puts there -------------------------------------------------


def _replace_by_link(path: Path, target: Path) -> None:
    path.rename(path.with_name(f"{path.name}-before"))
    path.symlink_to(os.path.relpath(target, path.parent))


@pytest.mark.parametrize("place", ["shared", "lake/other"])
@pytest.mark.parametrize("link", ["file", "metadata", "table", "namespace"])
def test_no_metadata_behind_a_link_are_read_or_written(
    link: str, place: str, catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    """Also not where the link stays in a prefix that the operator allowed: there it is another table's."""
    allowed = (tmp_path / place).as_uri()
    operator = TrinityLakeCatalog("operator", uri=catalog.lakehouse.root, **{ALLOWED_LOCATIONS: allowed})
    schema = catalog.load_table(f"{NAMESPACE}.{HOSTILE}").schema()
    locations = {}
    for name in ("theirs", "mine"):
        made = operator.create_table(f"{NAMESPACE}.{name}", schema, f"{allowed}/{name}-files/{name}")
        locations[name] = Path(local(made.metadata_location))
    mine, theirs = locations["mine"], locations["theirs"]
    theirs = theirs.rename(theirs.with_name(mine.name))
    if link == "namespace":
        theirs.parents[1].rename(theirs.parents[2] / "mine")
        theirs = theirs.parents[2] / "mine" / "metadata" / theirs.name
    level = ["file", "metadata", "table", "namespace"].index(link)
    _replace_by_link((mine, *mine.parents)[level], (theirs, *theirs.parents)[level])
    before = set(theirs.parent.iterdir())
    with served(catalog, {ALLOWED_LOCATIONS: allowed}) as call, watched([theirs]) as opened:
        for answer in (
            call("GET", f"{TABLES}/mine"),
            commit(call, "mine", setting(comment="x")),
            call("POST", REGISTER, {"name": "taken", "metadata-location": mine.as_uri()}),
            call("POST", f"{REGISTER}-view", {"name": "taken", "metadata-location": mine.as_uri()}),
        ):
            assert answer.status in {400, 403}, answer.text
        located = {"write.metadata.path": mine.parent.as_uri()}
        asked = {"name": "new", "schema": FIELDS, "location": f"{allowed}/mine-files/mine/new", "properties": located}
        made = call("POST", TABLES, asked)
        assert made.status == 403, made.text
    assert [] == opened
    assert before == set(theirs.parent.iterdir())
    with pytest.raises((ForbiddenError, ValidationError)):
        operator.load_table(f"{NAMESPACE}.mine")


def test_a_link_in_the_place_of_an_allowed_prefix_is_the_operators(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "shared").symlink_to("disk")
    allowed = (tmp_path / "shared").as_uri()
    with served(catalog, {ALLOWED_LOCATIONS: allowed}) as call:
        made = call("POST", TABLES, {"name": "new", "schema": FIELDS, "location": f"{allowed}/deep/new"})
        assert 200 == made.status, made.text
        assert 200 == commit(call, "new", setting(comment="x")).status
        assert 200 == call("GET", f"{TABLES}/new").status
    assert list((tmp_path / "disk/deep/new/metadata").iterdir())


@pytest.mark.parametrize("in_the_way", ["a link out", "a link inside", "a link to nothing", "a file", "a pipe"])
def test_no_table_is_created_behind_a_link_or_a_file(
    in_the_way: str, catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    """Staged, created at once, or by a commit; and the refusal names the place."""
    shared, outside = tmp_path / "shared", tmp_path / "outside"
    for each in (shared / "mine", shared / "theirs", outside):
        each.mkdir(parents=True)
    odd = shared / "mine" / "odd"
    if in_the_way == "a file":
        odd.write_text("x")
    elif in_the_way == "a pipe":
        os.mkfifo(odd)
    else:
        targets = {"a link out": outside, "a link inside": Path("../theirs"), "a link to nothing": Path("nothing")}
        odd.symlink_to(targets[in_the_way])
    allowed = shared.as_uri()
    body = {"name": "new", "schema": FIELDS}
    with served(catalog, {ALLOWED_LOCATIONS: allowed}) as call:
        staged = body | {"name": "staged", "stage-create": True}
        assert 200 == call("POST", TABLES, staged | {"location": f"{allowed}/mine/deep/new"}).status
        for number, place in enumerate((f"{allowed}/mine/odd/deep/new", f"{allowed}/mine/odd")):
            moved = setting(write__metadata__path=place), {"action": "set-location", "location": place}
            answers = [
                call("POST", TABLES, staged | {"location": place}),
                call("POST", TABLES, body | {"location": place}),
                create_by_commit(call, "new", place),
                commit(call, SOUND[number], *moved),
                call("POST", VIEWS, view_of("v", location=place)),
            ]
            for answer in answers:
                assert answer.status in {400, 403}, f"{place}: {answer.text}"
                assert place in answer.text
        for each in (body, staged):
            long = call("POST", TABLES, each | {"location": f"{allowed}/{'x' * 300}/new"})
            assert 400 == long.status, long.text
        after = call("POST", TABLES, body | {"location": f"{allowed}/after/new"})
        assert 200 == after.status, f"the place is asked on: {after.text}"
    assert (shared / "mine/deep/new/metadata").is_dir()
    assert [] == [*outside.iterdir(), *(shared / "theirs").iterdir()]
