"""S3 and compatible stores: objects by obstore, listings and batch deletes by s3fs.

obstore cannot list names that it would not write itself, nor report which names of a batch could not be deleted. s3fs
is imported when it is first needed for that.

Exclusive creation is ``If-None-Match: *``, compare-and-set is ``If-Match`` with the ETag that was read. Options:
``s3_settings``.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from trinitylake_core.errors import InvalidInput, StorageDenied, StorageError
from trinitylake_core.storage.objects import MakeStore, ObjectStorage, ObstoreClient, connection_options, millis
from trinitylake_core.storage.port import DeleteResult, FileInfo
from trinitylake_core.storage.requests import take_flag
from trinitylake_core.storage.store_errors import TRANSIENT_CODES

# -- storage options -------------------------------------------------------------------------------
#
# ``key``, ``secret``, ``token``, ``profile``, ``anon``, ``endpoint_url``, ``region``, ``path_style`` (default: true
# when there is an ``endpoint_url``), ``connect_timeout`` (5 s), ``read_timeout`` (30 s), ``requester_pays``,
# ``s3_additional_kwargs``, ``client_kwargs`` and ``config_kwargs``.
#
# Credentials, region and endpoint are found as botocore finds them, in the same order: options,
# environment, profile, role of the machine, task or pod. botocore itself is asked only where options and environment
# leave something open that a profile or a role may contain, since importing it takes longer than most operations.

_ARGUMENTS: Final = frozenset(
    {"key", "secret", "token", "username", "password", "profile", "anon", "endpoint_url", "requester_pays"}
    | {"s3_additional_kwargs", "client_kwargs", "config_kwargs"}
)
_OF_FILES_AND_CACHES: Final = frozenset(
    {"default_block_size", "default_fill_cache", "default_cache_type", "fixed_upload_size"}
    | {"use_listings_cache", "skip_instance_cache"}
)
"""Arguments of s3fs that change nothing about single requests."""
_CLIENT: Final = frozenset(
    {"endpoint_url", "region_name", "verify", "aws_access_key_id", "aws_secret_access_key"} | {"aws_session_token"}
)
_CONFIG: Final = frozenset(
    {"s3", "connect_timeout", "read_timeout", "max_pool_connections", "retries", "proxies", "region_name"}
    | {"signature_version", "tcp_keepalive"}
)
_ENCRYPTION: Final = {
    "ServerSideEncryption": "server_side_encryption",
    "SSEKMSKeyId": "sse_kms_key_id",
    "BucketKeyEnabled": "sse_bucket_key_enabled",
}
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_ENVIRONMENT: Final = ("AWS_", "BOTO_", "HOME", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http")
_RENEWED: Final = timedelta(minutes=10)
"""obstore asks again five minutes before credentials end, so every five minutes; botocore knows when to renew them."""
_DEFAULT_REGION: Final = "us-east-1"

Keys = tuple[str, str, str | None]
Credentials = Callable[[], Mapping[str, Any]]


def environment() -> tuple[tuple[str, str], ...]:
    """Return the environment variables that the settings may depend on beside the options."""
    return tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)))


def arguments_of(options: Mapping[str, Any], max_concurrency: int) -> dict[str, Any]:
    """Return the storage options as arguments for ``s3fs.S3FileSystem``. No request.

    Raises ``InvalidInput`` for an unknown or malformed option: none is left out silently.
    """
    arguments = dict(options)
    for name in ("client_kwargs", "config_kwargs"):
        if not isinstance(arguments.get(name) or {}, Mapping):
            raise InvalidInput(f"storage option {name} must be a mapping, not {type(arguments[name]).__name__}")
    client = dict(arguments.pop("client_kwargs", None) or {})
    config = dict(arguments.pop("config_kwargs", None) or {})
    region = arguments.pop("region", None) or arguments.pop("region_name", None)
    if region is not None:
        client.setdefault("region_name", region)
    custom = bool(arguments.get("endpoint_url") or client.get("endpoint_url"))
    custom = custom or any(os.environ.get(name) for name in _ENDPOINTS)
    if take_flag(arguments, "path_style", default=custom):
        config["s3"] = {"addressing_style": "path", **dict(config.get("s3") or {})}
    config.setdefault("connect_timeout", arguments.pop("connect_timeout", 5))
    config.setdefault("read_timeout", arguments.pop("read_timeout", 30))
    config.setdefault("max_pool_connections", max_concurrency)
    config["retries"] = {"total_max_attempts": 1, "mode": "standard"}  # ours count, theirs would hide
    for name in ("anon", "requester_pays"):
        arguments[name] = take_flag(arguments, name, default=False)
    _refuse_unknown(arguments, client, config)
    own = {"client_kwargs": client, "config_kwargs": config, "use_listings_cache": False, "skip_instance_cache": True}
    return arguments | own


def _refuse_unknown(arguments: Mapping[str, Any], client: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    unknown = [name for name in arguments if name not in _ARGUMENTS | _OF_FILES_AND_CACHES]
    unknown += [f"client_kwargs.{name}" for name in client if name not in _CLIENT]
    unknown += [f"config_kwargs.{name}" for name in config if name not in _CONFIG]
    unknown += [f"config_kwargs.s3.{name}" for name in config.get("s3") or {} if name != "addressing_style"]
    more = arguments.get("s3_additional_kwargs") or {}
    unknown += [f"s3_additional_kwargs.{name}" for name in more if name not in _ENCRYPTION]
    if unknown:
        raise InvalidInput(f"storage option {', '.join(sorted(unknown))} is not known for s3://")


def make_store_of(bucket: str, arguments: Mapping[str, Any]) -> MakeStore:
    """Return a factory of obstore stores for a bucket. May read files; may send requests to a metadata service.

    Raises what botocore raises when a profile or credentials are missing.
    """
    client, config = arguments["client_kwargs"], arguments["config_kwargs"]
    endpoint, region, credentials = _place_and_credentials(arguments, client, config)
    if (config.get("s3") or {}).get("addressing_style") == "path" or "." in bucket:
        virtual_hosted = False
    else:
        virtual_hosted = True
        scheme, _, host = endpoint.partition("://")
        endpoint = f"{scheme}://{bucket}.{host}"
    more = arguments.get("s3_additional_kwargs") or {}
    settings = {
        **{_ENCRYPTION[name]: value for name, value in more.items()},
        **({"request_payer": True} if arguments.get("requester_pays") else {}),
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,  # else the environment's would count for more than the option
        "region": region,
        "virtual_hosted_style_request": virtual_hosted,
        "skip_signature": credentials is None,
        "conditional_put": "etag",
    }
    connection = _connection(client, config)
    connect_seconds, read_seconds = float(config["connect_timeout"]), float(config["read_timeout"])

    def make(seconds: float) -> Any:
        from obstore.store import S3Store  # noqa: PLC0415 - local lakehouses need not pay for it

        given = connection_options(seconds, connect_seconds, read_seconds, http=endpoint.startswith("http://"))
        given["client_options"] |= connection
        given |= {"config": settings, "credential_provider": credentials}
        return S3Store(bucket, **given)

    return make


def _place_and_credentials(
    arguments: Mapping[str, Any], client: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[str, str, Credentials | None]:
    """Return endpoint, region and credentials, ``None`` for requests without a signature."""
    anonymous = bool(arguments.get("anon")) or config.get("signature_version") == "unsigned"
    keys = None if anonymous else _given_keys(arguments, client)
    endpoint = arguments.get("endpoint_url") or client.get("endpoint_url")
    endpoint = endpoint or next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)
    region = client.get("region_name") or os.environ.get("AWS_DEFAULT_REGION")
    credentials: Credentials | None = (lambda: _as_obstore(keys, None)) if keys else None
    # a profile or a partition may decide about region or endpoint
    decided = bool(region and endpoint)
    file = Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
    profiles = bool(os.environ.get("AWS_PROFILE")) or file.exists()
    partition = str(region).startswith(("cn-", "us-iso", "eu-iso"))
    open_questions = bool(arguments.get("profile")) or (not decided and (profiles or partition))
    if open_questions or not (keys or anonymous):
        found_endpoint, region, found = _from_botocore(arguments, client, signs=not (anonymous or keys))
        endpoint = endpoint or found_endpoint
        credentials = credentials or found
    region = str(region or _DEFAULT_REGION)
    return (endpoint or f"https://s3.{region}.amazonaws.com").rstrip("/"), region, credentials


def _given_keys(arguments: Mapping[str, Any], client: Mapping[str, Any]) -> Keys | None:
    """Return the keys of the options, else those of the environment, unless a profile is named."""
    key = arguments.get("key") or arguments.get("username") or client.get("aws_access_key_id")
    secret = arguments.get("secret") or arguments.get("password") or client.get("aws_secret_access_key")
    if key and secret:
        return str(key), str(secret), arguments.get("token") or client.get("aws_session_token")
    if arguments.get("profile"):
        return None
    key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    token = os.environ.get("AWS_SESSION_TOKEN") or os.environ.get("AWS_SECURITY_TOKEN")
    return (key, secret, token) if key and secret else None


def _from_botocore(
    arguments: Mapping[str, Any], client: Mapping[str, Any], *, signs: bool
) -> tuple[str, str | None, Credentials | None]:
    """Return endpoint, region and, if they are needed, credentials as botocore finds them.

    botocore renews the credentials itself when they are about to end.
    """
    import botocore.config  # noqa: PLC0415 - a fifth of a second
    import botocore.exceptions  # noqa: PLC0415
    import botocore.session  # noqa: PLC0415

    session = botocore.session.Session(profile=arguments.get("profile"))
    quiet = botocore.config.Config(signature_version=botocore.UNSIGNED)
    names = {name: client[name] for name in ("region_name", "endpoint_url") if name in client}
    meta = session.create_client("s3", config=quiet, **names).meta
    region = meta.region_name if meta.region_name != "aws-global" else _DEFAULT_REGION
    if not signs:
        return meta.endpoint_url, region, None
    found = session.get_credentials()
    if found is None:
        raise botocore.exceptions.NoCredentialsError

    def renewed() -> Mapping[str, Any]:
        frozen = found.get_frozen_credentials()
        return _as_obstore((frozen.access_key, frozen.secret_key, frozen.token), datetime.now(UTC) + _RENEWED)

    return meta.endpoint_url, region, renewed


def _as_obstore(keys: Keys, until: datetime | None) -> Mapping[str, Any]:
    return {"access_key_id": keys[0], "secret_access_key": keys[1], "token": keys[2], "expires_at": until}


def _connection(client: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    verify = client.get("verify")
    if verify is False:
        found["allow_invalid_certificates"] = True
    elif isinstance(verify, str):
        found["root_certificate"] = Path(verify).read_bytes()
    proxies = config.get("proxies") or {}
    if proxy := proxies.get("https") or proxies.get("http"):
        found["proxy_url"] = proxy
    return found


_PAGE: Final = 1000
_NOT_IN_XML: Final = re.compile("[^\\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_file_systems: WeakKeyDictionary[ObstoreClient, Any] = WeakKeyDictionary()
"""The file systems, each shared by all storages with one client."""
_lock = threading.Lock()


class S3Storage(ObjectStorage):
    """Objects below a prefix of one bucket."""

    def __init__(self, root: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(root, options)
        self._arguments = arguments_of(self._own_options, self._common.max_concurrency)
        client = self._arguments["client_kwargs"]
        self._endpoint = str(self._arguments.get("endpoint_url") or client.get("endpoint_url"))

    def _settings(self) -> Hashable:
        return repr(self._arguments), environment()

    def _make_store(self) -> MakeStore:
        return make_store_of(self._bucket, self._arguments)

    def _call(self, operation: str, seconds: float | None = None, **parameters: Any) -> dict[str, Any]:
        """Send one HTTP request through s3fs and return its parsed answer.

        Raises ``TimeoutError`` if that takes longer than so many seconds, or than requests may take.
        """
        import s3fs  # noqa: PLC0415 - half a second that single objects need not pay
        from fsspec.asyn import sync  # noqa: PLC0415 - the same

        client = self._client
        with _lock:
            fs = _file_systems.get(client)
            if fs is None:  # no request; the first takes 0.2 s of CPU
                fs = _file_systems[client] = s3fs.S3FileSystem(**self._arguments)
        parameters["Bucket"] = self._bucket
        answer: dict[str, Any] = sync(fs.loop, _send, seconds or self._seconds, fs, operation, parameters)
        return answer

    # Deleting.

    def _delete_version(self, path: str, version: str) -> bool:
        send = partial(self._call, "delete_object", Key=self._key(path), VersionId=version)
        self._retrying("delete", path, send)
        return True

    def _delete(self, batch: Sequence[str]) -> tuple[DeleteResult, list[str]]:
        """S3 reports a missing key as a deleted one; both count as deleted."""
        names = {self._key(path): path for path in batch}
        objects = [{"Key": key} for key in names]
        answer = self._call("delete_objects", Delete={"Objects": objects, "Quiet": True})
        result = DeleteResult()
        again: list[str] = []
        for error in answer.get("Errors", ()):
            path = names.pop(error.get("Key", ""), "")
            code = str(error.get("Code", ""))
            if code == "NoSuchKey":
                result.missing.append(path)
                continue
            result.failed[path] = self._clean(f"{code}: {error.get('Message', '')}")
            if code in TRANSIENT_CODES:
                again.append(path)
        result.deleted = list(names.values())
        return result, again

    def _batches(self, paths: Sequence[str]) -> list[Sequence[str]]:
        """Return batches; a name that XML cannot hold would spoil its batch, so each has a request of its own."""
        strange = {path for path in paths if _NOT_IN_XML.search(path)}
        plain = [path for path in paths if path not in strange] if strange else paths
        return [*super()._batches(plain), *([path] for path in sorted(strange))]

    def _delete_batch(self, batch: Sequence[str]) -> DeleteResult:
        path = batch[0]
        if not _NOT_IN_XML.search(path):
            return super()._delete_batch(batch)
        try:
            self._retrying("delete", path, partial(self._call, "delete_object", Key=self._key(path)))
        except StorageDenied as error:
            return DeleteResult(failed={path: self._clean(error)})
        return DeleteResult(deleted=[path])

    # Listing.

    def _pages(self, prefix: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        parameters = {"Prefix": self._key(prefix), "MaxKeys": _PAGE, **parameters}

        def ask() -> dict[str, Any]:  # a late page is asked for again, as other reads are
            send = lambda seconds: self._call("list_objects_v2", seconds, **parameters)  # noqa: E731
            return self._client.patience["list"].repeat(send, partial(self._count, "list"))

        while True:
            page = self._retrying("list", prefix, ask)
            yield page
            if not page.get("IsTruncated"):
                return
            if not page.get("NextContinuationToken"):
                raise StorageError(f"list of {self.root}{prefix}: a page is cut short without a continuation token")
            parameters["ContinuationToken"] = page["NextContinuationToken"]

    def _files(self, page: Mapping[str, Any]) -> Iterator[FileInfo]:
        for item in page.get("Contents", ()):
            key: str = item["Key"]
            if not key.endswith("/"):  # a directory marker of some console is no file
                yield FileInfo(key[len(self._prefix) :], int(item["Size"]), millis(item["LastModified"]))

    def list(self, prefix: str = "") -> Iterator[FileInfo]:
        if prefix:
            self._guard(prefix)
        for page in self._pages(prefix):
            yield from self._files(page)

    def list_dirs(self, prefix: str = "") -> tuple[Sequence[str], Sequence[FileInfo]]:
        if prefix:
            self._guard(prefix)
        directories: list[str] = []
        files: list[FileInfo] = []
        for page in self._pages(prefix, Delimiter="/"):
            directories += [entry["Prefix"][len(self._prefix) :] for entry in page.get("CommonPrefixes", ())]
            files += self._files(page)
        return directories, files

    def exists(self) -> bool:
        page = next(self._pages("", MaxKeys=2))
        return any(item["Key"] != self._prefix for item in page.get("Contents", ()))


async def _send(seconds: float, fs: Any, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parsed answer to one request; raise ``TimeoutError`` if it is not complete in time."""
    import asyncio  # noqa: PLC0415

    await fs.set_session()
    client = await fs.get_s3(parameters["Bucket"])
    method = getattr(client, operation)
    given = fs._get_s3_method_kwargs(method, **parameters)  # noqa: SLF001 - adds encryption and requester-pays
    answer: dict[str, Any] = await asyncio.wait_for(method(**given), seconds)
    return answer
