"""One configuration of S3 for all clients: options, environment and the files of AWS, resolved once.

obstore, s3fs (over botocore) and PyIceberg's FileIO each know a part of what can be configured, and find it in other
places. So botocore, which knows all of it, is asked once, and each client is told the result: endpoint, addressing,
region, credentials, certificates, proxy and checksums. Importing it takes a third of a second, once in a process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from trinitylake_core.errors import InvalidInput
from trinitylake_core.storage.objects import Arguments, connection_options
from trinitylake_core.storage.s3_options import S3Options

_ENVIRONMENT: Final = ("AWS_", "BOTO_", "HOME", "REQUESTS_CA_BUNDLE", "SSL_CERT_")
_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_ANY_REGION: Final = "aws-global"
_DEFAULT_REGION: Final = "us-east-1"
_RENEWED: Final = timedelta(minutes=10)
"""obstore asks again five minutes before credentials end, so every five minutes; botocore knows when to renew them."""
_NO_PROXY: Final = "http://127.0.0.1:9"
"""Stands where obstore wants a proxy, and is excluded for every host: else it would take that of the environment."""
_ENCRYPTION: Final = {
    "ServerSideEncryption": "server_side_encryption",
    "SSEKMSKeyId": "sse_kms_key_id",
    "BucketKeyEnabled": "sse_bucket_key_enabled",
}
Credentials = Callable[[], Mapping[str, Any]]


def list_environment() -> tuple[tuple[str, str], ...]:
    """Return the environment variables that the settings may depend on beside the options."""
    found = []
    for name, value in os.environ.items():
        if name.startswith(_ENVIRONMENT) or name.lower() in _PROXIES:
            found.append((name, value))
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class S3Settings:
    """What is known of one bucket and of the way to it.

    Attributes:
        bucket: its name.
        endpoint: the URL of the server, without the bucket.
        region: the region that requests are signed for.
        path_style: whether the bucket stands in the path, else it stands before the host.
        credentials: gives keys, renewed when they are about to end; ``None`` for requests without a signature.
        verify: the file of an authority, or whether certificates are checked.
        proxy: the URL of the proxy for this server; ``None`` for a direct connection.
        sends_checksums: whether each write has a checksum of its content beside its signature.
        options: the options that they were made of.
    """

    bucket: str
    endpoint: str
    region: str
    path_style: bool
    credentials: Credentials | None
    verify: str | bool
    proxy: str | None
    sends_checksums: bool
    options: S3Options

    def make_store(self, seconds: float, *, retries: bool = False) -> Any:
        """Return an obstore store whose requests take so many seconds at the most; with ``retries``, it repeats them.

        No request.
        """
        from obstore.store import S3Store  # noqa: PLC0415 - local lakehouses need not pay for it

        options = self.options
        given: Arguments = connection_options(
            seconds, options.connect_seconds, options.read_seconds, http=self.endpoint.startswith("http://")
        )
        given["client_options"] |= self._connection()
        if retries:
            del given["retry_config"]
        given |= {"config": self._config(), "credential_provider": self.credentials}
        return S3Store(self.bucket, **given)

    def _config(self) -> Arguments:
        endpoint = self.endpoint
        if not self.path_style:
            endpoint = endpoint.replace("://", f"://{self.bucket}.", 1)
        config: Arguments = {_ENCRYPTION[name]: value for name, value in self.options.encryption}
        config |= {
            "endpoint": endpoint,
            "aws_endpoint_url_s3": endpoint,  # else the environment's would count for more than the option
            "region": self.region,
            "virtual_hosted_style_request": not self.path_style,
            "skip_signature": self.credentials is None,
            "conditional_put": "etag",
        }
        if self.options.requester_pays:
            config["request_payer"] = True
        if self.sends_checksums:
            config["checksum_algorithm"] = "sha256"
        return config

    def _connection(self) -> Arguments:
        found: Arguments = {}
        if self.verify is False:
            found["allow_invalid_certificates"] = True
        elif isinstance(self.verify, str):
            found["root_certificate"] = Path(self.verify).read_bytes()
        if self.proxy is not None:
            found["proxy_url"] = self.proxy
        elif any(name.lower() in _PROXIES for name in os.environ):
            host = urlsplit(self.endpoint).hostname or ""
            found["proxy_url"] = _NO_PROXY
            found["proxy_excludes"] = f"*,{host},{self.bucket}.{host}"
        return found


def s3fs_arguments(settings: S3Settings, connections: int) -> Arguments:
    """Return the arguments for ``s3fs.S3FileSystem`` by which it asks as obstore does. No request."""
    options = settings.options
    client: Arguments = {
        "endpoint_url": settings.endpoint,
        "region_name": settings.region,
        "verify": settings.verify,
    }
    config: Arguments = {
        "s3": {"addressing_style": "path" if settings.path_style else "virtual"},
        "proxies": {} if settings.proxy is None else {"http": settings.proxy, "https": settings.proxy},
        "connect_timeout": options.connect_seconds,
        "read_timeout": options.read_seconds,
        "max_pool_connections": connections,
        "retries": {"total_max_attempts": 1, "mode": "standard"},  # ours count, theirs would hide
        "request_checksum_calculation": "when_supported" if settings.sends_checksums else "when_required",
    }
    arguments: Arguments = {
        "anon": settings.credentials is None,
        "client_kwargs": client,
        "config_kwargs": config,
        "requester_pays": options.requester_pays,
        "s3_additional_kwargs": dict(options.encryption),
        "use_listings_cache": False,
        "skip_instance_cache": True,
    }
    if options.has_keys:
        arguments |= {"key": options.key, "secret": options.secret, "token": options.token}
    elif options.profile is not None:
        arguments["profile"] = options.profile
    return arguments


# -- resolving -------------------------------------------------------------------------------------


def resolve(bucket: str, options: S3Options) -> S3Settings:
    """Return the settings for a bucket. May read files; may send requests to a metadata service or to STS.

    Raises:
        InvalidInput: a profile cannot be resolved, a file cannot be read, an endpoint is no URL, a key is none.
        StorageDenied: there are no credentials. (As botocore's errors, which ``store_errors`` maps.)
    """
    import botocore.config  # noqa: PLC0415 - a third of a second
    import botocore.session  # noqa: PLC0415

    if options.endpoint is not None:
        _refuse_endpoint(options.endpoint)
    with _explain_errors(options):
        session = botocore.session.Session(profile=options.profile)
        session.register_component("data_loader", _share_models(session.get_config_variable("data_path")))
        region = options.region or session.get_config_variable("region") or _DEFAULT_REGION
        quiet = botocore.config.Config(
            signature_version=botocore.UNSIGNED,
            ignore_configured_endpoint_urls=True if options.endpoint else None,
            s3={"us_east_1_regional_endpoint": "regional"},
        )
        # With an endpoint of the options it is not asked where the region is: it takes no names with an underscore.
        asked = _DEFAULT_REGION if options.endpoint else region
        meta = session.create_client("s3", asked, config=quiet).meta
        style = (session.get_scoped_config().get("s3") or {}).get("addressing_style")
        bundle = session.get_config_variable("ca_bundle")
        checksums = options.checksums or session.get_config_variable("request_checksum_calculation")
        credentials = None if options.anonymous else _credentials(session, options)
    _refuse_other_servers(meta.config, session.profile or "default")
    endpoint: str = options.endpoint or meta.endpoint_url
    _refuse_endpoint(endpoint)
    is_aws = (urlsplit(endpoint).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))
    path_style = options.path_style
    if path_style is None:
        path_style = _STYLES.get(style or "", not is_aws)
    verify = options.verify
    if verify is None:  # rustls reads the last one, botocore does not: tell both
        verify = bundle or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE") or True
    if isinstance(verify, str):
        _refuse_unreadable(verify)
    return S3Settings(
        bucket=bucket,
        endpoint=endpoint.rstrip("/"),
        region=_DEFAULT_REGION if region == _ANY_REGION else region,
        path_style=path_style or "." in bucket,
        credentials=credentials,
        verify=verify,
        proxy=_proxy(options, endpoint),
        sends_checksums=checksums != "when_required",
        options=options,
    )


_STYLES: Final = {"path": True, "virtual": False}


@cache
def _share_models(paths: Any) -> Any:
    """Return what reads botocore's models from some paths: each session of its own would read and keep them again."""
    from botocore.loaders import create_loader  # noqa: PLC0415

    return create_loader(paths)


def _credentials(session: Any, options: S3Options) -> Credentials:
    """Return what gives the keys of the options, or those that botocore finds: it renews them itself."""
    import botocore.credentials  # noqa: PLC0415
    import botocore.exceptions  # noqa: PLC0415

    if options.has_keys:
        found = botocore.credentials.Credentials(options.key, options.secret, options.token)
    else:
        found = session.get_credentials()
    if found is None:
        raise botocore.exceptions.NoCredentialsError

    def renew() -> Mapping[str, Any]:
        keys = found.get_frozen_credentials()
        named = {"access_key_id": keys.access_key, "secret_access_key": keys.secret_key, "token": keys.token}
        _refuse_blank_characters(named)
        return {**named, "expires_at": datetime.now(UTC) + _RENEWED}

    renew()
    return renew


def _proxy(options: S3Options, endpoint: str) -> str | None:
    """Return the proxy for a server: of the options, else of the environment unless ``no_proxy`` names the server."""
    from urllib.request import proxy_bypass  # noqa: PLC0415

    from botocore.utils import get_environ_proxies  # noqa: PLC0415

    if options.proxy is not None:
        return options.proxy or None
    if proxy_bypass(urlsplit(endpoint).hostname or ""):  # botocore compares ``[::1]:9000``, which nobody writes
        return None
    proxies = get_environ_proxies(endpoint)
    proxy: str | None = proxies.get(urlsplit(endpoint).scheme) or proxies.get("all")
    if proxy is None or "://" in proxy:
        return proxy
    return f"http://{proxy}"


# -- what cannot be --------------------------------------------------------------------------------


def _refuse_endpoint(endpoint: str) -> None:
    """Raise ``InvalidInput`` for what is no URL of a server: obstore would end in a panic."""
    try:
        parts = urlsplit(endpoint)
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or re.search(r"[\s<>\"{}|\\^`]", endpoint):
        raise InvalidInput(
            f"endpoint {endpoint!r} is no URL of a server: write https://host or http://host:port. It comes from the "
            "storage option endpoint_url, from AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, or from a profile"
        )


def _refuse_blank_characters(keys: Mapping[str, str | None]) -> None:
    """Raise ``InvalidInput`` for a key with a blank or a line's end, which no store gives out: obstore would panic."""
    for name, value in keys.items():
        if value and re.search(r"[\s\x00-\x1f\x7f]", value):
            raise InvalidInput(f"{name} has a blank or a line's end in it: copy it again, without what surrounds it")


def _refuse_other_servers(config: Any, profile: str) -> None:
    """Refuse settings that move a bucket to servers which not all clients can be told of."""
    moved = []
    for name in ("use_dualstack_endpoint", "use_fips_endpoint"):
        if getattr(config, name, None):
            moved.append(name)
    if config.s3 and config.s3.get("use_accelerate_endpoint"):
        moved.append("s3.use_accelerate_endpoint")
    if moved:
        raise InvalidInput(
            f"the setting {moved[0]} (of the profile {profile!r}, or of the environment) is not supported here: set "
            "the storage option endpoint_url to the server that it means"
        )


def _refuse_unreadable(bundle: str) -> None:
    """Raise ``InvalidInput`` for a file of certificates that cannot be read."""
    try:
        Path(bundle).open("rb").close()
    except OSError as error:
        raise InvalidInput(
            f"the file of certificates {bundle!r} cannot be read: {error.strerror}. It comes from the storage option "
            "client_kwargs.verify, from AWS_CA_BUNDLE, REQUESTS_CA_BUNDLE or SSL_CERT_FILE, or from ca_bundle of a "
            "profile"
        ) from None


@contextmanager
def _explain_errors(options: S3Options) -> Iterator[None]:
    """Say of botocore's errors about files and profiles which profile they mean, and who names it."""
    import botocore.exceptions as theirs  # noqa: PLC0415

    profile = options.profile or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    if options.profile:
        by = "the storage option profile"
    else:
        by = "AWS_PROFILE"
    try:
        yield
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput(f"the settings of AWS cannot be used: {error}") from None
    except theirs.ProfileNotFound:
        raise InvalidInput(f"there is no profile {profile!r}, which {by} names, in the files of AWS") from None
    except theirs.ConfigParseError as error:
        raise InvalidInput(f"a file of AWS settings cannot be read: {error}") from None
    except (theirs.InvalidConfigError, theirs.InfiniteLoopConfigError, theirs.PartialCredentialsError) as error:
        raise InvalidInput(f"the profile {profile!r} cannot be resolved: {error}") from None
