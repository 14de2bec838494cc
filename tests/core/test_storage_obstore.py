"""obstore as the client for S3: shared, forked, renewed, late, slowed down, cut short, and what it says of itself."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.misbehaving import Misbehaving
from tests.support.s3_servers import KEY, SECRET, S3Server
from trinitylake_core.errors import FileMissing, InvalidInput, StorageDenied, StorageError
from trinitylake_core.storage import open_storage
from trinitylake_core.storage.objects import ObjectStorage, ObstoreClient, Pace, Patience
from trinitylake_core.storage.store_errors import Answered, is_slow_down, translate_error

pytestmark = pytest.mark.s3


def client_of(storage: Any) -> ObstoreClient:
    """Return the client behind a storage."""
    assert isinstance(storage, ObjectStorage)
    return storage._client


@pytest.fixture
def proxy(moto_server: S3Server) -> Any:
    """A server between us and moto that misbehaves on demand."""
    with Misbehaving(moto_server.endpoint) as server:
        yield server


@pytest.fixture
def behind(moto_server: S3Server, proxy: Misbehaving) -> tuple[str, dict[str, Any]]:
    """A place on moto that is reached through the proxy."""
    return moto_server.new_root(), {**moto_server.options, "endpoint_url": proxy.endpoint}


# One client a process.


def test_storages_with_the_same_settings_share_connections(proxy: Misbehaving, behind: Any) -> None:
    """A hundred storages one after another, as the tasks of a worker are, use a handful of connections."""
    root, options = behind
    for number in range(100):
        open_storage(f"{root}{number}/", options).replace("file", b"x")
    assert 100 == proxy.requests
    assert proxy.connections < 20  # one comes back to the pool a moment after its answer


def test_other_settings_are_another_client(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options and environment both count."""
    root = moto_server.new_root()
    same = [client_of(open_storage(root, moto_server.options)) for _ in range(2)]
    other = client_of(open_storage(root, moto_server.options | {"request_timeout": 3}))
    monkeypatch.setenv("AWS_EXAMPLE", "changed")
    later = client_of(open_storage(root, moto_server.options))
    assert same[0] is same[1]
    assert 3 == len({same[0], other, later})


def test_nothing_is_imported_before_the_first_request() -> None:
    """Neither obstore nor s3fs: the command line does not wait for them."""
    code = (
        "import sys; from trinitylake_core.storage import open_storage; open_storage('s3://b/x', {'key': 'k'})\n"
        "assert not [m for m in sys.modules if m.partition('.')[0] in ('obstore', 's3fs', 'botocore', 'aiohttp')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_single_objects_need_no_s3fs(moto_server: S3Server, tmp_path: Path) -> None:
    """A command that reads and commits does not import it: that takes longer than its requests."""
    code = """
import sys
from trinitylake_core.storage import open_storage
storage = open_storage(sys.argv[1])
storage.write('file', b'x')
storage.create('root', b'1')
state = storage.compare_and_set('state', b'1', storage.read_tagged('state'))
storage.read('root'), storage.read_range('root', 0, 1), storage.info('root'), list(storage.read_many(['file'] * 3))
heavy = {'asyncio', 'aiobotocore', 'aiohttp', 'fsspec', 's3fs', 'numpy', 'pyarrow'}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert ['file', 'root', 'state'] == sorted(info.path for info in storage.list())
assert 's3fs' in sys.modules
"""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL_S3": moto_server.endpoint,
        "HOME": str(tmp_path),
    }
    subprocess.run([sys.executable, "-c", code, moto_server.new_root()], check=True, timeout=300, env=environment)


