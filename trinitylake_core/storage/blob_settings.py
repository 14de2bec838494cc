"""What obstore is told for ``gs://`` and ``az://``: storage options in the words of gcsfs and adlfs, or its own.

Without credentials among the options obstore looks for them where the tools of these clouds do: environment, service
account and workload identity files, the identity of the machine or pod; it renews them itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from trinitylake_core.errors import InvalidInput, InvalidLocation
from trinitylake_core.storage.obstore_client import MakeStore, client_options, no_retries
from trinitylake_core.storage.retry import take_flag, take_number
from trinitylake_core.storage.roots import BLOBS

AZURE: Final = frozenset(scheme for scheme, kind in BLOBS.items() if kind == "az")
GOOGLE: Final = frozenset(scheme for scheme, kind in BLOBS.items() if kind == "gs")

_AZURE_NAMES: Final = {
    "account_name": "account_name",
    "account_key": "account_key",
    "sas_token": "sas_key",
    "tenant_id": "tenant_id",
    "client_id": "client_id",
    "client_secret": "client_secret",
    "endpoint_url": "endpoint",
    "authority_host": "authority_host",
    "federated_token_file": "federated_token_file",
    "msi_endpoint": "msi_endpoint",
    "object_id": "object_id",
    "msi_resource_id": "msi_resource_id",
    "use_azure_cli": "use_azure_cli",
}
_GOOGLE_NAMES: Final = {
    "service_account": "service_account",
    "service_account_key": "service_account_key",
    "application_credentials": "application_credentials",
    "bearer_token": "bearer_token",
    "endpoint_url": "base_url",
}
_IN_CONNECTION_STRING: Final = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "sharedaccesssignature": "sas_key",
    "blobendpoint": "endpoint",
}


def make_store_of(scheme: str, authority: str, options: dict[str, Any]) -> tuple[str, MakeStore]:
    """Return the name of bucket or container, and what makes obstore stores for it. No request.

    Raises ``InvalidInput`` for an unknown or malformed option, ``InvalidLocation`` for an invalid account.
    """
    connect = take_number(options, "connect_timeout", default=5.0, least=0.001)
    read = take_number(options, "read_timeout", default=30.0, least=0.001)
    container, config = _azure(authority, options) if scheme in AZURE else (authority, _google(options))
    if options:
        raise InvalidInput(f"storage option {', '.join(sorted(options))} is not known for {scheme}://")
    http = str(config.get("endpoint") or config.get("base_url") or "").startswith("http://")

    def make(seconds: float) -> Any:
        from obstore.store import AzureStore, GCSStore  # noqa: PLC0415 - local lakehouses need not pay for it

        arguments: dict[str, Any] = {
            "config": config,
            "client_options": client_options(seconds, connect, read, http=http),
            "retry_config": no_retries(),
        }
        return (AzureStore if scheme in AZURE else GCSStore)(container, **arguments)

    return container, make


def _azure(authority: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return container and configuration; ``abfss://container@account.dfs.core.windows.net`` names the account."""
    config = _connection_string(options.pop("connection_string", None))
    container, at, host = authority.partition("@")
    if at:
        account, dot, domain = host.partition(".dfs.")
        if not dot:
            raise InvalidLocation(f"{authority!r} names no account: write container@account.dfs.core.windows.net")
        config |= {"account_name": account, "endpoint": f"https://{account}.blob.{domain}"}
    return container, config | _renamed(options, _AZURE_NAMES)


def _google(options: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration; ``token`` is what gcsfs knows: a file, its content, ``anon`` or ``google_default``."""
    token = options.pop("token", None)
    options.pop("project", None)  # nothing is created that would belong to one
    config = _renamed(options, _GOOGLE_NAMES)
    if token == "anon":  # noqa: S105 - a word of gcsfs
        config["skip_signature"] = True
    elif isinstance(token, Mapping):
        config["service_account_key"] = json.dumps(dict(token))
    elif token not in {None, "google_default", "cloud"}:
        config["application_credentials"] = str(token)
    return config


def _renamed(options: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Take the options that have a name of obstore's out of ``options``."""
    config = {names[name]: options.pop(name) for name in list(options) if name in names}
    config = {name: value for name, value in config.items() if value is not None}
    if take_flag(options, "anon", default=False):
        config["skip_signature"] = True
    return config


def _connection_string(text: Any) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for part in str(text or "").split(";"):
        name, _, value = part.partition("=")
        if value and name.strip().lower() in _IN_CONNECTION_STRING:
            config[_IN_CONNECTION_STRING[name.strip().lower()]] = value
    return config
