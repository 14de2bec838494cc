"""The storage options of S3: what they are called, and what each may be. ``docs/storage.md`` has the table.

Names and nesting are those of s3fs and botocore, so that options of other programs can be used as they are. An unknown
or malformed option is an error: none is left out silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from trinitylake_core.errors import InvalidInput
from trinitylake_core.storage.port import Options
from trinitylake_core.storage.requests import Untaken, take_flag, take_number

_OF_FILES_AND_CACHES: Final = (
    "default_block_size",
    "default_fill_cache",
    "default_cache_type",
    "fixed_upload_size",
    "use_listings_cache",
    "skip_instance_cache",
)
"""Arguments of s3fs that change nothing about single requests."""
_HANDLED_HERE: Final = ("max_pool_connections", "retries", "tcp_keepalive")
"""Arguments of botocore's configuration that this library decides itself."""
_ENCRYPTION: Final = ("ServerSideEncryption", "SSEKMSKeyId", "BucketKeyEnabled")
_UNSIGNED: Final = "unsigned"
_STYLES: Final = ("path", "virtual", "auto")
_CHECKSUMS: Final = ("when_supported", "when_required")


@dataclass(frozen=True, slots=True)
class S3Options:
    """What the caller said; ``None`` where environment, profile or a default decide.

    Attributes:
        endpoint: the URL of the server, without the bucket.
        region: the region of the bucket.
        path_style: whether the bucket stands in the path (``endpoint/bucket/key``) or before the host.
        key, secret, token: credentials.
        profile: a profile of ``~/.aws/``.
        anonymous: whether requests are not signed.
        verify: the file of an authority, or whether certificates are checked at all.
        proxy: the URL of a proxy; "" for none, whatever the environment says.
        checksums: ``when_supported`` or ``when_required``.
        encryption: headers of server-side encryption, by botocore's names.
        connect_seconds, read_seconds: timeouts.
        requester_pays: whether the requester pays.
    """

    endpoint: str | None
    region: str | None
    path_style: bool | None
    key: str | None
    secret: str | None
    token: str | None
    profile: str | None
    anonymous: bool
    verify: str | bool | None
    proxy: str | None
    checksums: str | None
    encryption: tuple[tuple[str, Any], ...]
    connect_seconds: float
    read_seconds: float
    requester_pays: bool

    @property
    def has_keys(self) -> bool:
        """Whether they hold credentials."""
        return bool(self.key and self.secret)

    @classmethod
    def take(cls, given: Options) -> Self:
        """Return the options of ``given``. No request. Raises ``InvalidInput`` for an unknown or malformed one."""
        options = dict(given)
        for name in _OF_FILES_AND_CACHES:
            options.pop(name, None)
        client = _take_mapping(options, "client_kwargs")
        config = _take_mapping(options, "config_kwargs")
        more = _take_mapping(options, "s3_additional_kwargs")
        for name in _HANDLED_HERE:
            config.pop(name, None)
        signature = config.pop("signature_version", None)
        taken = cls(
            endpoint=_first(options, client, "endpoint_url"),
            region=_take_region(options, client, config),
            path_style=_take_path_style(options, config),
            key=_first(
                options,
                client,
                "key",
                "username",
                "aws_access_key_id",
            ),
            secret=_first(
                options,
                client,
                "secret",
                "password",
                "aws_secret_access_key",
            ),
            token=_first(options, client, "token", "aws_session_token"),
            profile=_text(options.pop("profile", None)),
            anonymous=take_flag(options, "anon", default=False) or str(signature).lower() == _UNSIGNED,
            verify=client.pop("verify", None),
            proxy=_take_proxy(config),
            checksums=_take_word(config, "request_checksum_calculation", _CHECKSUMS),
            encryption=tuple((name, more.pop(name)) for name in _ENCRYPTION if name in more),
            connect_seconds=_take_seconds(options, config, "connect_timeout", 5.0),
            read_seconds=_take_seconds(options, config, "read_timeout", 30.0),
            requester_pays=take_flag(options, "requester_pays", default=False),
        )
        unknown = [
            *options,
            *(f"client_kwargs.{name}" for name in client),
            *(f"config_kwargs.{name}" for name in config),
            *(f"s3_additional_kwargs.{name}" for name in more),
        ]
        if unknown:
            raise InvalidInput(f"storage option {', '.join(sorted(unknown))} is not known for s3://")
        return taken


def _take_mapping(options: Untaken, name: str) -> Untaken:
    value = options.pop(name, None) or {}
    if not isinstance(value, Mapping):
        raise InvalidInput(f"storage option {name} must be a mapping, not {type(value).__name__}")
    return dict(value)


def _text(value: Any) -> str | None:
    if value is None or value == "":
        return None
    return str(value)


def _first(options: Untaken, client: Untaken, *names: str) -> str | None:
    """Take an option by any of its names; the first one that is set counts."""
    found = None
    for name in names:
        value = _text(options.pop(name, None) or client.pop(name, None))
        found = found or value
    return found


def _take_region(options: Untaken, client: Untaken, config: Untaken) -> str | None:
    found = None
    for place, name in (
        (options, "region"),
        (options, "region_name"),
        (client, "region_name"),
        (config, "region_name"),
    ):
        value = _text(place.pop(name, None))
        found = found or value
    return found


def _take_path_style(options: Untaken, config: Untaken) -> bool | None:
    nested = config.pop("s3", None) or {}
    if not isinstance(nested, Mapping):
        raise InvalidInput(f"storage option config_kwargs.s3 must be a mapping, not {type(nested).__name__}")
    style = _take_word(rest := dict(nested), "addressing_style", _STYLES)
    if rest:
        names = ", ".join(f"config_kwargs.s3.{name}" for name in sorted(rest))
        raise InvalidInput(f"storage option {names} is not known for s3://")
    if style in {"path", "virtual"}:
        options.pop("path_style", None)
        return style == "path"
    if "path_style" in options:
        return take_flag(options, "path_style", default=False)
    return None


def _take_word(options: Untaken, name: str, words: tuple[str, ...]) -> str | None:
    value = _text(options.pop(name, None))
    if value is not None and value not in words:
        raise InvalidInput(f"storage option {name} must be one of {', '.join(words)}")
    return value


def _take_proxy(config: Untaken) -> str | None:
    """Return the proxy of botocore's option ``proxies``; "" where it is given and names none."""
    if "proxies" not in config:
        return None
    proxies = config.pop("proxies") or {}
    if not isinstance(proxies, Mapping):
        raise InvalidInput(f"storage option config_kwargs.proxies must be a mapping, not {type(proxies).__name__}")
    return str(proxies.get("https") or proxies.get("http") or "")


def _take_seconds(
    options: Untaken,
    config: Untaken,
    name: str,
    default: float,
) -> float:
    nested = take_number(config, name, default=0.0, least=0.0)
    return take_number(options, name, default=nested or default, least=0.001)
