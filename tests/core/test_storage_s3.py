"""S3: the common contract against moto, the refusal of rclone, and the mapping of errors."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tests.support.faults import FaultPlan, attach
from tests.support.fleets import Silent
from tests.support.proofs import forget_proofs
from tests.support.s3_servers import SECRET, S3Server, free_port
from tests.support.storage_suite import Place, StorageSuite, refuses_after_a_fork
from trinitylake_core.errors import (
    AlreadyExists,
    FileMissing,
    InvalidInput,
    OutcomeUnknown,
    StorageDenied,
    StorageError,
    StorageFull,
    UnsafeStorage,
)
from trinitylake_core.storage import Storage, check_conformance, open_storage, silence
from trinitylake_core.storage.contests import SCRATCH_PREFIX
from trinitylake_core.storage.failures import Outdated, TransientError
from trinitylake_core.storage.s3 import S3Storage
from trinitylake_core.storage.store_errors import map_error, refused_swap

pytestmark = pytest.mark.s3


@pytest.fixture
def options(moto_server: S3Server) -> dict[str, Any]:
    """What reaches moto."""
    return moto_server.options


@pytest.fixture
def storage(moto_server: S3Server, options: dict[str, Any]) -> Storage:
    """An empty place on moto."""
    return open_storage(moto_server.new_root(), options)


class TestS3Storage(StorageSuite):
    """The common contract, but for a fork."""

    @pytest.fixture
    def place(self, moto_server: S3Server) -> Place:
        """A prefix of the bucket on moto."""
        return moto_server.new_root(), moto_server.options

    @pytest.fixture
    def put_raw(self, place: Place, moto_server: S3Server) -> Callable[[str, bytes], None]:
        """A prefix of the bucket on moto."""
        client = moto_server.client()
        prefix = place[0].removeprefix(f"s3://{moto_server.bucket}/")
        return lambda path, data: client.put_object(Bucket=moto_server.bucket, Key=prefix + path, Body=data)

    @pytest.fixture
    def get_raw(self, place: Place, moto_server: S3Server) -> Callable[[str], bytes]:
        """A prefix of the bucket on moto."""
        client = moto_server.client()
        prefix = place[0].removeprefix(f"s3://{moto_server.bucket}/")
        return lambda path: client.get_object(Bucket=moto_server.bucket, Key=prefix + path)["Body"].read()

    test_a_storage_works_after_a_fork = refuses_after_a_fork


# Requests.


def test_the_doctor_counts_the_real_requests(moto_server: S3Server) -> None:
    """Those of all racers, over both clients, whatever it finds."""
    root = moto_server.new_root()
    deletions = moto_server.requests("?delete")
    counted = sum(each.requests for each in check_conformance(root, moto_server.options))
    deletions = moto_server.requests("?delete") - deletions  # names are in the body
    assert moto_server.requests(root.split("/")[3]) + deletions == counted


def test_defect_11_a_strange_name_does_not_block_the_others(storage: Storage) -> None:
    """U+FFFF cannot stand in the XML of a batch: such names go one by one, the others in one request."""
    names = ["d/a", "d/b\uffff", "d/c", "d/e\ud7ff"]
    storage.write_many((name, b"x") for name in names)
    before = storage.counts.snapshot()
    result = storage.delete_many([*names, "d/gone\ufffe"])
    assert ({*names, "d/gone\ufffe"}, {}) == (set(result.deleted), result.failed)
    assert {"delete": 3} == (storage.counts - before).as_dict()
    assert [] == list(storage.list())


def test_long_listings_are_paged(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page is a request, and no file is lost between pages."""
    monkeypatch.setattr("trinitylake_core.storage.s3._PAGE", 7)
    storage = open_storage(moto_server.new_root(), moto_server.options)
    names = {f"d{number % 3}/{number:03}" for number in range(30)}
    storage.write_many((name, b"") for name in names)
    before = storage.counts.snapshot()
    assert names == {info.path for info in storage.list()}
    assert {"list": 5} == (storage.counts - before).as_dict()


