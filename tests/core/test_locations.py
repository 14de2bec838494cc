"""Every path that is built is parsed back, and no path leads outside the lakehouse."""

from __future__ import annotations

import contextlib
import posixpath
import re
import uuid
from typing import Any

import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trinitylake_core import InvalidLocation, locations, spec
from trinitylake_core.locations import ParsedPath, node_path, parse, validate_path, validate_paths

VERSIONS = st.integers(0, spec.MAX_VERSION)
NAMES = st.text(st.characters(codec="utf-8", min_codepoint=0x21, exclude_characters="\x7f"), min_size=1, max_size=300)
KINDS = st.sampled_from(["namespace", "table", "view"])


def test_version_100_has_the_path_of_the_specification() -> None:
    assert "_00100110000000000000000000000000.ipc" == locations.root_path(100)


def test_an_optimised_path_is_that_of_the_documentation() -> None:
    assert "0101/0110/1001/10110010-a" == locations.optimised_path("a")


@given(VERSIONS)
def test_a_root_path_is_parsed_back(version: int) -> None:
    path = locations.root_path(version)
    assert ParsedPath("root", version=version) == parse(path)
    assert path == validate_path(path)
    assert len("_.ipc") + 32 == len(path)


@given(st.integers(0, 2**63 - 1))
def test_a_root_path_of_the_sdk_is_parsed_back(version: int) -> None:
    assert ParsedPath("root", version=version, legacy=True) == parse(locations.sdk_root_path(version))


@pytest.mark.parametrize("version", [-1, 2**32, 2**63, 10**30])
def test_a_version_that_does_not_fit_has_no_path(version: int) -> None:
    with pytest.raises(InvalidLocation):
        locations.root_path(version)


@pytest.mark.parametrize("version", [-1, 2**63])
def test_a_version_that_does_not_fit_has_no_path_of_the_sdk(version: int) -> None:
    with pytest.raises(InvalidLocation):
        locations.sdk_root_path(version)


@given(KINDS, NAMES, NAMES)
def test_the_path_of_a_definition_is_parsed_back(kind: str, namespace: str, name: str) -> None:
    """Whatever the names, slashes and all; the last segment fits into every file system."""
    path = locations.definition_path(kind, namespace, None if kind == "namespace" else name)
    found = parse(path)
    assert found is not None
    assert (kind, None, False) == (found.kind, found.version, found.legacy)
    assert path == validate_path(path)
    assert path.endswith(f"-{found.id}.binpb")
    assert spec.FILE_NAME_MAX_BYTES >= len(path.rsplit("/", 1)[1].encode())
    assert 3 == path.count("/")
    path.encode()


@given(st.uuids(version=4).map(str) | st.text("abcXYZ019_.-", min_size=1, max_size=60))
def test_the_path_of_a_transaction_is_parsed_back(transaction: str) -> None:
    path = locations.transaction_path(transaction)
    assert ParsedPath("transaction", id=transaction) == parse(path)
    assert path == validate_path(path)


@given(NAMES)
def test_an_optimised_path_is_the_hash_of_its_name(name: str) -> None:
    path = locations.optimised_path(name)
    bits = "".join(path.split("-", 1)[0].split("/"))
    assert name.replace("/", "-") == path.split("-", 1)[1]
    assert mmh3.hash(name.replace("/", "-").encode(), signed=False) % 2**20 == int(bits, 2)
    assert (20, 3) == (len(bits), path.count("/"))


def test_root_paths_of_the_java_sdk_hold(vectors: dict[str, Any]) -> None:
    for vector in vectors["root_node_file_path"]:
        assert vector["result"] == locations.sdk_root_path(vector["version"])
        assert ParsedPath("root", version=vector["back"], legacy=True) == parse(vector["result"])
        ours = vector["result"][: 1 + spec.VERSION_BITS] + ".ipc"
        assert ours == locations.root_path(vector["version"])


def test_hashes_of_the_java_sdk_are_ours(vectors: dict[str, Any]) -> None:
    for vector in vectors["hash"]:
        assert vector["name"].encode().hex() == vector["utf8_hex"]
        if "/" not in vector["name"]:
            assert f"{vector['prefix']}-{vector['name']}" == locations.optimised_path(vector["name"])


def test_optimised_paths_of_the_java_sdk_are_ours(vectors: dict[str, Any]) -> None:
    for vector in vectors["optimised_file_path"]:
        path = locations.optimised_path("-".join(vector["parts"]) + vector["suffix"])
        assert vector["result"] == path
        assert parse(path) is not None


@given(NAMES)
def test_a_prefix_that_is_not_the_hash_is_not_ours(name: str) -> None:
    """Somebody else's file below a directory of ours is left alone."""
    path = locations.optimised_path(f"node-{uuid.uuid4()}.ipc")
    flipped = ("1" if path[0] == "0" else "0") + path[1:]
    assert parse(flipped) is None
    assert parse(f"{name}/{path}") is None
    assert parse(path + name) is None or name == ""


