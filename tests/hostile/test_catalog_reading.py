"""The catalog and the endpoint over a hostile table: it is refused in words, and the nine others are served."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError, ValidationError

from tests.core.test_rest import Client
from tests.hostile.lakehouse import (
    HOSTILE,
    NAMESPACE,
    OF_DEFINITION,
    OF_METADATA,
    SOUND,
    metadata_file,
    new_lakehouse,
    with_fields,
)
from tests.support.icebergs import ids, opened, rows
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.rest import Served, endpoint

_REFUSED: Final = (ForbiddenError, NoSuchTableError, ValidationError, FileNotFoundError, NotImplementedError)
_TABLES: Final = f"/v1/lake/namespaces/{NAMESPACE}/tables"


@pytest.fixture
def catalog(tmp_path: Path) -> TrinityLakeCatalog:
    return new_lakehouse(tmp_path)


@pytest.fixture
def served(catalog: TrinityLakeCatalog) -> Iterator[Served]:
    with endpoint(catalog.lakehouse) as at:
        yield at


@pytest.fixture
def call(served: Served) -> Client:
    return Client(served.uri, served.token)


def _set_property(name: str, value: str) -> dict[str, Any]:
    return {
        "identifier": {"namespace": [NAMESPACE], "name": name},
        "requirements": [],
        "updates": [{"action": "set-properties", "updates": {"owner": value}}],
    }


def _is_served_but_for_the_tenth(catalog: TrinityLakeCatalog, call: Client) -> None:
    """The nine are listed, loaded, written and renamed, by the library and by the endpoint; the tenth is refused."""
    fresh = opened(catalog.lakehouse.root)
    assert {(NAMESPACE, name) for name in (*SOUND, HOSTILE)} == set(fresh.list_tables(NAMESPACE))
    with pytest.raises(_REFUSED) as error:
        fresh.load_table(f"{NAMESPACE}.{HOSTILE}")
    assert error.value.args
    fresh.load_table(f"{NAMESPACE}.{SOUND[0]}").append(rows(2))
    assert [1, 2] == ids(fresh.load_table(f"{NAMESPACE}.{SOUND[0]}"))
    refused = call("GET", f"{_TABLES}/{HOSTILE}")
    assert 400 <= refused.status < 500, refused.text
    words = refused.json()["error"]["message"]
    assert words
    assert "Traceback" not in words
    assert "root:" not in words, "what a link leads to is not quoted"
    for name in SOUND:
        assert 200 == call("GET", f"{_TABLES}/{name}").status
    assert 400 <= call("POST", f"{_TABLES}/{HOSTILE}", _set_property(HOSTILE, "me")).status < 500
    version = catalog.lakehouse.version
    both = {"table-changes": [_set_property(SOUND[1], "me"), _set_property(HOSTILE, "me")]}
    assert 400 <= call("POST", "/v1/lake/transactions/commit", both).status < 500
    assert version == catalog.lakehouse.version
    good = {"table-changes": [_set_property(name, "me") for name in SOUND]}
    assert 204 == call("POST", "/v1/lake/transactions/commit", good).status
    assert 204 == call("DELETE", f"{_TABLES}/{HOSTILE}").status, "and it can be dropped"


@pytest.mark.parametrize("way", OF_METADATA)
def test_metadata_that_nobody_can_read_are_one_tables_fault(
    catalog: TrinityLakeCatalog, call: Client, way: str
) -> None:
    OF_METADATA[way](metadata_file(catalog))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _is_served_but_for_the_tenth(catalog, call)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 400 << 10, f"{grown} KiB more"


@pytest.mark.parametrize("way", OF_DEFINITION)
def test_a_definition_that_names_an_odd_place_is_one_tables_fault(
    catalog: TrinityLakeCatalog, call: Client, way: str
) -> None:
    OF_DEFINITION[way](catalog)
    _is_served_but_for_the_tenth(catalog, call)


def test_a_table_that_became_one_of_format_version_3_behind_the_catalogs_back_is_served(
    catalog: TrinityLakeCatalog, call: Client
) -> None:
    with_fields({"format-version": 3, "next-row-id": 0})(metadata_file(catalog))
    assert [1] == ids(catalog.load_table(f"{NAMESPACE}.{HOSTILE}"))
    for answer in (
        call("GET", f"{_TABLES}/{HOSTILE}"),
        call("POST", f"{_TABLES}/{HOSTILE}", _set_property(HOSTILE, "y")),
    ):
        assert (200, 3) == (answer.status, answer.json()["metadata"]["format-version"])
    assert 200 == call("GET", f"{_TABLES}/{SOUND[0]}").status


def test_a_table_with_another_uuid_than_its_definition_is_read_as_its_file_says(
    catalog: TrinityLakeCatalog, call: Client
) -> None:
    file = metadata_file(catalog)
    document = json.loads(file.read_text()) | {"table-uuid": "00000000-0000-4000-8000-000000000001"}
    file.write_text(json.dumps(document))
    found = call("GET", f"{_TABLES}/{HOSTILE}")
    assert (200, document["table-uuid"]) == (found.status, found.json()["metadata"]["table-uuid"])