def _fill_directories(storage: Storage, draw: random.Random) -> dict[str, list[str]]:
    """Write files into directories, of which some are empty or between others; return their paths by directory."""
    files = {f"{part}/{number:02}é/": [] for part in ("t/a", "t/b", "z") for number in range(12)}
    for directory, own in files.items():
        own += [f"{directory}{draw.choice(['', 'x/', 'ü/'])}{number}" for number in range(draw.choice([0, 1, 3, 17]))]
    storage.write_many((path, b"") for own in files.values() for path in own)
    return files


def test_neighbours_are_listed_together(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever directories are asked for, their files come once; for all of them in at most twice the least pages."""
    monkeypatch.setattr("trinitylake_core.storage.s3._PAGE", 5)
    draw = random.Random(5)
    for most in (1, 3, 32):
        storage = open_storage(moto_server.new_root(), moto_server.options | {"max_concurrency": most})
        files = _fill_directories(storage, draw)
        for count in (1, 7, len(files)):
            asked = draw.sample(sorted(files), count)
            before = storage.counts.snapshot()
            found = [info.path for info in storage.list_many(asked)]
            spent = (storage.counts - before).list
            assert sorted(path for each in asked for path in files[each]) == sorted(found)
        assert spent <= 1 + 2 * -(-len(found) // 5)
        some = storage.list_many(list(files), lambda path: path.endswith("6"))
        assert {path for path in found if path.endswith("6")} == {info.path for info in some}
    assert [] == list(storage.list_many([]))


class _OutOfOrder(S3Storage):
    """A store that lists names in no order, and always from the first one on."""

    def _call(self, operation: str, seconds: float | None = None, **parameters: Any) -> dict[str, Any]:
        parameters.pop("StartAfter", None)
        answer = super()._call(operation, seconds, **parameters)
        answer.get("Contents", []).reverse()
        return answer


class _EmptyFirst(S3Storage):
    """A store whose first page has no name, as where many were deleted."""

    def _call(self, operation: str, seconds: float | None = None, **parameters: Any) -> dict[str, Any]:
        if not parameters.pop("StartAfter", None):
            return super()._call(operation, seconds, **parameters)
        return {"IsTruncated": True, "NextContinuationToken": "more"}


@pytest.mark.parametrize("kind", [S3Storage, _OutOfOrder, _EmptyFirst])
def test_odd_names_and_answers_lose_no_file(
    kind: type[S3Storage], moto_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none comes twice. A page may end with a name that this library would not write."""
    monkeypatch.setattr("trinitylake_core.storage.s3._PAGE", 5)
    storage = kind(moto_server.new_root(), moto_server.options)
    files = _fill_directories(storage, random.Random(6))
    files["z/03é/"] += [f"z/03é/../{number}" for number in range(9)]
    for path in files["z/03é/"][-9:]:
        moto_server.client().put_object(Bucket=moto_server.bucket, Key=storage._key(path))
    found = [info.path for info in storage.list_many(list(files))]
    assert sorted(path for own in files.values() for path in own) == sorted(found)


def test_directory_markers_are_no_files(storage: Storage, moto_server: S3Server) -> None:
    """Consoles make empty objects whose names end in a slash; they do not make a lakehouse exist."""
    prefix = storage.root.removeprefix(f"s3://{moto_server.bucket}/")
    moto_server.client().put_object(Bucket=moto_server.bucket, Key=prefix, Body=b"")
    assert not storage.exists()
    assert ([], []) == (list(storage.list()), list(storage.list_dirs()[1]))


def test_neighbours_are_not_seen(moto_server: S3Server) -> None:
    """A root is a directory, not a prefix of names."""
    name = uuid.uuid4().hex
    near, far = (open_storage(f"s3://{moto_server.bucket}/{name}{end}", moto_server.options) for end in ("", "2"))
    far.create("root", b"x")
    assert not near.exists()
    assert [] == list(near.list())


def test_a_whole_bucket_can_be_a_root(moto_server: S3Server) -> None:
    """The root need not have a path."""
    moto_server.client().create_bucket(Bucket="whole")
    storage = open_storage("s3://whole", moto_server.options)
    assert not storage.exists()
    storage.create("d/root", b"x")
    assert ["d/root"] == [info.path for info in storage.list()]


def test_credentials_come_from_the_environment(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with every other tool for S3."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "env-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "env-secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto_server.endpoint)
    storage = open_storage(moto_server.new_root())
    storage.create("root", b"x")
    assert b"x" == storage.read("root")


# Stores that are not safe.


def test_a_store_that_ignores_exclusive_creation_is_refused(rclone_server: S3Server) -> None:
    """Reading works; the proof fails, again and again, and harms nothing."""
    storage = open_storage(rclone_server.new_root(), rclone_server.options)
    storage.write_many([("root", b"first"), ("d/ü b", b"2")])
    assert {"root": b"first", "d/ü b": b"2"} == dict(storage.read_many(["root", "d/ü b"]))
    assert {"root", "d/ü b"} == {info.path for info in storage.list()}
    for _ in range(2):
        with pytest.raises(UnsafeStorage, match="does not keep the promise of exclusive creation"):
            storage.prove_exclusive_create()
    assert b"first" == storage.read("root")
    with pytest.raises(FileMissing):
        storage.read("missing")
    storage.delete_many(["root", "d/ü b"])
    # rclone lists a file of the proof that it has deleted, when many had written it at once.
    assert [] == [info for info in storage.list() if not info.path.startswith(SCRATCH_PREFIX)]


def test_the_doctor_names_what_is_wrong_with_such_a_store(rclone_server: S3Server) -> None:
    """Everything else works."""
    results = {result.name: result for result in check_conformance(rclone_server.new_root(), rclone_server.options)}
    assert not results["exclusive creation"].ok
    assert "concurrent commits would overwrite each other" in results["exclusive creation"].detail
    for name in ("write and read", "missing file", "replace", "list", "clock", "delete", "clean up"):
        assert results[name].ok, results[name]


def test_a_store_that_ignores_compare_and_set_is_found_out(moto_server: S3Server, options: dict[str, Any]) -> None:
    """It may honour exclusive creation all the same. The proof fails, again and again, and harms nothing."""
    storage = open_storage(moto_server.new_root_without_compare_and_set(), options)
    storage.create("immutable", b"data")
    storage.prove_exclusive_create()
    for _ in range(2):
        with pytest.raises(UnsafeStorage, match="does not keep the promise of compare-and-set"):
            storage.prove_compare_and_set()
    assert b"data" == storage.read("immutable")


def test_the_doctor_tells_a_store_that_ignores_compare_and_set(moto_server: S3Server) -> None:
    """Everything else works."""
    root = moto_server.new_root_without_compare_and_set()
    failed = [result for result in check_conformance(root, moto_server.options) if not result.ok]
    assert ["compare and set"] == [result.name for result in failed]
    assert "two expirations at a time" in failed[0].detail


def test_a_proof_is_made_once_a_process_and_bucket(moto_server: S3Server) -> None:
    """Another root in the same bucket trusts it; a store is one, whatever lies in it."""
    forget_proofs()
    requests = []
    for root in (moto_server.new_root(), moto_server.new_root()):
        storage = open_storage(root, moto_server.options)
        storage.prove_exclusive_create()
        storage.prove_compare_and_set()
        requests.append((storage.counts.create, storage.counts.put))
    assert [(4 * 8 + 8 * 2, 4 * 8 + 8 * 2 + 12), (0, 0)] == requests


@pytest.mark.parametrize(
    ("status", "code", "mapped"),
    [
        (412, "PreconditionFailed", Outdated),
        (404, "NoSuchKey", Outdated),
        (409, "ConditionalRequestConflict", TransientError),
        (501, "NotImplemented", UnsafeStorage),
        (404, "NoSuchBucket", type(None)),
        (403, "AccessDenied", type(None)),
        (503, "SlowDown", type(None)),
    ],
)
def test_refused_preconditions_are_told_from_failures(status: int, code: str, mapped: type[Any]) -> None:
    """What is no answer to the precondition is mapped like that of every other request."""

    class Answered(Exception):
        response: ClassVar[dict[str, Any]] = {
            "Error": {"Code": code},
            "ResponseMetadata": {"HTTPStatusCode": status},
        }

    refused = refused_swap("s3://bucket/file", Answered())
    assert mapped is type(refused)
    assert not isinstance(refused, TransientError) or refused.undone
    assert refused_swap("s3://bucket/file", ConnectionError()) is None


# Failures.


def test_a_missing_bucket_is_told(options: dict[str, Any]) -> None:
    """It is not an empty lakehouse."""
    storage = open_storage("s3://no-such-bucket/lake", options)
    for call in (
        lambda: storage.read("root"),
        lambda: storage.create("root", b""),
        storage.exists,
        lambda: list(storage.list()),
    ):
        with pytest.raises(StorageError, match="bucket 'no-such-bucket' does not exist") as caught:
            call()
        assert not isinstance(caught.value, FileMissing)


def test_a_server_that_is_not_there_is_told_after_the_retries(options: dict[str, Any]) -> None:
    """Without waiting long, and without saying who we are. Nothing was sent, so nothing can have been done."""
    options |= {"endpoint_url": f"http://127.0.0.1:{free_port()}", "retries": 2}
    storage = open_storage("s3://lakes/x", options)
    with pytest.raises(StorageError, match="failed 3 times") as caught:
        storage.read("root")
    assert SECRET not in str(caught.value)
    with pytest.raises(StorageError, match="Nothing was sent") as refused:
        storage.create("root", b"x")
    assert not isinstance(refused.value, OutcomeUnknown)
    assert 3 + 3 == storage.counts.requests()


def test_a_store_elsewhere_that_hangs_is_asked_once(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """It takes requests and never answers: each further one would wait as long."""
    monkeypatch.setattr(silence, "_PATIENT_SECONDS", 0.5)
    with Silent() as server:
        patience = {"endpoint_url": server.endpoint, "read_timeout": 0.6, "hedged_share": 0, "retries": 5}
        storage = open_storage("s3://lakes/x", options | patience)
        storage.gives_up = True
        for _ in range(3):
            with pytest.raises(StorageError, match=r"no answer|failed 1 times"):
                storage.info("file")
    assert 1 == storage.counts.requests()


def test_wrong_options_are_told() -> None:
    """Where they are given or where they are first used."""
    with pytest.raises(InvalidInput, match="client_kwargs must be a mapping"):
        open_storage("s3://b/x", {"client_kwargs": 3})
    with pytest.raises(InvalidInput, match="request_timeout must be a number"):
        open_storage("s3://b/x", {"request_timeout": "soon"})
    with pytest.raises(InvalidInput, match="no-such-profile"):
        open_storage("s3://b/x", {"profile": "no-such-profile"}).read("root")
    with pytest.raises(InvalidInput, match="storage option client is not known for s3://"):
        open_storage("s3://b/x", {"client": "s3fs"})


def test_a_late_arrival_of_our_own_create_is_success(storage: Storage) -> None:
    """The first try's answer is lost and reading back fails to see it; the second try is told that it exists."""
    plan = attach(storage, FaultPlan("lose", at=1, kinds={"create"}))
    real = plan.__call__

    def blind_once(kind: str, path: str, action: Callable[[], Any]) -> Any:
        if kind == "get" and plan.count == 1:
            raise FileMissing(path)
        return real(kind, path, action)

    storage.interceptor = blind_once  # type: ignore[attr-defined]
    storage.create("root", b"ours")
    assert 2 == plan.count
    assert b"ours" == storage.read("root")


def test_a_conflict_of_conditions_is_tried_again_without_reading(storage: Storage) -> None:
    """409 says that this try did nothing."""
    tries = []

    def conflict_once(kind: str, _path: str, action: Callable[[], Any]) -> Any:
        tries.append(kind)
        if len(tries) == 1:
            raise _client_error(409, "ConditionalRequestConflict")
        return action()

    storage.interceptor = conflict_once  # type: ignore[attr-defined]
    storage.create("root", b"x")
    assert ["create", "create"] == tries


def test_failed_keys_of_a_batch_are_reported_and_retried(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is throttled is tried again; one that is denied is reported."""
    answers = [
        {"Errors": [{"Key": "KEYb", "Code": "SlowDown"}, {"Key": "KEYc", "Code": "AccessDenied", "Message": "no"}]},
        {"Errors": [{"Key": "KEYb", "Code": "InternalError"}]},
        {},
    ]
    sent: list[list[str]] = []

    def call(_operation: str, _seconds: float | None = None, **parameters: Any) -> dict[str, Any]:
        sent.append([item["Key"] for item in parameters["Delete"]["Objects"]])
        return answers[len(sent) - 1]

    monkeypatch.setattr(storage, "_prefix", "KEY")
    monkeypatch.setattr(storage, "_call", call)
    result = storage.delete_many(["a", "b", "c"])
    assert (["a", "b"], [], {"c": "AccessDenied: no"}) == (result.deleted, result.missing, result.failed)
    assert [["KEYa", "KEYb", "KEYc"], ["KEYb"], ["KEYb"]] == sent
    assert 3 == storage.counts.delete


def _client_error(status: int, code: str) -> Exception:
    from botocore.exceptions import ClientError

    response: Any = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "Operation")


@pytest.mark.parametrize(
    ("kind", "status", "code", "expected"),
    [
        ("create", 412, "PreconditionFailed", AlreadyExists),
        ("create", 409, "ConditionalRequestConflict", TransientError),
        ("create", 501, "NotImplemented", UnsafeStorage),
        ("create", 404, "NoSuchBucket", StorageError),
        ("get", 404, "NoSuchKey", FileMissing),
        ("get", 404, "NoSuchBucket", StorageError),
        ("head", 404, "404", FileMissing),
        ("put", 404, "NoSuchKey", StorageError),
        ("get", 403, "AccessDenied", StorageDenied),
        ("put", 403, "SignatureDoesNotMatch", StorageDenied),
        ("get", 400, "ExpiredToken", StorageDenied),
        ("put", 507, "XMinioStorageFull", StorageFull),
        ("create", 403, "QuotaExceeded", StorageFull),
        ("get", 500, "InternalError", TransientError),
        ("put", 503, "SlowDown", TransientError),
        ("put", 429, "TooManyRequests", TransientError),
        ("put", 400, "RequestTimeout", TransientError),
        ("list", 502, "Bad Gateway", TransientError),
        ("get", 301, "PermanentRedirect", StorageError),
        ("put", 400, "InvalidArgument", StorageError),
    ],
)
def test_answers_are_mapped(kind: str, status: int, code: str, expected: type[Exception]) -> None:
    """Each answer of a server has one meaning."""
    assert expected is type(map_error(kind, "s3://b/x", "b", _client_error(status, code)))


def test_failures_of_the_network_may_be_mended() -> None:
    """Timeouts, resets and cut answers are tried again."""
    import aiohttp
    from botocore import exceptions

    for error in (
        TimeoutError(),
        ConnectionResetError(),
        aiohttp.ClientPayloadError(),
        exceptions.ReadTimeoutError(endpoint_url="x"),
        exceptions.ConnectTimeoutError(endpoint_url="x"),
        exceptions.EndpointConnectionError(endpoint_url="x"),
        exceptions.ConnectionClosedError(endpoint_url="x"),
        exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2),
    ):
        assert TransientError is type(map_error("get", "s3://b/x", "b", error)), error
    assert StorageDenied is type(map_error("get", "s3://b/x", "b", exceptions.NoCredentialsError()))
    assert StorageError is type(map_error("get", "s3://b/x", "b", RuntimeError("bug")))
