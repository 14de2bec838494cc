"""What obstore is told for ``s3://``: the arguments of s3fs in its words, credentials that are renewed.

Credentials, region and endpoint are looked for where botocore looks for them, in the same order: options, environment,
profile, role of the machine, task or pod. botocore itself is asked only where options and environment do not say it
all, since importing it takes longer than most operations.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from trinitylake_core.errors import InvalidInput
from trinitylake_core.storage.obstore_client import client_options, no_retries

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

Keys = tuple[str, str, str | None]


@dataclass(frozen=True)
class S3Settings:
    """Everything an obstore store needs to know; ``credentials`` is ``None`` for requests without a signature."""

    bucket: str
    endpoint: str
    region: str
    path_style: bool
    credentials: Callable[[], Mapping[str, Any]] | None = field(repr=False)
    connect_seconds: float
    read_seconds: float
    more: Mapping[str, Any] = field(repr=False)
    connection: Mapping[str, Any] = field(repr=False)

    def store(self, seconds: float) -> Any:
        """Return an obstore store whose requests take so many seconds at the most. No request."""
        from obstore.store import S3Store  # noqa: PLC0415 - local lakehouses need not pay for it

        endpoint = self.endpoint
        if not self.path_style:
            scheme, _, host = endpoint.partition("://")
            endpoint = f"{scheme}://{self.bucket}.{host}"
        http = client_options(seconds, self.connect_seconds, self.read_seconds, http=endpoint.startswith("http://"))
        config: dict[str, Any] = {
            **self.more,
            "endpoint": endpoint,
            "aws_endpoint_url_s3": endpoint,  # else the environment's would count for more than the option
            "region": self.region,
            "virtual_hosted_style_request": not self.path_style,
            "skip_signature": self.credentials is None,
            "conditional_put": "etag",
        }
        arguments: dict[str, Any] = {
            "config": config,
            "client_options": {**http, **self.connection},
            "retry_config": no_retries(),
            "credential_provider": self.credentials,
        }
        return S3Store(self.bucket, **arguments)


def environment() -> tuple[tuple[str, str], ...]:
    """Return what the settings may depend on beside the options."""
    return tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)))


def refuse_unknown(arguments: Mapping[str, Any]) -> None:
    """Raise ``InvalidInput`` for what obstore cannot do: nothing that somebody asked for is left out silently."""
    client, config = arguments.get("client_kwargs") or {}, arguments.get("config_kwargs") or {}
    unknown = [name for name in arguments if name not in _ARGUMENTS | _OF_FILES_AND_CACHES]
    unknown += [f"client_kwargs.{name}" for name in client if name not in _CLIENT]
    unknown += [f"config_kwargs.{name}" for name in config if name not in _CONFIG]
    unknown += [f"config_kwargs.s3.{name}" for name in config.get("s3") or {} if name != "addressing_style"]
    more = arguments.get("s3_additional_kwargs") or {}
    unknown += [f"s3_additional_kwargs.{name}" for name in more if name not in _ENCRYPTION]
    if unknown:
        raise InvalidInput(
            f"storage option {', '.join(sorted(unknown))} is not known here; if s3fs knows it, add the storage option "
            "client: s3fs"
        )


def settings_of(bucket: str, arguments: Mapping[str, Any]) -> S3Settings:
    """Return the settings for the arguments that s3fs would get. May read files; may ask a metadata service.

    Raises what botocore raises when a profile or credentials are missing.
    """
    client, config = arguments["client_kwargs"], arguments["config_kwargs"]
    anonymous = bool(arguments.get("anon")) or config.get("signature_version") == "unsigned"
    keys = None if anonymous else _given_keys(arguments, client)
    endpoint = arguments.get("endpoint_url") or client.get("endpoint_url")
    endpoint = endpoint or next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)
    region = client.get("region_name") or os.environ.get("AWS_DEFAULT_REGION")
    credentials: Any = (lambda: _as_obstore(keys, None)) if keys else None
    if _needs_botocore(arguments, region, endpoint) or not (keys or anonymous):
        found_endpoint, region, found = _from_botocore(arguments, client, anonymous=anonymous)
        endpoint = endpoint or found_endpoint
        credentials = credentials or found
    return S3Settings(
        bucket=bucket,
        endpoint=(endpoint or f"https://s3.{region}.amazonaws.com").rstrip("/"),
        region=str(region),
        path_style=(config.get("s3") or {}).get("addressing_style") == "path" or "." in bucket,
        credentials=None if anonymous else credentials,
        connect_seconds=float(config["connect_timeout"]),
        read_seconds=float(config["read_timeout"]),
        more=_more(arguments),
        connection=_connection(client, config),
    )


def _given_keys(arguments: Mapping[str, Any], client: Mapping[str, Any]) -> Keys | None:
    """Return the keys of the options, else those of the environment, unless a profile is to say them."""
    key = arguments.get("key") or arguments.get("username") or client.get("aws_access_key_id")
    secret = arguments.get("secret") or arguments.get("password") or client.get("aws_secret_access_key")
    if key and secret:
        return str(key), str(secret), arguments.get("token") or client.get("aws_session_token")
    if arguments.get("profile"):
        return None
    key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    token = os.environ.get("AWS_SESSION_TOKEN") or os.environ.get("AWS_SECURITY_TOKEN")
    return (key, secret, token) if key and secret else None


def _needs_botocore(arguments: Mapping[str, Any], region: str | None, endpoint: str | None) -> bool:
    """Return whether a profile or a partition has a say in region or endpoint."""
    if not region or arguments.get("profile"):
        return True
    file = Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
    return endpoint is None and (file.exists() or region.startswith(("cn-", "us-iso", "eu-iso")))


def _from_botocore(
    arguments: Mapping[str, Any], client: Mapping[str, Any], *, anonymous: bool
) -> tuple[str, str | None, Callable[[], Mapping[str, Any]] | None]:
    """Return endpoint, region and credentials as botocore finds them."""
    import botocore.config  # noqa: PLC0415 - a fifth of a second
    import botocore.exceptions  # noqa: PLC0415
    import botocore.session  # noqa: PLC0415

    session = botocore.session.Session(profile=arguments.get("profile"))
    quiet = botocore.config.Config(signature_version=botocore.UNSIGNED)
    names = {name: client[name] for name in ("region_name", "endpoint_url") if name in client}
    meta = session.create_client("s3", config=quiet, **names).meta
    region = meta.region_name if meta.region_name != "aws-global" else "us-east-1"
    if anonymous or _given_keys(arguments, client):
        return meta.endpoint_url, region, None
    found = session.get_credentials()
    if found is None:
        raise botocore.exceptions.NoCredentialsError
    return meta.endpoint_url, region, _Renewed(found)


class _Renewed:
    """Credentials of botocore, which renews them itself when they are about to end."""

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials

    def __call__(self) -> Mapping[str, Any]:
        frozen = self._credentials.get_frozen_credentials()
        return _as_obstore((frozen.access_key, frozen.secret_key, frozen.token), datetime.now(UTC) + _RENEWED)


def _as_obstore(keys: Keys, until: datetime | None) -> Mapping[str, Any]:
    return {"access_key_id": keys[0], "secret_access_key": keys[1], "token": keys[2], "expires_at": until}


def _more(arguments: Mapping[str, Any]) -> dict[str, Any]:
    given = arguments.get("s3_additional_kwargs") or {}
    more = {_ENCRYPTION[name]: value for name, value in given.items()}
    if arguments.get("requester_pays"):
        more["request_payer"] = True
    return more


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