_SOME_ID = "6fcb514b-b878-4c9d-95b7-8dc3a7ce6fd8"
FOREIGN = [
    "",
    "a",
    "_",
    "README.md",
    "_root.ipc",
    "_" + "0" * 31 + ".ipc",
    "_" + "0" * 33 + ".ipc",
    "_" + "0" * 32 + ".arrow",
    "_" + "0" * 32 + ".ipc\n",
    "_" + "2" * 32 + ".ipc",
    "x/_" + "0" * 32 + ".ipc",
    "_latest_hint.txt.bak",
    "_lakehouse_def_.binpb",
    f"_lakehouse_def_{_SOME_ID}.binpb.tmp",
    f"_lakehouse_def_{_SOME_ID.upper()}.binpb",
    f"node-{_SOME_ID}.ipc",
    locations.optimised_path("node-.ipc"),
    locations.optimised_path("something.parquet"),
    locations.optimised_path(f"node-{_SOME_ID}.ipc.crc"),
    locations.optimised_path(f"{_SOME_ID}.binpb"),
    "_tmp-" + "0" * 32,
]


@given(st.text(max_size=60))
def test_parsing_never_fails(path: str) -> None:
    parse(path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ns-6fcb514b-b878-4c9d-95b7-8dc3a7ce6fd8.binpb", "definition"),
        ("ns-t-6fcb514b-b878-4c9d-95b7-8dc3a7ce6fd8.binpb", "definition"),
        ("node-6fcb514b-b878-4c9d-95b7-8dc3a7ce6fd8.arrow", "node"),
    ],
)
def test_names_of_older_generations_are_recognised(name: str, kind: str) -> None:
    found = parse(locations.optimised_path(name))
    assert found is not None
    assert (kind, True) == (found.kind, found.legacy)


HOSTILE = [
    "",
    ".",
    "..",
    "/",
    "/etc/passwd",
    "//host/share",
    "../x",
    "a/..",
    "a/../b",
    "a/../../b",
    "a/./b",
    "./a",
    "a//b",
    "a/",
    "s3://bucket/x",
    "file:///etc/passwd",
    "file:/etc/passwd",
    "FILE:///x",
    "http:x",
    "C:/x",
    "C:\\x",
    "..\\x",
    "\\\\host\\share",
    "a\0b",
    "0000/0000/0000/00000000-a\0b",
    "0000/0000/0000/../x",
    "_/../x",
]


@pytest.mark.parametrize("path", HOSTILE)
def test_a_path_that_may_lead_outside_is_refused(path: str) -> None:
    with pytest.raises(InvalidLocation):
        validate_path(path)


@pytest.mark.parametrize("path", HOSTILE)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_hostile_path_is_refused_among_others(path: str, place: int) -> None:
    """Also one that looks like two good ones with a NUL between them."""
    good = [node_path(), node_path()]
    validate_paths(good)
    for hostile in (path, f"{good[0]}\0{good[1]}"):
        with pytest.raises(InvalidLocation):
            validate_paths([*good[:place], hostile, *good[place:]])


@given(st.lists(st.sampled_from(["a", ".", "..", "", "b:", "c", "_x"]), min_size=1, max_size=5).map("/".join))
def test_what_is_accepted_stays_inside(path: str) -> None:
    """Checked against what the operating system makes of it."""
    try:
        validate_path(path)
    except InvalidLocation:
        return
    resolved = posixpath.normpath(posixpath.join("/lake", path))
    assert f"/lake/{path}" == resolved


@given(st.text(max_size=40))
def test_an_accepted_path_is_returned_as_it_is(path: str) -> None:
    with contextlib.suppress(InvalidLocation):
        assert path == validate_path(path)


@pytest.mark.parametrize("name", ["b\uffff", "größe 表🙂", "a/b", "$(rm -rf)", "x" * 400, "a.b_c-d"])
def test_defect_11_names_in_paths_are_plain(name: str) -> None:
    """Whatever an object is called, its file's name breaks no XML, shell or log; and it is recognised."""
    path = locations.definition_path("table", "ns", name)
    assert re.fullmatch(r"[01/]{15}[01]{8}-[A-Za-z0-9._-]+", path)
    assert "table" == getattr(locations.parse(path), "kind", None)
    assert name in path or not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name)


def test_names_as_they_were_written_before_are_recognised() -> None:
    """Lakehouses have them, and `clean` must know them."""
    path = locations.optimised_path("table-ns-größe \uffff-5a5e0000-0000-4000-8000-000000000001.binpb")
    assert "table" == getattr(locations.parse(path), "kind", None)