def test_a_missing_package_is_named(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is sent; on a cluster the workers may lack it."""
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    storage = open_storage(moto_server.new_root(), moto_server.options | {"request_timeout": 17})
    with pytest.raises(InvalidInput, match="pip install obstore"):
        storage.read("file")


# Options and credentials.


@pytest.mark.parametrize(
    "options",
    [
        {"no_such_option": 1},
        {"version_aware": True},
        {"client_kwargs": {"api_version": "x"}},
        {"config_kwargs": {"user_agent": "x"}},
        {"config_kwargs": {"s3": {"payload_signing_enabled": True}}},
        {"s3_additional_kwargs": {"ACL": "private"}},
    ],
)
def test_what_this_client_cannot_do_is_refused(options: dict[str, Any]) -> None:
    """Nothing that was asked for is left out silently."""
    with pytest.raises(InvalidInput, match="is not known for s3://"):
        open_storage("s3://b/x", options)


def test_credentials_and_region_come_from_a_profile(
    moto_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the files that every tool for AWS reads; the endpoint, too."""
    (tmp_path / "credentials").write_text("[lake]\naws_access_key_id = file-key\naws_secret_access_key = file-secret\n")
    (tmp_path / "config").write_text(f"[profile lake]\nregion = eu-west-7\nendpoint_url = {moto_server.endpoint}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    storage = open_storage(moto_server.new_root(), {"profile": "lake", "path_style": True, "hedged_share": 0})
    storage.create("root", b"x")
    assert b"x" == storage.read("root")


def test_a_signature_is_that_of_the_key_given(proxy: Misbehaving, behind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No token and no key of the environment is mixed with those of the options."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-somebody-else")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-of-somebody-else")
    open_storage(*behind).replace("file", b"x")
    assert f"Credential={KEY}/".encode() in proxy.last
    assert b"somebody-else" not in proxy.last


def test_anonymous_requests_carry_no_signature(proxy: Misbehaving, behind: Any) -> None:
    """And ask nobody for credentials."""
    root, options = behind
    options = {name: value for name, value in options.items() if name not in {"key", "secret"}}
    with pytest.raises(FileMissing):
        open_storage(root, options | {"anon": "true"}).read("file")
    assert b"authorization" not in proxy.last.lower()


def test_credentials_are_renewed_in_a_long_job(
    proxy: Misbehaving, moto_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a role are asked for again when they are about to end; here each lasts for a moment."""
    program = tmp_path / "credentials"
    counter = tmp_path / "counter"
    counter.write_text("0")
    program.write_text(
        "#!/bin/sh\n"
        f"n=$(($(cat {counter}) + 1)); echo $n > {counter}\n"
        "end=$(date -u -d '+5 seconds' +%Y-%m-%dT%H:%M:%SZ)\n"
        'echo "{\\"Version\\": 1, \\"AccessKeyId\\": \\"renewed-$n\\", \\"SecretAccessKey\\": \\"s\\",'
        ' \\"SessionToken\\": \\"t\\", \\"Expiration\\": \\"$end\\"}"\n'
    )
    program.chmod(0o700)
    (tmp_path / "config").write_text(f"[profile role]\nregion = us-east-1\ncredential_process = {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setattr("trinitylake_core.storage.s3_settings._RENEWED", timedelta(0))
    options = {"profile": "role", "endpoint_url": proxy.endpoint, "hedged_share": 0}
    storage = open_storage(moto_server.new_root(), options)
    storage.replace("file", b"x")
    first = proxy.last
    time.sleep(0.2)  # obstore asks again after 0.1 s at the earliest
    storage.replace("file", b"x")
    keys = [head.partition(b"Credential=")[2].partition(b"/")[0] for head in (first, proxy.last)]
    assert all(key.startswith(b"renewed-") for key in keys)
    assert keys[0] != keys[1]


def test_missing_credentials_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to pass."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StorageDenied, match="Pass key and secret, or profile"):
        open_storage("s3://b/x", {"region": "us-east-1"}).read("file")


# Servers that misbehave.


def test_errors_say_what_happened_and_nothing_secret(proxy: Misbehaving, behind: Any) -> None:
    """Neither key nor secret, nor the inner life of the client."""
    root, options = behind
    storage = open_storage(root, options | {"retries": 0})
    proxy.then("drop")
    with pytest.raises(StorageError, match=r"get of s3://.*file failed 1 times") as caught:
        storage.read("file")
    assert "Debug" not in str(caught.value)
    for secret in (KEY, SECRET):
        assert secret not in str(caught.value) + repr(storage) + repr(client_of(storage))


def test_a_trickled_answer_ends_at_the_deadline(proxy: Misbehaving, behind: Any) -> None:
    """Each byte arrives in time, the answer does not: the request ends, and the next try succeeds."""
    root, options = behind
    storage = open_storage(root, options | {"request_timeout": 3, "read_timeout": 10})
    storage.replace("file", b"x" * 1000)
    proxy.then("trickle")
    started = time.perf_counter()
    assert b"x" * 1000 == storage.read("file")
    assert 2.9 < time.perf_counter() - started
    assert 2 == storage.counts.get


def test_a_create_without_an_answer_is_read_back(proxy: Misbehaving, behind: Any) -> None:
    """The server did the work and never said so: at the deadline our own file is found, and that is success."""
    root, options = behind
    storage = open_storage(root, options | {"request_timeout": 4})
    proxy.then("swallow")
    storage.create("root", b"ours")
    assert (1, 1) == (storage.counts.create, storage.counts.get)
    proxy.then("drop after")
    state = storage.compare_and_set("state", b"1", storage.read_tagged("state"))
    assert state is not None
    assert state == storage.read_tagged("state")


@pytest.mark.parametrize("what", ["drop", "cut", "garbage", "slow down", "stall"])
def test_a_misbehaving_answer_is_asked_for_again(proxy: Misbehaving, behind: Any, what: Any) -> None:
    """Closed without an answer, cut in the middle, no HTTP at all, 503, nothing: one more try mends it."""
    root, options = behind
    storage = open_storage(root, options | {"request_timeout": 4})
    storage.replace("file", b"x" * 5000)
    proxy.then(what)
    assert b"x" * 5000 == storage.read("file")
    assert 2 == storage.counts.get


def test_a_late_get_is_asked_for_again(proxy: Misbehaving, behind: Any) -> None:
    """After a multiple of what gets usually take, long before the deadline; both requests are counted."""
    root, options = behind
    storage = open_storage(root, options | {"hedged_share": 0.05, "max_concurrency": 1})
    storage.replace("file", b"x")
    for _ in range(64):
        storage.read("file")
    patience = client_of(storage).patience["get"].choose_timeout(0)
    assert patience is not None
    assert patience < 10
    before = storage.counts.get
    proxy.then("stall")
    started = time.perf_counter()
    assert b"x" == storage.read("file")
    assert time.perf_counter() - started < 55  # the server holds it for a minute
    assert 2 == storage.counts.get - before


def test_a_late_write_is_sent_again(proxy: Misbehaving, behind: Any) -> None:
    """A put may be repeated; so long as nothing is known of puts, that is after two seconds. Both are counted."""
    root, options = behind
    storage = open_storage(root, options | {"hedged_share": 0.05, "max_concurrency": 1})
    proxy.then("stall")
    started = time.perf_counter()
    storage.replace("file", b"x")
    assert 1.9 < time.perf_counter() - started < 55
    assert (2, b"x") == (storage.counts.put, storage.read("file"))


def test_a_late_listing_is_asked_for_again(proxy: Misbehaving, behind: Any) -> None:
    """Listings have a patience of their own."""
    root, options = behind
    storage = open_storage(root, options | {"hedged_share": 0.05, "max_concurrency": 1, "request_timeout": 4})
    storage.create("file", b"x")
    for _ in range(16):
        assert ["file"] == [info.path for info in storage.list()]
    before = storage.counts.list
    proxy.then("stall")
    assert ["file"] == [info.path for info in storage.list()]
    assert 2 == storage.counts.list - before


@pytest.mark.parametrize("kind", ["create", "put", "delete"])
def test_what_matters_is_never_sent_while_the_first_may_be_under_way(
    proxy: Misbehaving, behind: Any, kind: str
) -> None:
    """A late creation, conditional replacement or deletion is waited for until its deadline, then it is tried again."""
    root, options = behind
    storage = open_storage(root, options | {"hedged_share": 0.5, "max_concurrency": 1, "request_timeout": 4})
    for _ in range(16):
        storage.replace("file", b"1")  # what is known of other requests changes nothing
    before = storage.read_tagged("file")
    proxy.then("stall")
    started, sent = time.perf_counter(), storage.counts.snapshot()
    if kind == "create":
        storage.create("other", b"mine")
        assert b"mine" == storage.read("other")
    elif kind == "put":
        after = storage.compare_and_set("file", b"2", before)
        assert after == storage.read_tagged("file")
    else:
        assert ["file"] == storage.delete_many(["file"]).deleted
    assert 3.9 < time.perf_counter() - started
    assert 2 == getattr(storage.counts - sent, kind)


def test_a_store_that_says_slow_down_gets_fewer_requests_at_once(proxy: Misbehaving, behind: Any) -> None:
    """A server that serves four at a time and answers the others with 503 is soon asked for about as many."""
    root, options = behind
    storage = open_storage(root, options | {"retries": 20})
    proxy.most_at_once = 4
    proxy.delay = 0.01
    limits = []

    def files() -> Iterator[tuple[str, bytes]]:
        for number in range(200):
            limits.append(client_of(storage).pace.limit)
            yield f"{number}", b"x"

    storage.write_many(files())
    early = proxy.refused
    assert early
    assert any(limit is not None for limit in limits), "the last successes may have lifted it"
    storage.write_many((f"again-{number}", b"x") for number in range(200))
    assert 400 == len(list(storage.list()))
    assert proxy.refused - early < 200


# Patience and pace, without a server.


def patience(share: float = 0.1, like: Patience | None = None) -> Patience:
    """Return the patience of a client whose requests may take a minute."""
    return Patience(share, 60.0, like)


@pytest.mark.parametrize(("usual", "expected"), [(0.003, 0.125), (0.03, 0.125), (0.05, 0.25), (0.3, 2.0)])
def test_patience_is_a_multiple_of_the_median(usual: float, expected: float) -> None:
    """Four to eight times, at least 1/8 s; a few that are late do not change it."""
    gets = patience()
    assert 2.0 == gets.choose_timeout(0)
    for number in range(64):
        gets.note_answer(usual if number % 10 else 30.0)
    assert expected == gets.choose_timeout(0)


def test_patience_falls_when_the_first_requests_were_slow() -> None:
    """They make the connections. Patience stayed four times as long as it should be."""
    gets = patience()
    for seconds in [0.11] * 32 + [0.03] * 96:
        gets.note_answer(seconds)
    assert 0.125 == gets.choose_timeout(0)


def test_only_a_share_of_the_requests_is_repeated() -> None:
    """When everything is late, no more than the share is repeated, and a few to begin with; then only what is lost."""
    gets = patience(0.05)
    twice = 0
    for _ in range(1000):
        gets.note_answer(0.01)
        if gets.choose_timeout(0) == 0.125:
            gets.note_repetition()
            twice += 1
    assert 40 <= twice <= 50 + 32
    assert 4.0 == gets.choose_timeout(0)
    assert patience(0.0).choose_timeout(0) is None


def test_the_same_is_waited_for_longer_when_it_was_late_twice() -> None:
    """And longer if it is large; three times at the most, then as long as the deadline allows."""
    puts = patience()
    assert [2.0, 2.0, 4.0, None] == [puts.choose_timeout(tries) for tries in range(4)]
    for _ in range(64):
        puts.note_answer(0.03)
    assert [0.125, 0.125, 0.25, None] == [puts.choose_timeout(tries) for tries in range(4)]
    assert [0.125, 0.25, 1.0] == [puts.choose_timeout(0, size) for size in (100_000, 300_000, 1 << 20)]
    assert Patience(0.1, 1.0).choose_timeout(0) is None, "the deadline comes first"


def test_what_is_known_of_gets_counts_for_others() -> None:
    """Four times as long, until the kind is known."""
    gets = patience()
    puts = patience(like=gets)
    assert [2.0, 2.0] == [each.choose_timeout(0) for each in (gets, puts)]
    for _ in range(64):
        gets.note_answer(0.03)
    assert [0.125, 0.5] == [each.choose_timeout(0) for each in (gets, puts)]
    for _ in range(64):
        puts.note_answer(0.1)
    assert [0.125, 0.5] == [each.choose_timeout(0) for each in (gets, puts)]


def test_a_single_answer_that_asks_for_fewer_changes_nothing() -> None:
    """One in twenty is what a store says now and then; three of sixteen are meant."""
    pace = Pace()
    for number in range(200):
        pace.end(pace.begin(), slow_down=number % 20 == 0)
    assert pace.limit is None
    for number in range(15):
        pace.end(pace.begin(), slow_down=number % 7 == 0)
    assert pace.limit == 1


def test_the_pace_halves_once_for_all_that_were_under_way() -> None:
    """Then it grows with every success, until nothing is held back any more."""
    pace = Pace()
    for began in [pace.begin() for _ in range(16)]:
        pace.end(began, slow_down=True)
    assert 8 == pace.limit
    rounds = [pace.begin() for _ in range(8)]
    waiting = threading.Thread(target=lambda: pace.end(pace.begin(), slow_down=False))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    for began in rounds:
        pace.end(began, slow_down=False)
    waiting.join(300)
    assert not waiting.is_alive()
    for _ in range(200):
        pace.end(pace.begin(), slow_down=False)
    assert pace.limit is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Server returned non-2xx status code: 409 Conflict: <Error><Code>BlobAlreadyExists</Code></Error>", 409),
        ("Server returned error response: <Error><Code>SlowDown</Code></Error>", 500),
        ("Received redirect without LOCATION, this normally indicates", 301),
        ("Bulk delete request failed for key a/b: The specified blob does not exist. (code: 404)", 404),
    ],
)
def test_answers_are_read_from_the_words_of_obstore(text: str, expected: int) -> None:
    """The status first; what other stores call by another name is called by that of S3."""
    meant = translate_error(Exception(f"Generic error: {text}\n\nDebug source:\nsecret"))
    assert isinstance(meant, Answered)
    assert expected == meant.response["ResponseMetadata"]["HTTPStatusCode"]
    assert "secret" not in str(meant)
    assert is_slow_down(meant) == ("SlowDown" in text)
    assert (meant.response["Error"]["Code"] == "PreconditionFailed") == ("BlobAlready" in text)


def test_refusals_are_answers() -> None:
    """A head that finds nothing was answered: an upgrade asks for nothing else, and its share was soon used up."""
    heads = patience()

    def missing(_: float | None) -> None:
        raise FileNotFoundError

    def late(_: float | None) -> None:
        if not again:
            raise TimeoutError

    for number in range(300):
        with pytest.raises(FileNotFoundError):
            heads.repeat(missing, list)
        again: list[int] = []
        if number % 20 == 0:
            heads.repeat(late, lambda again=again: again.append(1))
    assert 0.125 == heads.choose_timeout(0)
