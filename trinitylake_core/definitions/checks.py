"""Checks of what a caller puts into a definition."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from typing import Any

from trinitylake_core.errors import InvalidDefinition

UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1

CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
"""Control characters other than white space."""


def checked_text(what: str, value: object, *, empty: bool = False) -> str:
    """Return ``value`` if it is text that UTF-8 can hold, and not empty unless that is allowed.

    Raises ``InvalidDefinition``: it is not; the message begins with ``what``.
    """
    if not isinstance(value, str):
        raise InvalidDefinition(f"{what} must be text, not {type(value).__name__}")
    if not value and not empty:
        raise InvalidDefinition(f"{what} must not be empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidDefinition(f"{what} holds a lone surrogate, which UTF-8 cannot: {value!r}") from error
    return value


def checked_int(what: str, value: object, *, low: int, high: int) -> int:
    """Return ``value`` if it is a whole number from ``low`` to ``high``, both included.

    Raises ``InvalidDefinition``: it is not; the message begins with ``what``.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidDefinition(f"{what} must be a whole number, not {type(value).__name__}")
    if not low <= value <= high:
        raise InvalidDefinition(f"{what} must be between {low} and {high}, not {value}")
    return value


def checked_choice(what: str, value: object, choices: Collection[str]) -> str:
    """Return ``value`` if it is one of ``choices``.

    Raises ``InvalidDefinition``: it is not; the message begins with ``what`` and lists the choices.
    """
    if isinstance(value, str) and value in choices:
        return value
    raise InvalidDefinition(f"{what} must be one of {', '.join(choices)}, not {value!r}")


def checked_properties(what: str, properties: Mapping[str, str] | None) -> dict[str, str]:
    """Return ``properties`` as a dictionary of text by text; ``None`` is empty.

    Raises ``InvalidDefinition``: it is not a mapping, or a name or a value is not text.
    """
    if properties is None:
        return {}
    if not isinstance(properties, Mapping):
        raise InvalidDefinition(f"{what} must be a mapping, not {type(properties).__name__}")
    checked = {}
    for name, value in properties.items():
        checked_text(f"a name in {what}", name)
        checked[name] = checked_text(f"{what}[{name!r}]", value, empty=True)
    return checked


def merge_properties(what: str, into: MutableMapping[str, str], changes: Mapping[str, str | None] | None) -> None:
    """Merge ``changes`` into the properties ``into``; the value ``None`` removes a property.

    Removing a property that is not there is no error: the caller wants it gone, and it is. Raises
    ``InvalidDefinition``: a name or a value is not text; ``into`` is unchanged then.
    """
    if changes is None:
        return
    if not isinstance(changes, Mapping):
        raise InvalidDefinition(f"{what} must be a mapping, not {type(changes).__name__}")
    removed = []
    given = {}
    for name, value in changes.items():
        if value is None:
            removed.append(checked_text(f"a name in {what}", name))
        else:
            given[name] = value
    checked = checked_properties(what, given)
    for name in removed:
        into.pop(name, None)
    into.update(checked)


def refuse_unknown(given: Iterable[str], known: Any) -> None:
    """Raise ``TypeError`` for a keyword that the ``TypedDict`` of a function lacks, as Python does."""
    for name in given:
        if name not in known.__optional_keys__:
            raise TypeError(
                f"got an unexpected keyword argument {name!r}; known are {', '.join(known.__annotations__)}"
            )
