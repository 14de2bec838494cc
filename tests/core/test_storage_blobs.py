"""Azure and Google by the common contract, against Azurite and a server of our own; what their options mean."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pipelines import compaction, expire
from pipelines.cli.resolve_root import applicable
from tests.support.azurite import Azurite, NoAzurite, run_azurite
from tests.support.icebergs import ids, rows, with_table
from tests.support.lakes import content, filled
from tests.support.slow_s3 import SlowS3, run_slow_s3
from tests.support.storage_suite import Place, StorageSuite, refuses_after_a_fork
from trinitylake_core import Lakehouse
from trinitylake_core.errors import InvalidInput, InvalidLocation, StorageError
from trinitylake_core.iceberg import TrinityLakeCatalog as LakehouseCatalog
from trinitylake_core.storage import open_storage, options_for, root_uri
from trinitylake_core.storage.blobs import make_store_of


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowS3]:
    """A server with the requests of Google Cloud Storage."""
    with run_slow_s3(tmp_path_factory.mktemp("google")) as server:
        yield server


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """An emulator of Azure Blob Storage, for the whole session."""
    try:
        with run_azurite(tmp_path_factory.mktemp("azurite")) as server:
            yield server
    except NoAzurite as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("settings", [{}, {"AZURITE": "/nowhere/azurite-blob"}], ids=["npm", "AZURITE"])
def test_without_an_emulator_it_says_so_and_fails_in_ci(tmp_path: Path, settings: dict[str, str]) -> None:
    """Before the tests begin, since there a skipped test is a failed one."""
    script = Path(__file__).parents[2] / "scripts" / "azurite.sh"
    for ci, code, told in (("", 0, "THE TESTS OF az:// WILL BE SKIPPED"), ("true", 1, "CI skips nothing")):
        environment = {"PATH": str(tmp_path), "CI": ci, **settings}
        done = subprocess.run(
            ["/bin/sh", str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert (code, "") == (done.returncode, done.stdout)
        assert told in done.stderr
        assert "npm" in done.stderr


def _write_and_read_a_table(root: str, options: dict[str, Any]) -> None:
    """Commit a table by PyIceberg, read it by another catalog, and delete a file of it."""
    Lakehouse.create(root, storage_options=options)
    catalog = LakehouseCatalog.over(Lakehouse.open(root, storage_options=options))
    table = with_table(catalog, "sales.orders", 1)
    table.append(rows(2))
    again = LakehouseCatalog.over(Lakehouse.open(root, storage_options=options)).load_table("sales.orders")
    assert [1, 2] == ids(again)
    again.delete("id = 1")
    assert [2] == ids(table.refresh())
    assert [] == list(catalog.lakehouse.check(definitions=True))


def test_pyiceberg_writes_and_reads_tables_on_google(google: SlowS3) -> None:
    _write_and_read_a_table(f"gs://lakes/{uuid.uuid4().hex}", google.google)


@pytest.mark.slow
def test_pyiceberg_writes_and_reads_tables_on_azure(azurite: Azurite) -> None:
    _write_and_read_a_table(azurite.new_root(), azurite.options)


@pytest.mark.parametrize(
    "uri", ["/a/path", "file:///a/path", "s3://b/x", "abfss://c@a.dfs.core.windows.net/x", "gs://b/x"]
)
def test_options_of_the_environment_count_for_the_storages_that_know_them(uri: str) -> None:
    """Those of Azure and Google made every local path fail."""
    everywhere = {
        "retries": 1,
        "durable": False,
        "key": "k",
        "secret": "s",
        "region": "r",
        "account_name": "a",
        "sas_token": "t",
        "service_account": "f",
    }
    options = applicable(everywhere, uri)
    assert 1 == options["retries"]
    open_storage(root_uri(uri), options)
    with pytest.raises(InvalidInput, match="no_such_option"):
        open_storage(root_uri(uri), applicable({"no_such_option": 1}, uri))


class BlobSuite(StorageSuite):
    """The common contract, and what differs from S3."""

    test_a_storage_works_after_a_fork = refuses_after_a_fork

    def test_deletes_are_batched(self, storage: Any) -> None:
        """They are not: each file is a request, and each may fail by itself."""
        storage.write_many((f"d/{number}", b"x") for number in range(7))
        before = storage.counts.snapshot()
        result = storage.delete_many([f"d/{number}" for number in range(8)])
        assert (7, ["d/7"], {}) == (len(result.deleted), result.missing, result.failed)
        assert {"delete": 8} == (storage.counts - before).as_dict()

    def test_requests_and_bytes_are_counted(self, storage: Any) -> None:
        """As everywhere, but for the deletes."""
        storage.write_many([("a", b"123"), ("b", b"4")])
        storage.create("root", b"56")
        storage.read("a")
        storage.delete_many(["a", "b"])
        expected = {"get": 1, "put": 2, "create": 1, "delete": 2, "bytes_read": 3, "bytes_written": 6}
        assert expected == storage.counts.as_dict()


@pytest.mark.slow
class TestGoogleStorage(BlobSuite):
    """Decided by generations."""

    @pytest.fixture
    def place(self, google: SlowS3) -> Place:
        """A prefix of the bucket."""
        return google.new_root().replace("s3:", "gs:"), google.google

    @pytest.fixture
    def put_raw(self, place: Place, google: SlowS3) -> Callable[[str, bytes], None]:
        """A prefix of the bucket."""
        return lambda path, data: google.raw("PUT", place[0], path, data)

    @pytest.fixture
    def get_raw(self, place: Place, google: SlowS3) -> Callable[[str], bytes]:
        """A prefix of the bucket."""
        return lambda path: google.raw("GET", place[0], path)


@pytest.mark.slow
class TestAzureStorage(BlobSuite):
    """Decided by ETags."""

    @pytest.fixture
    def place(self, azurite: Azurite) -> Place:
        """A prefix of the container."""
        return azurite.new_root(), azurite.options

    @pytest.fixture
    def put_raw(self, place: Place, azurite: Azurite) -> Callable[[str, bytes], None]:
        """A prefix of the container."""
        store = azurite.store()
        return lambda path, data: store.put(place[0].split("/", 3)[3] + path, data)

    @pytest.fixture
    def get_raw(self, place: Place, azurite: Azurite) -> Callable[[str], bytes]:
        """A prefix of the container."""
        store = azurite.store()
        return lambda path: bytes(store.get(place[0].split("/", 3)[3] + path).bytes())


@pytest.mark.slow
def test_a_lakehouse_lives_on_azure(azurite: Azurite) -> None:
    """Created, filled, compacted and expired; what it says is what it said."""
    _lives(azurite.new_root(), azurite.options)


def test_a_lakehouse_lives_on_google(google: SlowS3) -> None:
    """The same."""
    _lives(google.new_root().replace("s3:", "gs:"), google.google)


def _lives(root: str, options: dict[str, Any]) -> None:
    lake = filled(Lakehouse.create(root, storage_options=options, order=8), tables=40)
    compaction.run(lake, compaction.Config(engine="local"))
    before = content(lake.refresh())
    expire.run(lake.refresh(), expire.Config(engine="local", keep_last=1))
    again = Lakehouse.open(lake.root, storage_options=options)
    assert before == content(again)
    assert [] == list(again.check(definitions=True))


def _store(uri: str, options: dict[str, Any]) -> Any:
    scheme, _, authority = uri.partition("://")
    return make_store_of(authority, options, google=scheme == "gs")[1](30.0)


def test_options_of_adlfs_are_known() -> None:
    """Account, key or connection string; ``abfss`` names the account itself."""
    config = _store("az://lakes", {"account_name": "us", "account_key": "a2V5", "endpoint_url": "http://127.0.0.1:1"})
    assert ("lakes", "us") == (config.config["container_name"], config.config["account_name"])
    text = "DefaultEndpointsProtocol=https;AccountName=us;AccountKey=a2V5;EndpointSuffix=core.windows.net"
    assert "us" == _store("az://lakes", {"connection_string": text}).config["account_name"]
    named = _store("abfss://lakes@us.dfs.core.windows.net", {"account_key": "a2V5"})
    assert "https://us.blob.core.windows.net" == named.config["endpoint"]
    with pytest.raises(InvalidLocation, match="names no account"):
        open_storage("abfss://lakes@us/lake")


def test_options_of_gcsfs_are_known() -> None:
    """``token`` is a file, its content, or a word."""
    anonymous = _store("gs://lakes", {"token": "anon", "endpoint_url": "http://127.0.0.1:1", "project": "p"})
    assert ("true", "http://127.0.0.1:1") == tuple(
        str(anonymous.config[name]).lower() for name in ("skip_signature", "base_url")
    )
    with pytest.raises(InvalidInput, match="no_such is not known for gs://"):
        open_storage("gs://lakes/x", {"no_such": 1})


def test_options_stay_with_their_cloud() -> None:
    """The schemes of one cloud share them."""
    options = {"account_key": "secret", "retries": 3}
    assert options == options_for("abfss://lakes@us.dfs.core.windows.net/x", "az://lakes/x", options)
    assert {"retries": 3} == options_for("gs://lakes/x", "az://lakes/x", options)


def test_nothing_secret_is_said() -> None:
    """Neither by the storage nor by an error of a server that is not there."""
    secret = "c2VjcmV0LWtleQ=="
    options = {"account_name": "us", "account_key": secret, "endpoint_url": "http://127.0.0.1:1", "retries": 0}
    storage = open_storage("az://lakes/x", options)
    with pytest.raises(StorageError, match="failed 1 times") as caught:
        storage.read("file")
    assert secret not in str(caught.value) + repr(storage) + repr(cast("Any", storage)._client)
