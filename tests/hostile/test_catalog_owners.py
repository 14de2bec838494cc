"""A right on a name is a right on its own places: what lies in another table's directory is refused by every way."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import SetLocationUpdate, SetPropertiesUpdate

from pipelines import expire, restore, tables_compact, tables_expire, verify
from pipelines.tables.compact.decision import GroupRules
from tests.core.test_rest import Answer, Client
from tests.hostile.lakehouse import HOSTILE, NAMESPACE, SOUND, make_people, metadata_file, new_lakehouse, with_fields
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
from tests.support.clock import Clock
from tests.support.icebergs import ids, rows, with_table
from tests.support.lakes import FAST, reopened
from tests.support.opened_files import watched
from tests.support.respelled import local, rewrite_avro
from trinitylake_core import Lakehouse
from trinitylake_core.errors import Refused
from trinitylake_core.grounds import NOBODY, Identity
from trinitylake_core.iceberg import ALLOWED_LOCATIONS, TrinityLakeCatalog
from trinitylake_core.iceberg.attempt import Claims
from trinitylake_core.storage.base import BaseStorage


@pytest.fixture
def catalog(tmp_path: Path) -> TrinityLakeCatalog:
    return new_lakehouse(tmp_path)


# -- what a commit adds --------------------------------------------------------------------------------


def _forged_list(catalog: TrinityLakeCatalog, place: str, level: str) -> str:
    """Write a manifest list in the table's own directory that leads to a file elsewhere, at a level; return its URI."""
    snapshot = catalog.load_table(f"{NAMESPACE}.{HOSTILE}").current_snapshot()
    assert snapshot is not None
    listed = local(snapshot.manifest_list)
    forged = listed.with_name("forged-list.avro")
    shutil.copy(listed, forged)
    manifest = listed.with_name("forged-manifest.avro")

    def name_data(row: Any) -> None:
        row["data_file"]["file_path"] = place
        row["data_file"]["content"] = 1 if level == "delete file" else 0

    def name_manifest(row: Any) -> None:
        if level == "manifest":
            row["manifest_path"] = place
            return
        shutil.copy(local(row["manifest_path"]), manifest)
        rewrite_avro(manifest, name_data)
        row["manifest_path"], row["manifest_length"] = manifest.as_uri(), manifest.stat().st_size

    rewrite_avro(forged, name_manifest)
    return forged.as_uri()


