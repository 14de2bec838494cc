"""Azure Blob Storage and Google Cloud Storage: ``az://``, ``abfss://``, ``gs://``.

Exclusive creation is ``If-None-Match: *`` or generation 0, compare-and-set is ``If-Match`` or the generation that was
read. Deletes are one request each, since obstore does not report which of a batch failed; listings are those of a whole
directory, since it knows no prefix that ends within a name.

Options have the names that gcsfs and adlfs give them, or obstore's own. Without credentials among them obstore looks
for them where the tools of these clouds do: environment, service account and workload identity files, the identity of
the machine or pod; it renews them itself.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Final

from trinitylake_core.errors import FileMissing, InvalidInput, InvalidLocation, StorageDenied, TrinityLakeError
from trinitylake_core.storage.objects import Arguments, MakeStore, Meta, ObjectStorage, connection_options, millis
from trinitylake_core.storage.port import DeleteResult, FileInfo, Options
from trinitylake_core.storage.requests import Untaken, take_flag, take_number
from trinitylake_core.storage.root_uris import BLOBS
from trinitylake_core.storage.s3_settings import list_environment
from trinitylake_core.storage.store_errors import map_error

_PAGE: Final = 1000
_AZURE_NAMES: Final = {"sas_token": "sas_key", "endpoint_url": "endpoint"} | {
    each: each
    for each in (
        *("account_name", "account_key", "tenant_id", "client_id", "client_secret", "authority_host", "object_id"),
        *("federated_token_file", "msi_endpoint", "msi_resource_id", "use_azure_cli"),
    )
}
_GOOGLE_NAMES: Final = {"endpoint_url": "base_url"} | {
    each: each for each in ("service_account", "service_account_key", "application_credentials", "bearer_token")
}
"""The names of options in obstore; most are the same."""
_IN_CONNECTION_STRING: Final = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "sharedaccesssignature": "sas_key",
    "blobendpoint": "endpoint",
}


class BlobStorage(ObjectStorage):
    """Objects below a prefix of one bucket of Google's or container of Azure's."""

    def __init__(self, root: str, options: Options | None = None) -> None:
        super().__init__(root, options)
        self._endpoint = str(self._own_options.get("endpoint_url"))
        scheme, _, _ = root.partition("://")
        self._google = BLOBS[scheme] == "gs"
        self._asked = (self._bucket, repr(self._own_options))
        self._bucket, self._make = make_store_of(self._bucket, self._own_options, google=self._google)

    def _settings(self) -> Hashable:
        return self._google, self._asked, list_environment()

    def _make_store(self) -> MakeStore:
        return self._make

    def _version_of(self, meta: Meta) -> Any:
        """Return the generation on Google's, the ETag on Azure's."""
        if self._google:
            return meta["version"]
        return meta["e_tag"]

    # Deleting.

    def _delete(self, batch: Sequence[str]) -> tuple[DeleteResult, list[str]]:
        (path,) = batch
        client = self._client
        key = self._key(path)

        def delete(store: Any) -> None:
            client.api.delete(store, key)

        client.once(delete)
        return DeleteResult(deleted=[path]), []

    def _batches(self, paths: Sequence[str]) -> list[Sequence[str]]:
        return [[path] for path in paths]

    def _delete_batch(self, batch: Sequence[str]) -> DeleteResult:
        try:
            return super()._delete_batch(batch)
        except FileMissing:
            return DeleteResult(missing=[*batch])
        except StorageDenied as error:
            return DeleteResult(failed=dict.fromkeys(batch, self._clean(error)))

    # Listing.

    def list(self, prefix: str = "") -> Iterator[FileInfo]:
        """Yield files by prefix. One ``list`` for 1000 files of the directory that the prefix is in.

        Where a page fails, the listing is begun again behind the last one that arrived.
        """
        if prefix:
            self._guard(prefix)
        client = self._client
        above, _, _ = prefix.rpartition("/")
        directory = self._key(above).rstrip("/") or None
        begun: Any = None
        last: str | None = None

        def page() -> tuple[Any, Sequence[Meta]]:
            nonlocal begun
            known = begun
            begun = None  # one that fails cannot go on

            def send(store: Any) -> tuple[Any, Sequence[Meta]]:
                listing = known or client.api.list(store, directory, offset=last, chunk_size=_PAGE)
                return listing, next(listing, ())

            return client.once(send)

        while True:
            begun, found = self._retrying("list", prefix, page)
            if not found:
                return
            last = found[-1]["path"]
            infos = map(self._info, found)
            yield from (info for info in infos if info.path and info.path.startswith(prefix))

    def list_dirs(self, prefix: str = "") -> tuple[Sequence[str], Sequence[FileInfo]]:
        """Return one level. Counted as one ``list``, however many pages the store makes of it."""
        if prefix:
            self._guard(prefix)
        client = self._client
        directory = self._key(prefix).rstrip("/") or None

        def send(store: Any) -> Any:
            return client.api.list_with_delimiter(store, directory)

        found = self._retrying("list", prefix, lambda: client.once(send))
        directories = []
        for name in found["common_prefixes"]:
            below_root = name[len(self._prefix) :]
            directories.append(f"{below_root}/")
        files = []
        for meta in found["objects"]:
            info = self._info(meta)
            if info.path.startswith(prefix) and info.path != prefix:
                files.append(info)
        return directories, files

    def exists(self) -> bool:
        return next(self.list(), None) is not None

    def _info(self, meta: Meta) -> FileInfo:
        path = meta["path"][len(self._prefix) :]
        size = int(meta["size"])
        return FileInfo(path, size, millis(meta["last_modified"]))

    def _translate(self, kind: str, path: str, error: Exception) -> TrinityLakeError:
        if kind == "delete":
            mapped = map_error("get", f"{self.root}{path}", self._bucket, error)
            if isinstance(mapped, FileMissing):
                return mapped
        return super()._translate(kind, path, error)


# Settings.


def make_store_of(authority: str, options: Untaken, *, google: bool) -> tuple[str, MakeStore]:
    """Return the name of bucket or container, and what makes obstore stores for it. No request.

    Raises ``InvalidInput`` for an unknown or malformed option, ``InvalidLocation`` for an invalid account.
    """
    connect = take_number(options, "connect_timeout", default=5.0, least=0.001)
    read = take_number(options, "read_timeout", default=30.0, least=0.001)
    if google:
        scheme = "gs"
        container = authority
        config = _google(options)
    else:
        scheme = "az"
        container, config = _azure(authority, options)
    if options:
        raise InvalidInput(f"storage option {', '.join(sorted(options))} is not known for {scheme}://")
    endpoint = str(config.get("endpoint") or config.get("base_url") or "")
    http = endpoint.startswith("http://")

    def make(seconds: float, *, retries: bool = False) -> Any:
        from obstore.store import AzureStore, GCSStore  # noqa: PLC0415 - local lakehouses need not pay for it

        arguments: Arguments = {"config": config}
        arguments |= connection_options(seconds, connect, read, http=http)
        if retries:
            del arguments["retry_config"]
        if google:
            return GCSStore(container, **arguments)
        return AzureStore(container, **arguments)

    return container, make


def _azure(authority: str, options: Untaken) -> tuple[str, Arguments]:
    """Return container and configuration; ``abfss://container@account.dfs.core.windows.net`` names the account."""
    config: Arguments = {}
    connection = str(options.pop("connection_string", None) or "")
    for part in connection.split(";"):
        label, _, value = part.partition("=")
        name = label.strip().lower()
        if value and name in _IN_CONNECTION_STRING:
            config[_IN_CONNECTION_STRING[name]] = value
    container, at, host = authority.partition("@")
    if at:
        account, dot, domain = host.partition(".dfs.")
        if not dot:
            raise InvalidLocation(f"{authority!r} names no account: write container@account.dfs.core.windows.net")
        config |= {"account_name": account, "endpoint": f"https://{account}.blob.{domain}"}
    return container, config | _take_renamed(options, _AZURE_NAMES)


def _google(options: Untaken) -> Arguments:
    """Return the configuration; ``token`` is what gcsfs knows: a file, its content, ``anon`` or ``google_default``."""
    token = options.pop("token", None)
    options.pop("project", None)  # nothing is created that would belong to one
    config = _take_renamed(options, _GOOGLE_NAMES)
    if token == "anon":  # noqa: S105 - a word of gcsfs
        config["skip_signature"] = True
    elif isinstance(token, Mapping):
        config["service_account_key"] = json.dumps(dict(token))
    elif token not in {None, "google_default", "cloud"}:
        config["application_credentials"] = str(token)
    return config


def _take_renamed(options: Untaken, names: Mapping[str, str]) -> Arguments:
    """Take the options that have a name of obstore's out of ``options``."""
    config = {}
    for name in list(options):
        if name not in names:
            continue
        value = options.pop(name)
        if value is not None:
            config[names[name]] = value
    if take_flag(options, "anon", default=False):
        config["skip_signature"] = True
    return config
