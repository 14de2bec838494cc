"""Storage options from the command line and the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trinitylake_core.errors import InvalidInput

VARIABLE: Final = "TRINITYLAKE_STORAGE_OPTIONS"
_FROM_ENVIRONMENT: Final = "env:"


def storage_options(given: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the storage options of a command.

    Args:
        given: texts ``KEY=VALUE``. The value ``env:NAME`` is that of an environment variable, and one that
            begins with ``{`` is JSON.
        environment: where the variable ``TRINITYLAKE_STORAGE_OPTIONS``, a JSON object, is looked up; what
            is given wins.

    Raises:
        InvalidInput: a text or a variable is malformed; the message shows no value.
    """
    found = _from_variable((os.environ if environment is None else environment).get(VARIABLE))
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidInput("--storage-option takes KEY=VALUE")
        found[key] = _value(key, value)
    return found


def _from_variable(text: str | None) -> dict[str, Any]:
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