@pytest.mark.parametrize("level", ["data file", "delete file", "manifest"])
def test_a_commit_adds_no_file_of_another_place(level: str, catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    table = catalog.load_table(f"{NAMESPACE}.{SOUND[0]}")
    theirs = local(str(table.inspect.files()["file_path"][0]))
    outside = tmp_path / "outside.parquet"
    shutil.copy(theirs, outside)
    version = catalog.lakehouse.version
    with served(catalog) as call, watched([theirs, outside]) as opened:
        for place in (
            theirs.as_uri(),
            outside.as_uri(),
            "/etc/passwd",
            "s3://other/x.parquet",
            f"{table.location()}-x/y",
        ):
            forged = _forged_list(catalog, place, level)
            before = set(tmp_path.rglob("*.metadata.json"))
            answer = commit(call, HOSTILE, adding_snapshot(forged))
            assert (403, "ForbiddenException") == answer.problem, f"{place}: {answer.text}"
            assert "the file " in answer.text
            assert before == set(tmp_path.rglob("*.metadata.json"))
        own = metadata_file(catalog).parents[1] / "data" / "own"
        if level == "manifest":
            snapshot = catalog.load_table(f"{NAMESPACE}.{HOSTILE}").current_snapshot()
            assert snapshot is not None
            shutil.copy(local(snapshot.manifests(table.io)[0].manifest_path), own)
        forged = _forged_list(catalog, own.as_uri(), level)
        assert 200 == commit(call, HOSTILE, adding_snapshot(forged)).status
    assert ([], version + 1) == (opened, catalog.lakehouse.version)


@pytest.mark.parametrize("ground", ["warehouse", ALLOWED_LOCATIONS, "storage option"])
def test_a_commit_adds_no_file_of_another_table_in_an_allowed_prefix(
    ground: str, catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    allowed = (tmp_path / "shared").as_uri()
    catalog.create_namespace("hr")
    properties = {ground: allowed}
    operator = TrinityLakeCatalog("operator", uri=catalog.lakehouse.root, **properties)
    if ground == "storage option":  # by which the endpoint allows files, and no locations
        properties = {}
        options = {**FAST, "allowed_locations": allowed}
        operator = TrinityLakeCatalog("operator", uri=catalog.lakehouse.root, **{ALLOWED_LOCATIONS: allowed})
        lake = Lakehouse.open(catalog.lakehouse.root, storage_options=options)
        catalog = TrinityLakeCatalog.over(lake)
    paths = {"write.data.path": f"{allowed}/data/deep/people"}
    schema = catalog.load_table(f"{NAMESPACE}.{HOSTILE}").schema()
    people = operator.create_table("hr.people", schema, location=f"{allowed}/hr/people", properties=paths)
    people.append(rows(4242))
    snapshot = people.current_snapshot()
    assert snapshot is not None
    theirs = local(str(people.inspect.files()["file_path"][0]))
    manifest = local(snapshot.manifests(people.io)[0].manifest_path)
    with served(catalog, properties, mallory={"write": [f"{NAMESPACE}.{HOSTILE}"]}) as call:
        with watched([theirs, manifest]) as opened:
            for level, place in (("data file", theirs), ("delete file", theirs), ("manifest", manifest)):
                answer = commit(call, HOSTILE, adding_snapshot(_forged_list(catalog, place.as_uri(), level)))
                assert (403, "ForbiddenException") == answer.problem, f"{level}: {answer.text}"
                assert "people" not in answer.text
        assert [] == opened
        outside = tmp_path / "outside.avro"
        shutil.copy(manifest, outside)
        with watched([manifest, outside]) as opened:
            for number, target in enumerate((manifest, outside)):
                link = tmp_path / "shared" / "data" / f"link{number}.avro"
                link.symlink_to(target)
                answer = commit(call, HOSTILE, adding_snapshot(_forged_list(catalog, link.as_uri(), "manifest")))
                assert number or (403, "ForbiddenException") == answer.problem, answer.text
        assert [] == opened, "behind links"
        loose = _forged_list(catalog, f"{allowed}/data/deep/loose.parquet", "data file")
        assert 200 == commit(call, HOSTILE, adding_snapshot(loose)).status, "nobody's, beside directories of tables"
    with served(catalog, properties) as call:
        load_catalog("client", type="rest", uri=call.uri, warehouse="lake").load_table("hr.people").append(rows(4243))
    assert [4242, 4243] == ids(operator.load_table("hr.people"))


@pytest.mark.parametrize("level", ["list", "manifest"])
def test_a_commit_adds_no_manifest_that_nobody_can_read(level: str, catalog: TrinityLakeCatalog) -> None:
    """What is put there afterwards would be in no commit that anybody has looked at."""
    directory = metadata_file(catalog).parent
    garbage = directory / "garbage.avro"
    garbage.write_bytes(b"no Avro")
    version = catalog.lakehouse.version
    with served(catalog) as call:
        for file in (directory / "missing.avro", garbage):
            place = file.as_uri() if level == "list" else _forged_list(catalog, file.as_uri(), level)
            answer = commit(call, HOSTILE, adding_snapshot(place))
            assert (400, "IllegalArgumentException") == answer.problem, f"{file}: {answer.text}"
        assert version == catalog.lakehouse.version
        made = commit(call, HOSTILE, setting(comment="others go on"))
        assert 200 == made.status


def test_a_table_whose_metadata_lead_elsewhere_is_refused_as_jobs_would(
    catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    """A job finds the places of a table by its newest metadata file: both ask the same."""
    allowed = (tmp_path / "shared").as_uri()
    own = f"{allowed}/deep/mine"
    body = {"name": "mine", "schema": FIELDS, "location": own}
    for option, status in (("", 403), (f"{own}={own}", 200)):
        lake = Lakehouse.open(catalog.lakehouse.root, storage_options={**FAST, "allowed_locations": option})
        with served(TrinityLakeCatalog.over(lake), {ALLOWED_LOCATIONS: allowed}) as call:
            for place in (f"{own}/m", f"{own}/metadata/m", f"{allowed}/other"):
                is_done = option and place.startswith(own)
                made = call("POST", TABLES, body | {"properties": {"write.metadata.path": place}})
                assert (status if is_done else 403) == made.status, f"{place}: {made.text}"
                if is_done:
                    call("DELETE", f"{TABLES}/mine")
            assert 200 == call("POST", TABLES, body).status
            changed = commit(call, "mine", setting(write__metadata__path=f"{own}/m"))
            assert status == changed.status, changed.text
            assert 200 == commit(call, "mine", setting(comment="it can be written")).status
            call("DELETE", f"{TABLES}/mine")


def test_what_a_commit_to_a_table_adds_costs_two_round_trips(catalog: TrinityLakeCatalog) -> None:
    """The new list and its parent, then the manifests in which they differ; without a snapshot it costs nothing."""
    with served(catalog) as call:
        storage = catalog.lakehouse.storage
        forged = _forged_list(catalog, f"{metadata_file(catalog).parents[1].as_uri()}/data/own.parquet", "data file")
        assert 200 == commit(call, HOSTILE, {"action": "set-properties", "updates": {"a": "b"}}).status
        before = storage.counts.snapshot()
        assert 200 == commit(call, HOSTILE, {"action": "set-properties", "updates": {"a": "c"}}).status
        plain = (storage.counts - before).requests()
        before = storage.counts.snapshot()
        assert 200 == commit(call, HOSTILE, adding_snapshot(forged)).status
        assert plain + 2 >= (storage.counts - before).requests()


# -- shared ground -------------------------------------------------------------------------------------


def _ways_in(call: Client, place: str) -> Iterator[tuple[str, Answer]]:
    """Yield the answers to all ways to have a place."""
    yield "create", call("POST", TABLES, {"name": "new", "schema": FIELDS, "location": place})
    staged = call("POST", TABLES, {"name": "new", "schema": FIELDS, "location": place, "stage-create": True})
    yield "stage", staged
    for name in ("write__data__path", "write__metadata__path", "write__object-storage__path"):
        yield name, commit(call, HOSTILE, setting(**{name: place}))
    yield "location", commit(call, HOSTILE, {"action": "set-location", "location": place})
    yield "list", commit(call, HOSTILE, adding_snapshot(f"{place}/snap-77.avro"))
    yield "view", call("POST", VIEWS, view_of("v", location=place))
    path = f"/v1/lake/namespaces/{NAMESPACE}/properties"
    changed = call("POST", path, {"updates": {"location": place}})
    yield "namespace", changed
    if changed.status == 200:
        yield "namespace", call("POST", TABLES, {"name": "newer", "schema": FIELDS})
        call("POST", path, {"removals": ["location"]})


@pytest.mark.parametrize("ground", ["warehouse", ALLOWED_LOCATIONS])
def test_a_directory_in_an_allowed_prefix_has_one_owner(
    ground: str, catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    allowed = (tmp_path / "shared").as_uri()
    call: Client
    with served(catalog, {ground: allowed}) as call:
        call("POST", "/v1/lake/namespaces", {"namespace": ["hr"]})
        asked = {"name": "people", "schema": FIELDS}
        if ground != "warehouse":
            asked |= {"location": f"{allowed}/deep/hr/people", "properties": {"write.data.path": f"{allowed}/data/p"}}
        made = call("POST", "/v1/lake/namespaces/hr/tables", asked).json()["metadata"]
        version = catalog.lakehouse.version
        theirs = made["location"]
        above = theirs.rpartition("/")[0]
        places = {"theirs": theirs, "in it": f"{theirs}/data/x", "above it": above, "above all": allowed}
        if ground != "warehouse":
            places |= {"their data": f"{allowed}/data/p/x", "above their data": f"{allowed}/data"}
        for what, place in places.items():
            for way, answer in _ways_in(call, place):
                above_ours = "above" in what and way in {"list", "namespace"}  # a file, or a new directory, beside it
                if not above_ours:
                    assert answer.status in {403, 409}, f"{what}, {way}: {answer.text}"
        assert theirs not in str([catalog.load_table(f"{NAMESPACE}.{HOSTILE}").metadata.location])
        # Another endpoint, which has not seen the table being made, knows it as well.
    with served(catalog, {ground: allowed}) as call:
        assert 403 == call("POST", TABLES, {"name": "new", "schema": FIELDS, "location": f"{theirs}/x"}).status
        free = f"{allowed}/free/{uuid.uuid4().hex[:6]}/t"
        made = call("POST", TABLES, {"name": "new", "schema": FIELDS, "location": free})
        assert 200 == made.status, made.text
    assert catalog.lakehouse.version > version


def test_no_table_takes_a_whole_allowed_prefix(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    allowed = (tmp_path / "shared").as_uri()
    with served(catalog, {ALLOWED_LOCATIONS: allowed}) as call:
        for place in (allowed, f"{allowed}/"):
            for way, answer in _ways_in(call, place):
                if way not in {"list", "namespace"}:  # a file, or a new directory, in it
                    assert 403 == answer.status, f"{way}: {answer.text}"
        place = f"{allowed}/hr/people"
        made = call("POST", TABLES, {"name": "people", "schema": FIELDS, "location": place})
        assert 200 == made.status, made.text


def _ways_above(call: Client, place: str) -> Iterator[tuple[str, Answer]]:
    """Yield the answers to all ways to have what lies in a place by metadata right below it."""
    paths = {"write.metadata.path": f"{place}/metadata"}
    asked = {"name": "new", "schema": FIELDS, "location": f"{place}/new", "properties": paths}
    moved = [{"action": "set-location", "location": f"{place}/new"}, setting(write__metadata__path=f"{place}/metadata")]
    yield "create", call("POST", TABLES, asked)
    yield "stage", call("POST", TABLES, asked | {"stage-create": True})
    yield "create by a commit", create_by_commit(call, "new", f"{place}/new", None, *moved)
    yield "commit", commit(call, HOSTILE, *moved)
    yield "view", call("POST", VIEWS, view_of("w", location=f"{place}/w", properties=paths))
    made = call("POST", VIEWS, view_of("v", location=f"{place}/v"))
    yield "view by a commit", call("POST", f"{VIEWS}/v", {"updates": moved[1:]})
    tables = call("POST", TABLES, {"name": "t", "schema": FIELDS, "location": f"{place}/t"})
    for path in (f"{TABLES}/t", f"{VIEWS}/v"):
        assert 204 == call("DELETE", path).status
    for register, answer in ((REGISTER, tables), (f"{REGISTER}-view", made)):
        written = Path(local(answer.json()["metadata-location"]))
        brought = written.parents[2] / "metadata" / written.name
        brought.parent.mkdir(exist_ok=True)
        shutil.copy(written, brought)
        yield register, call("POST", register, {"name": "brought", "metadata-location": brought.as_uri()})


@pytest.mark.parametrize("ground", ["warehouse", ALLOWED_LOCATIONS])
def test_metadata_right_below_a_prefix_give_no_table_the_whole_prefix(
    ground: str, catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    """The directory of a table is the one above that of its metadata, so that one must be free as well."""
    allowed = (tmp_path / "shared").as_uri()
    place = f"{allowed}/hr" if ground == "warehouse" else allowed
    call: Client
    with served(catalog, {ground: allowed}) as call:
        ways = 0
        for way, answer in _ways_above(call, place):
            assert 403 == answer.status, f"{way}: {answer.text}"
            ways += 1
        assert 8 == ways
        for name in ("a", "b"):
            paths = {"write.metadata.path": f"{place}/deep/{name}/metadata"}
            asked = {"name": name, "schema": FIELDS, "location": f"{place}/deep/{name}", "properties": paths}
            made = call("POST", TABLES, asked)
            assert 200 == made.status, made.text
        paths = {"write.metadata.path": f"{place}/deep/metadata"}
        asked = {"name": "c", "schema": FIELDS, "location": f"{place}/deep/c", "properties": paths}
        assert 403 == call("POST", TABLES, asked).status, "above those of two tables"


@pytest.mark.parametrize("way", ["write.data.path", "write.metadata.path", "location", "replaced"])
def test_ground_that_a_table_had_before_stays_its_own(way: str, catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    """Its files of older versions and snapshots lie there, whatever its properties say by now."""
    allowed = (tmp_path / "shared").as_uri()
    theirs, later, now = (f"{allowed}/{each}/people" for each in ("deep", "later", "now"))
    catalog.create_namespace("hr")
    operator = TrinityLakeCatalog("operator", uri=catalog.lakehouse.root, **{ALLOWED_LOCATIONS: allowed})
    schema = catalog.load_table(f"{NAMESPACE}.{HOSTILE}").schema()
    by_property = way.startswith("write")
    operator.create_table("hr.people", schema, None if by_property else theirs, properties={way: theirs})
    for place in (later, now):
        if way == "replaced":
            other = operator.create_table("hr.other", schema, place)
            operator.drop_table("hr.other")
            operator.register_table("hr.people", other.metadata_location, overwrite=True)
        else:
            people = operator.load_table("hr.people")
            update = SetPropertiesUpdate(updates={way: place}) if by_property else SetLocationUpdate(location=place)
            operator.commit_table(people, (), (update,))
    with served(catalog, {ALLOWED_LOCATIONS: allowed}) as call:
        for place in (theirs, f"{theirs}/data/x", f"{allowed}/deep", later, now):
            for what, answer in _ways_in(call, place):
                above_ours = place.endswith("deep") and what in {"list", "namespace"}  # beside it
                if not above_ours:
                    assert answer.status in {403, 409}, f"{place}, {what}: {answer.text}"


def test_a_table_leaves_a_bounded_number_of_directories(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    allowed = (tmp_path / "shared").as_uri()
    with served(catalog, {ALLOWED_LOCATIONS: allowed}) as call:
        for number in range(33):
            assert 200 == commit(call, HOSTILE, setting(write__data__path=f"{allowed}/{number}/x")).status
        refused = commit(call, HOSTILE, setting(write__data__path=f"{allowed}/more/x"))
        assert (403, "ForbiddenException") == refused.problem
        assert "at the most" in refused.text
        assert 200 == commit(call, HOSTILE, setting(comment="it can be written")).status
        assert 200 == commit(call, HOSTILE, setting(write__data__path=f"{allowed}/31/x")).status, "which it had"


def test_own_places_cost_no_question_to_the_other_tables(catalog: TrinityLakeCatalog) -> None:
    storage, asked = catalog.lakehouse.storage, []
    assert isinstance(storage, BaseStorage)

    def note(kind: str, path: str, act: Callable[[], Any]) -> Any:
        asked.append(path)
        return act()

    with served(catalog) as call:
        storage.interceptor = note
        assert 200 == call("POST", TABLES, {"name": "new", "schema": FIELDS}).status
        assert 200 == commit(call, "new", {"action": "set-properties", "updates": {"a": "b"}}).status
    assert asked
    assert not [each for each in asked if "-table-" in each and "-new-" not in each]


# -- what comes back -----------------------------------------------------------------------------------


def test_what_was_dropped_comes_back_to_those_who_may_manage_it(catalog: TrinityLakeCatalog) -> None:
    """Who may read the table knows its metadata file, and may not take it over by that."""
    taken = metadata_file(catalog).as_uri()
    rights = {"manage": ["a.*"], "read": ["*"]}
    catalog.create_namespace("a")
    with served(catalog, reader=rights) as call:
        for dropped in (False, True):
            if dropped:
                catalog.drop_table(f"{NAMESPACE}.{HOSTILE}")
            for kind in ("register", "register-view"):
                body = {"name": HOSTILE, "metadata-location": taken}
                answer = call("POST", f"/v1/lake/namespaces/a/{kind}", body)
                assert (403, f"reader may not manage '{NAMESPACE}.{HOSTILE}'") == (
                    answer.status, answer.json()["error"]["message"],
                )  # fmt: skip
    with served(catalog, owner={"manage": [f"{NAMESPACE}.*"]}) as call:
        body = {"name": "again", "metadata-location": taken}
        assert 200 == call("POST", f"/v1/lake/namespaces/{NAMESPACE}/register", body).status


_ANNA: Final = {"manage": ["hr.*", "archive.*"]}
_MALLORY: Final = {"manage": [f"{NAMESPACE}.*"], "write": [NAMESPACE]}


def _as(call: Client, name: str) -> Client:
    return Client(call.uri, name)


@pytest.mark.parametrize("gone", ["dropped", "renamed and dropped", "rolled back", "replaced and dropped"])
def test_the_directory_of_what_is_gone_stays_with_who_had_it_last(
    gone: str, catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    """In an allowed prefix its name says nothing, and after a rename a wrong thing: the versions that are kept do."""
    allowed = (tmp_path / "shared").as_uri()
    place, data = f"{allowed}/deep/people", f"{allowed}/data/people"
    for name in ("hr", "archive"):
        catalog.create_namespace(name)
    version = catalog.lakehouse.version
    paths = {"write.data.path": data}
    file = make_people(catalog, "hr.people", place, **paths)
    last = "hr.people"
    if gone == "renamed and dropped":
        last = "archive.people"
        catalog.rename_table("hr.people", last)
    if gone == "replaced and dropped":
        other = make_people(catalog, "hr.other", f"{allowed}/other/people")
        catalog.drop_table("hr.other")
        catalog.register_table("hr.people", other, overwrite=True)
    if gone == "rolled back":
        catalog.lakehouse.rollback(version, reason="it never was")
    else:
        catalog.drop_table(last)
    owner = {"manage": [f"{last.partition('.')[0]}.*"]}
    with served(catalog, {ALLOWED_LOCATIONS: allowed}, mallory=_MALLORY, owner=owner) as call:
        for taken in (place, f"{place}/x", data, f"{allowed}/deep"):
            for what, answer in _ways_in(call, taken):
                beside = taken.endswith("deep") and what in {"list", "namespace"}
                if not beside:
                    assert answer.status == 403, f"{taken}, {what}: {answer.text}"
                    assert "people" not in answer.json()["error"]["message"]
        for location in (file, f"{place}/metadata/no-such.metadata.json"):
            for kind in ("register", "register-view"):
                body = {"name": "mine", "metadata-location": location}
                answer = call("POST", f"/v1/lake/namespaces/{NAMESPACE}/{kind}", body)
                assert 403 == answer.status, f"{kind} of {location}: {answer.text}"
        namespace, _, name = last.partition(".")
        back = _as(call, "owner")("POST", f"/v1/lake/namespaces/{namespace}/register", {
            "name": name, "metadata-location": file,
        })  # fmt: skip
        assert 200 == back.status, back.text
    assert [4242] == ids(catalog.load_table(last))


def _drop_people(catalog: TrinityLakeCatalog, allowed: str, snapshot: str = "") -> dict[str, object]:
    """Make a table of another namespace, perhaps a snapshot with it, and drop it; return a request for its place."""
    catalog.create_namespace("hr")
    make_people(catalog, "hr.people", f"{allowed}/people")
    if snapshot:
        catalog.lakehouse.refresh().create_snapshot(snapshot)
    catalog.drop_table("hr.people")
    return {"name": "people", "schema": FIELDS, "location": f"{allowed}/people"}


def test_a_directory_is_free_when_no_version_needs_it(
    catalog: TrinityLakeCatalog, tmp_path: Path, clock: Clock
) -> None:
    allowed = (tmp_path / "shared").as_uri()
    asked = _drop_people(catalog, allowed)
    with served(catalog, {ALLOWED_LOCATIONS: allowed}, mallory=_MALLORY) as call:
        assert 403 == call("POST", TABLES, asked).status
        clock.forward(days=30)
        expire.run(catalog.lakehouse, expire.Config(keep_last=1, older_than_seconds=0))
        catalog.create_namespace("another")  # an endpoint looks again at the next version
        made = call("POST", TABLES, asked)
        assert 200 == made.status, made.text


def test_what_a_snapshot_alone_has_is_no_ones_to_take(
    catalog: TrinityLakeCatalog, tmp_path: Path, clock: Clock
) -> None:
    """A restore brings it back from there, also when the versions have expired."""
    allowed = (tmp_path / "shared").as_uri()
    asked = _drop_people(catalog, allowed, snapshot="audit")
    clock.forward(days=30)
    expire.run(reopened(catalog.lakehouse), expire.Config(keep_last=1, older_than_seconds=0))
    with served(catalog, {ALLOWED_LOCATIONS: allowed}, mallory=_MALLORY) as call:
        assert 403 == call("POST", TABLES, asked).status
        reopened(catalog.lakehouse).drop_snapshot("audit")
        made = call("POST", TABLES, asked)
        assert 200 == made.status, made.text


def test_names_of_other_scripts_have_directories_of_their_own(catalog: TrinityLakeCatalog) -> None:
    theirs, mine = "\u5ba2\u6237", "\u8ba2\u5355"
    table = with_table(catalog, f"{NAMESPACE}.{theirs}", 1)
    place, file = table.location(), table.metadata_location
    catalog.drop_table(f"{NAMESPACE}.{theirs}")
    rights = {"mallory": {"manage": [f"{NAMESPACE}.{mine}"]}, "owner": {"manage": [f"{NAMESPACE}.{theirs}"]}}
    with served(catalog, **rights) as call:
        for location in (place, f"{place[:-12]}{'0' * 12}"):
            assert 403 == create_by_commit(call, quote(mine), location).status
        register = {"name": mine, "metadata-location": file}
        assert 403 == call("POST", REGISTER, register).status
        back = _as(call, "owner")("POST", REGISTER, register | {"name": theirs})
        assert 200 == back.status, back.text


@pytest.mark.parametrize("taken", ["deep/people/x", "deep", "data/people/x"])
def test_a_restore_brings_no_table_back_in_or_above_whose_directory_another_one_is(
    taken: str, catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    allowed = (tmp_path / "shared").as_uri()
    catalog.create_namespace("hr")
    paths = {"write.data.path": f"{allowed}/data/people"}
    make_people(catalog, "hr.people", f"{allowed}/deep/people", **paths)
    version = catalog.lakehouse.version
    catalog.drop_table("hr.people")
    make_people(catalog, "hr.other", f"{allowed}/{taken}")
    config = restore.Config(only=["hr.people"], version=version, reason="it is gone", engine="local")
    with pytest.raises(Refused, match=r"people cannot come back: hr\.other has its UUID"):
        restore.run(catalog.lakehouse, config)
    catalog.drop_table("hr.other")
    restore.run(catalog.lakehouse, config)
    assert [4242] == ids(catalog.load_table("hr.people"))


@pytest.mark.parametrize("how", ["registered", "renamed"])
def test_a_restore_brings_no_table_back_that_another_definition_is_by_now(
    how: str, catalog: TrinityLakeCatalog
) -> None:
    version, name = catalog.lakehouse.version, f"{NAMESPACE}.{HOSTILE}"
    if how == "registered":
        location = catalog.load_table(name).metadata_location
        catalog.drop_table(name)
        catalog.register_table(f"{NAMESPACE}.taken", location)
    else:
        catalog.rename_table(name, f"{NAMESPACE}.taken")
    config = restore.Config(only=[name], version=version, reason="it is gone", engine="local")
    with pytest.raises(Refused, match=f"{name} cannot come back: {NAMESPACE}.taken has its UUID or directory by now"):
        restore.run(catalog.lakehouse, config)
    catalog.drop_table(f"{NAMESPACE}.taken")
    restore.run(catalog.lakehouse, config)
    assert [1] == ids(catalog.load_table(name))


def test_a_pair_of_tables_is_found_and_a_renamed_table_is_none(catalog: TrinityLakeCatalog) -> None:
    how = verify.Config(tables=1.0, deep=True, versions="all", engine="local")
    catalog.rename_table(f"{NAMESPACE}.{SOUND[0]}", f"{NAMESPACE}.renamed")
    assert [] == verify.run(catalog.lakehouse, how).findings
    lake = catalog.lakehouse
    stored = lake.table(NAMESPACE, HOSTILE)
    with lake.transaction() as txn:
        facts = {"format_properties": dict(stored.format_properties), "properties": dict(stored.properties)}
        txn.create_table("sales", "twin", schema=stored.schema, table_type=stored.table_type, **facts)
    findings = verify.run(catalog.lakehouse, how).findings
    assert {"I22"} == {each.invariant for each in findings}
    assert all(f"'{NAMESPACE}.{HOSTILE}' and '{NAMESPACE}.twin'" in each.message for each in findings)


@pytest.mark.parametrize("taken", ["deep/people/x", "deep", "data/people/x", "data/people", "deep/peoples"])
def test_a_pair_of_tables_is_found_where_one_is_in_or_above_a_directory_of_the_other(
    taken: str, catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    allowed = (tmp_path / "shared").as_uri()
    catalog.create_namespace("hr")
    paths = {"write.data.path": f"{allowed}/data/people"}
    make_people(catalog, "hr.people", f"{allowed}/deep/people", **paths)
    stored = catalog.lakehouse.refresh().table("hr", "people")
    catalog.drop_table("hr.people")
    make_people(catalog, "hr.other", f"{allowed}/{taken}")
    how = verify.Config(tables=1.0, deep=True, engine="local")
    lake = Lakehouse.open(catalog.lakehouse.root, storage_options={**FAST, "allowed_locations": allowed})
    assert "I22" not in {each.invariant for each in verify.run(lake, how).findings}
    with lake.transaction() as txn:
        facts = {"format_properties": dict(stored.format_properties), "properties": dict(stored.properties)}
        txn.create_table("hr", "people", schema=stored.schema, table_type=stored.table_type, **facts)
    pairs = [each.message for each in verify.run(lake, how).findings if each.invariant == "I22"]
    is_pair = taken != "deep/peoples"
    assert is_pair == bool(pairs)
    assert all("'hr.other' and 'hr.people'" in each for each in pairs)


# -- the ground of namespaces ----------------------------------------------------------------------------


def test_the_location_of_a_namespace_is_that_of_no_other_one(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    """One inside that of its parent is as good as the name."""
    allowed = (tmp_path / "shared").as_uri()
    path = f"/v1/lake/namespaces/{NAMESPACE}/properties"
    with served(catalog, {ALLOWED_LOCATIONS: allowed}) as call:

        def made(name: str, place: str) -> int:
            properties = {"location": f"{allowed}/{place}"}
            answer = call("POST", "/v1/lake/namespaces", {"namespace": name.split("."), "properties": properties})
            assert "namespace hr " not in answer.text
            return answer.status

        assert 200 == made("hr", "all/hr")
        for place in ("all/hr", "all/hr/", "all//hr", "all/hr/deep", "all"):
            assert 403 == made("other", place), place
            changes = {"updates": {"location": f"{allowed}/{place}"}}
            assert 403 == call("POST", path, changes).status, place
        assert 403 == made("hr.eu", "all/hr"), "its parent's"
        assert 403 == made("hr.eu", "all"), "above its parent's"
        assert 200 == made("hr.eu", "all/hr/eu")
        assert 200 == made("other", "all/hr-more")
        for name, place in (("hr", "all/hr"), ("hr", "all/hr-new"), ("other", "all/hr")):
            changes = {"updates": {"location": f"{allowed}/{place}"}}
            status = call("POST", f"/v1/lake/namespaces/{name}/properties", changes).status
            assert (403 if name == "other" else 200) == status, f"{name}: hr.eu is still in there"
        assert 204 == call("DELETE", "/v1/lake/namespaces/hr%1Feu").status
        assert 200 == made("another", "all/hr"), "hr has left it"


def test_one_of_many_requests_at_once_gets_a_location_for_its_namespace(
    catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    allowed = (tmp_path / "shared").as_uri()
    with served(catalog, {ALLOWED_LOCATIONS: allowed}) as one, served(catalog, {ALLOWED_LOCATIONS: allowed}) as two:
        clients = [one, one, two, two]
        start = threading.Barrier(len(clients))

        def make(number: int, each: int) -> int:
            properties = {"location": f"{allowed}/{each}"}
            start.wait()
            body = {"namespace": [f"n{each}x{number}"], "properties": properties}
            return clients[number]("POST", "/v1/lake/namespaces", body).status

        with ThreadPoolExecutor(len(clients)) as pool:
            for each in range(6):
                statuses = sorted(pool.map(make, range(len(clients)), [each] * len(clients)))
                assert 1 == statuses.count(200), statuses
                assert {403, 409, 503}.issuperset(statuses[1:]), statuses


def test_the_location_of_a_namespace_is_the_directory_of_no_table_of_another_one(
    catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    """Else nobody could create a table in that namespace any more."""
    allowed = (tmp_path / "shared").as_uri()
    rights = {"mallory": {"manage": [f"{NAMESPACE}.*"]}, "anna": {"manage": ["hr", "hr.*"]}}
    with served(catalog, {ALLOWED_LOCATIONS: allowed}, **rights) as call:
        anna = Client(call.uri, "anna")
        body = {"namespace": ["hr"], "properties": {"location": f"{allowed}/all/hr"}}
        assert 200 == anna("POST", "/v1/lake/namespaces", body).status
        for place in (f"{allowed}/all/hr", f"{allowed}/all"):
            made = call("POST", TABLES, {"name": "new", "schema": FIELDS, "location": place})
            assert (403, "ForbiddenException") == made.problem, place
            assert "hr" not in made.text.replace(place, "")
            assert 403 == commit(call, HOSTILE, setting(write__data__path=place)).status
        assert 200 == anna("POST", "/v1/lake/namespaces/hr/tables", {"name": "people", "schema": FIELDS}).status


@pytest.mark.parametrize("damaged", [False, True])
def test_a_directory_that_looks_like_one_below_the_area_is_protected_as_others_are(
    damaged: bool, catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    """In an allowed prefix everybody may choose such a name, and what is above it."""
    area = f"{(tmp_path / 'shared').as_uri()}/tables"
    place = f"{area}/hr/people-0123456789ab"
    catalog.create_namespace("hr")
    make_people(catalog, "hr.people", place)
    if damaged:
        entry = next(each for each in catalog.lakehouse.refresh().objects() if each.name == "people")
        local(catalog.lakehouse.root + entry.path).write_bytes(b"damaged")
    with served(catalog, {ALLOWED_LOCATIONS: area.removesuffix("/tables")}, mallory={"manage": ["sales.*"]}) as call:
        for each in (f"{area}/hr", area, place, f"{place}/data"):
            made = call("POST", TABLES, {"name": "new", "schema": FIELDS, "location": each})
            assert (403, "ForbiddenException") == made.problem, f"{each}: {made.text}"


@pytest.mark.parametrize("job", ["commit", "expire"])
def test_metadata_that_their_writer_overwrote_give_it_nothing_of_another_table(
    job: str, catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    """Who has keys for the directory of a table can do that: what the definition says is what the table has."""
    allowed = (tmp_path / "shared").as_uri()
    catalog.create_namespace("hr")
    make_people(catalog, "hr.people", f"{allowed}/people", **{"write.data.path": f"{allowed}/data/people"})
    catalog.create_namespace("of", {"location": f"{allowed}/namespace"})
    make_people(catalog, "hr.gone", f"{allowed}/gone")
    catalog.drop_table("hr.gone")
    other = with_table(catalog, f"{NAMESPACE}.other", 1)
    properties = {"write.data.path": f"{allowed}/data/people"}
    forged: dict[str, dict[str, Any]] = {
        "in another one": {"properties": properties},
        "above": {"properties": {"write.data.path": f"{catalog.lakehouse.root}tables"}},
        "nobody's, allowed": {"properties": {"write.data.path": f"{allowed}/free"}},
        "nobody's, below the root": {"properties": {"write.data.path": f"{catalog.lakehouse.root}free"}},
        "nobody's, a location": {"location": f"{catalog.lakehouse.root}free"},
        "of a namespace": {"properties": {"write.data.path": f"{allowed}/namespace"}},
        "of a dropped one": {"properties": {"write.data.path": f"{allowed}/gone"}},
        "uuid": {"table-uuid": str(other.metadata.table_uuid)},
    }
    table = catalog.load_table(f"{NAMESPACE}.{HOSTILE}")
    table.append(rows(2))
    file = metadata_file(catalog)
    content = file.read_bytes()
    how = tables_expire.Config(pattern=f"{NAMESPACE}.*", older_than_seconds=0)
    eager = tables_compact.Config(pattern=f"{NAMESPACE}.{HOSTILE}", engine="local", rules=GroupRules(min_files=2))
    rights = {"anna": {"write": ["hr.*"]}, "mallory": {"write": [f"{NAMESPACE}.*"]}}
    with served(catalog, {ALLOWED_LOCATIONS: allowed}, **rights) as anna:
        mallory = Client(anna.uri, "mallory")
        for what, fields in forged.items():
            file.write_bytes(content)
            with_fields(fields)(file)
            before = catalog.lakehouse.refresh().table(NAMESPACE, HOSTILE)
            loaded = mallory("GET", f"{TABLES}/{HOSTILE}")
            assert (200 if what == "uuid" else 403) == loaded.status, f"others would write there: {loaded.text}"
            if job == "commit":
                unchanged = commit(mallory, HOSTILE)
                assert loaded.status == unchanged.status, f"the answer would say it: {unchanged.text}"
                answer = commit(mallory, HOSTILE, setting(owner="mallory"))
                assert (403, "ForbiddenException") == answer.problem, f"{what}: {answer.text}"
                words = ("UUID", "a place that it names", "the new metadata file is outside")
                assert any(each in answer.text for each in words), answer.text
            else:
                lake = catalog.lakehouse.refresh()
                assert [f"{NAMESPACE}.{HOSTILE}"] == list(tables_expire.run(lake, how).failures)
                assert [f"{NAMESPACE}.{HOSTILE}"] == list(tables_compact.run(lake, eager).failures), what
            assert before == catalog.lakehouse.refresh().table(NAMESPACE, HOSTILE), what
        assert [] == [*(tmp_path / "shared/free").rglob("*"), *(local(catalog.lakehouse.root) / "free").rglob("*")]
        file.write_bytes(content)
        theirs = load_catalog("anna", type="rest", uri=anna.uri, warehouse="lake", token="anna")
        theirs.load_table("hr.people").append(rows(4243))
    assert [4242, 4243] == ids(catalog.load_table("hr.people"))


def test_attempts_of_one_process_claim_nothing_equal_in_or_above_anothers() -> None:
    claims = Claims()
    claims.take(Identity(uuid="u", metadata="s3://b/x/m.json"), ["s3://b/x/y/"], "one")
    claims.take(NOBODY, ["s3://b/x/y/", "s3://b/x/y/deep/"], "one")
    taken = [Identity(uuid="u"), Identity(metadata="s3://b/x/m.json")]
    for each in taken:
        with pytest.raises(CommitFailedException):
            claims.take(each, [], "two")
    for directory in ("s3://b/x/y/", "s3://b/x/y/z/", "s3://b/x/", "s3://b/"):
        with pytest.raises(CommitFailedException):
            claims.take(NOBODY, ["s3://b/free/", directory], "two")
    claims.take(NOBODY, ["s3://b/free/", "s3://b/x/y-more/", "s3://b/x/z/"], "two")
    claims.release("one")
    claims.take(Identity(uuid="u"), ["s3://b/x/y/"], "three")
    with pytest.raises(CommitFailedException):
        claims.take(NOBODY, ["s3://b/x/"], "three")
