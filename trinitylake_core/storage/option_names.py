"""The names of storage options by the kind of storage, for options that are meant for several of them.

An option that is given for one lakehouse must be known to its storage. The environment is said once for all: there an
option counts for the kinds that know it, and one that no kind knows is a mistake for each.
"""

from __future__ import annotations

from typing import Final

_OBJECT_STORES: Final = frozenset(
    {"request_timeout", "hedged_share", "connect_timeout", "read_timeout", "endpoint_url", "anon"}
)
_OF_KIND: Final = {
    "file": frozenset({"durable", "sync"}),
    "s3": _OBJECT_STORES
    | {"key", "secret", "token", "username", "password", "profile", "region", "region_name", "path_style"}
    | {"requester_pays", "s3_additional_kwargs", "client_kwargs", "config_kwargs"},
    "az": _OBJECT_STORES
    | {"account_name", "account_key", "sas_token", "connection_string", "tenant_id", "client_id", "client_secret"}
    | {"authority_host", "federated_token_file", "msi_endpoint", "object_id", "msi_resource_id", "use_azure_cli"},
    "gs": _OBJECT_STORES
    | {"token", "project", "service_account", "service_account_key", "application_credentials", "bearer_token"},
}


def is_only_for_others(name: str, kind: str) -> bool:
    """Whether an option is known to other kinds of storages (``file``, ``s3``, ``az``, ``gs``), and not to this one."""
    if name in _OF_KIND.get(kind, frozenset()):
        return False
    return any(name in names for names in _OF_KIND.values())
