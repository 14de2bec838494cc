"""One request of a client, and what every handler needs of it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pydantic import BaseModel, TypeAdapter
from pyiceberg.typedef import Identifier

from trinitylake_core.iceberg.border import request_of
from trinitylake_core.iceberg.names import CatalogName
from trinitylake_core.rest.audit import Asked
from trinitylake_core.rest.json_bounds import parse_object
from trinitylake_core.rest.principals import MANAGE, READ, Principal, is_addressable, name_for_rights
from trinitylake_core.rest.problems import Problem
from trinitylake_core.rest.warehouses import Warehouse

SEPARATOR: Final = "\x1f"
"""Between the levels of a namespace in a path or a query."""
_LARGEST_PAGE: Final = 10_000
_LARGE_BODY_BYTES: Final = 64 << 10
_PARSING_LARGE: Final = threading.Lock()
"""Held while a large body is parsed: parsers let no other thread run, and two of them nobody at all."""
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
        asked: what the audit log says of it.
    """

    warehouse: Warehouse
    principal: Principal
    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    asked: Asked = field(default_factory=Asked)

    def json(self) -> dict[str, Any]:
        """Return the body as an object. Raises ``Problem`` (400)."""
        if len(self.body) < _LARGE_BODY_BYTES:
            return parse_object(self.body)
        with _PARSING_LARGE:
            return parse_object(self.body)

    def read_body(self, model: type[_Model], **defaults: Any) -> _Model:
        """Return the body as one of PyIceberg's models. Raises ``BadRequestError``, ``Problem`` (400)."""
        fields = defaults | self.json()
        if len(self.body) < _LARGE_BODY_BYTES:
            return request_of(model, fields)
        with _PARSING_LARGE:
            return request_of(model, fields)

    @property
    def namespace(self) -> Identifier:
        """The namespace in the path. Raises ``Problem`` (400, 404)."""
        return levels(self.path["namespace"])

    @property
    def identifier(self) -> Identifier:
        """The table or view in the path. Raises ``Problem`` (400, 404)."""
        view = self.path.get("view")
        name = addressable(view or self.path["table"])
        namespace = levels(self.path["namespace"], "View" if view else "Table")
        return (*namespace, name)

    def require(self, right: str, identifier: Sequence[str]) -> None:
        """Refuse a request whose principal does not have a right on an object.

        The names are those that the handler acts on: what is checked here is the text that is used afterwards.

        Raises ``Problem``: a name that no path can hold (400), no such right (403).
        """
        for name in identifier:
            addressable(name)
        full_name = name_for_rights(identifier)
        self.asked.note_object(right, full_name)
        self.principal.require(right, full_name)

    def require_owner(self, name: CatalogName) -> None:
        """Refuse a request that takes what another object has or had, unless its principal may manage that.

        Raises ``Problem`` (403), which names what the principal may read.
        """
        full_name = name_for_rights(name.identifier)
        if not self.principal.may(READ, full_name):
            text = "what is asked for has, or had last, another owner; older versions may still need its files"
            raise Problem(403, "ForbiddenException", text)
        self.principal.require(MANAGE, full_name)

    def page(self, names: Sequence[Identifier]) -> tuple[Sequence[Identifier], str | None]:
        """Return the part of sorted names that the request wants, and the token of the next one.

        Without ``pageToken`` all of them. Raises ``Problem`` (400).
        """
        token = self.query.get("pageToken")
        size = self.query.get("pageSize")
        if token is None and size is None:
            return names, None
        most = _LARGEST_PAGE if size is None else min(_positive(size), _LARGEST_PAGE)
        after = tuple(token.split(SEPARATOR)) if token else ()
        rest = [each for each in names if each > after]
        found = rest[:most]
        if len(found) == len(rest):
            return found, None
        return found, SEPARATOR.join(found[-1])


_STRINGS: Final = TypeAdapter(dict[str, str])
_NAMES: Final = TypeAdapter(list[str])


def strings(value: Any) -> dict[str, str]:
    """Return a JSON value as an object of strings. Raises pydantic's ``ValidationError``."""
    return _STRINGS.validate_python(value or {})


def names(value: Any) -> list[str]:
    """Return a JSON value as a list of strings. Raises pydantic's ``ValidationError``."""
    return _NAMES.validate_python(value or [])


def levels(text: str, sought: str = "Namespace") -> Identifier:
    """Return the levels of a namespace in a path or a query, in which a client looks for something.

    Iceberg asks for ``a``, ``b.c``, ``files`` first where a person asks for the files of the table ``b.c``, and goes on
    only if there is no such table.

    Raises ``Problem``: a name that no path can hold (400), a level with a dot, which no namespace here has (404).
    """
    found = text.split(SEPARATOR)
    for level in found:
        if "." in addressable(level):
            why = f"no namespace has a level {level!r} here: a dot joins levels"
            raise Problem(404, f"NoSuch{sought}Exception", why)
    return namespace_of(found)


def namespace_of(found: Sequence[str]) -> Identifier:
    """Return the levels of a namespace. Raises ``Problem`` (400) where one level cannot be distinguished from two."""
    if not found:
        raise Problem(400, "BadRequestException", "a namespace needs at least one level")
    for level in found:
        addressable(level)
        if "." in level:
            text = f"{level!r} cannot be a level of a namespace: it has a dot, which joins levels here"
            raise Problem(400, "BadRequestException", text)
    return tuple(found)


def addressable(name: str) -> str:
    """Return a name that a path can hold, so that every client and every proxy means the same by it.

    Raises ``Problem`` (400): it is empty, begins or ends with a space, is ``.`` or ``..``, or has a slash or a
    character that is not shown.
    """
    if not is_addressable(name):
        text = (
            f"{name[:100]!r} cannot be a name here: it is empty, '.' or '..', has a space at its begin or end, or a "
            "slash or an invisible character in it"
        )
        raise Problem(400, "BadRequestException", text)
    return name


def _positive(size: str) -> int:
    if not (size.isascii() and size.isdigit() and int(size[:9]) > 0):
        raise Problem(400, "BadRequestException", "pageSize must be a positive number")
    return int(size[:9])
