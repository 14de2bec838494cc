"""Storage options from the command line and the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trinitylake_core.errors import InvalidInput

VARIABLE: Final = "TRINITYLAKE_STORAGE_OPTIONS"
_OF_OBJECT_STORES: Final = frozenset(
    {"anon", "client_kwargs", "config_kwargs", "connect_timeout", "endpoint_url", "key", "path_style", "profile"}
    | {"read_timeout", "region", "region_name", "secret", "token", "use_ssl"}
)
_FROM_ENVIRONMENT: Final = "env:"


def storage_options(given: Sequence[str]) -> dict[str, Any]:
    """Return the storage options on a command line, texts ``KEY=VALUE``.

    The value ``env:NAME`` is that of an environment variable, and one that begins with ``{`` is JSON.

    Raises:
        InvalidInput: a text is malformed; the message shows no value.
    """
    found: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidInput("--storage-option takes KEY=VALUE")
        found[key] = _value(key, value)
    return found


def applicable(options: Mapping[str, Any], uri: str) -> dict[str, Any]:
    """Return the options of the environment that are for a URI: a local path takes none of an object store's."""
    local = uri.partition("://")[0].lower() == "file" or "://" not in uri
    return {name: value for name, value in options.items() if not (local and name in _OF_OBJECT_STORES)}


def environment_options(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the storage options in ``TRINITYLAKE_STORAGE_OPTIONS``, a JSON object. Raises ``InvalidInput``."""
    text = environment.get(VARIABLE)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidInput(f"the environment variable {VARIABLE} must hold a JSON object")
    return found


def _value(key: str, value: str) -> Any:
    if value.startswith(_FROM_ENVIRONMENT):
        name = value.removeprefix(_FROM_ENVIRONMENT)
        if name not in os.environ:
            raise InvalidInput(f"storage option {key}: there is no environment variable {name!r}")
        return os.environ[name]
    if value.startswith("{"):
        try:
            return json.loads(value)
        except ValueError:
            raise InvalidInput(f"storage option {key} is not valid JSON") from None
    return value
