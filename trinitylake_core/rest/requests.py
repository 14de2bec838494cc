"""One request of a client, and what every handler needs of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, TypeAdapter
from pyiceberg.typedef import Identifier

from trinitylake_core.iceberg.border import request_of
from trinitylake_core.rest.principals import Principal
from trinitylake_core.rest.problems import Problem
from trinitylake_core.rest.warehouses import Warehouse

SEPARATOR: Final = "\x1f"
"""Between the levels of a namespace in a path or a query."""
_LARGEST_PAGE: Final = 10_000
_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a handler answers: a JSON value, its text, or nothing; the status; further headers."""

    value: Any = None
    status: int = 200
    headers: Mapping[str, str] | None = None


NOTHING: Final = Reply(status=204)


@dataclass(frozen=True, slots=True)
class Request:
    """A request whose principal is known.

    Attributes:
        path: the parameters of the path, decoded.
        query: the parameters of the query.
        headers: the headers, by names in lower case.
    """

    warehouse: Warehouse
    principal: Principal
    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """Return the body as an object. Raises ``Problem`` (400)."""
        try:
            found = json.loads(self.body or b"{}")
        except (ValueError, RecursionError) as error:
            raise Problem(400, "BadRequestException", f"the body is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise Problem(400, "BadRequestException", "the body is not a JSON object")
        return found

    def parsed(self, model: type[_Model], **defaults: Any) -> _Model:
        """Return the body as one of PyIceberg's models. Raises ``BadRequestError``, ``Problem`` (400)."""
        return request_of(model, {**defaults, **self.json()})

    @property
    def namespace(self) -> Identifier:
        """The namespace in the path."""
        return levels(self.path["namespace"])

    @property
    def identifier(self) -> Identifier:
        """The table or view in the path."""
        return (*self.namespace, self.path.get("table") or self.path["view"])

    def require(self, right: str, identifier: Sequence[str]) -> None:
        """Refuse a request whose principal does not have a right on an object. Raises ``Problem`` (403)."""
        self.principal.require(right, ".".join(identifier))

    def page(self, names: Sequence[Identifier]) -> tuple[Sequence[Identifier], str | None]:
        """Return the part of sorted names that the request wants, and the token of the next one.

        Without ``pageToken`` all of them. Raises ``Problem`` (400).
        """
        token, size = self.query.get("pageToken"), self.query.get("pageSize")
        if token is None and size is None:
            return names, None
        if size is not None and not (size.isascii() and size.isdigit() and int(size[:9]) > 0):
            raise Problem(400, "BadRequestException", "pageSize must be a positive number")
        after = levels(token) if token else ()
        rest = [each for each in names if each > after]
        found = rest[: min(int(size[:9]) if size else _LARGEST_PAGE, _LARGEST_PAGE)]
        return found, SEPARATOR.join(found[-1]) if len(found) < len(rest) else None


_STRINGS: Final = TypeAdapter(dict[str, str])
_NAMES: Final = TypeAdapter(list[str])


def strings(value: Any) -> dict[str, str]:
    """Return a JSON value as an object of strings. Raises pydantic's ``ValidationError``."""
    return _STRINGS.validate_python(value or {})


def names(value: Any) -> list[str]:
    """Return a JSON value as a list of strings. Raises pydantic's ``ValidationError``."""
    return _NAMES.validate_python(value or [])


def levels(text: str) -> Identifier:
    """Return the levels of a namespace in a path, a query or a token."""
    return namespace_of(text.split(SEPARATOR))


def namespace_of(found: Sequence[str]) -> Identifier:
    """Return the levels of a namespace. Raises ``Problem`` (400) where one level cannot be distinguished from two."""
    if not found:
        raise Problem(400, "BadRequestException", "a namespace needs at least one level")
    for level in found:
        if not level.strip() or "." in level:
            text = f"{level!r} cannot be a level of a namespace: it is empty, or has a dot, which joins levels here"
            raise Problem(400, "BadRequestException", text)
    return tuple(found)
