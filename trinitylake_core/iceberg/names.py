"""Names of namespaces, tables and views as clients write them: made canonical once, then checked and used as one text.

Nested namespaces are dotted names, as in PyIceberg's SQL catalog; a parent need not exist by itself.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import BadRequestError, NoSuchNamespaceError
from pyiceberg.typedef import Identifier

AnyName: TypeAlias = str | Identifier
"""A name as callers of PyIceberg write it: with dots, or its parts."""


class CatalogName(NamedTuple):
    """The name of a table or a view."""

    namespace: str
    name: str

    @property
    def identifier(self) -> Identifier:
        """The name as PyIceberg spells it: the levels of the namespace, and the name."""
        return (*self.namespace.split("."), self.name)

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


def name_of(identifier: AnyName, missing: type[Exception]) -> CatalogName:
    """Return the name of an object that a client looks for.

    Raises ``missing`` for what cannot be the name of one: without a namespace, or with spaces around a part.
    """
    parts = Catalog.identifier_to_tuple(identifier)
    if len(parts) < 2 or any(_is_empty_or_padded(part) for part in parts):
        raise missing(f"{'.'.join(parts)!r} is not a namespace and a name")
    return CatalogName(".".join(parts[:-1]), parts[-1])


def new_name_of(identifier: AnyName) -> CatalogName:
    """Return the name of an object that a client creates.

    Raises:
        NoSuchNamespaceError: it has no namespace.
        BadRequestError: no client could address it.
    """
    name = name_of(identifier, NoSuchNamespaceError)
    _refuse_unaddressable(name.name)
    return name


def namespace_of(namespace: AnyName) -> str:
    """Return the namespace that a client looks for. Raises ``NoSuchNamespaceError``: there can be none of this name."""
    levels = Catalog.identifier_to_tuple(namespace)
    if not levels or any(_is_empty_or_padded(level) for level in levels):
        raise NoSuchNamespaceError(
            f"{'.'.join(levels)!r} is not a namespace: a level is empty, or has spaces around it"
        )
    return ".".join(levels)


def new_namespace_of(namespace: AnyName) -> str:
    """Return the namespace that a client creates.

    Raises:
        NoSuchNamespaceError: a level is empty, or has spaces around it.
        BadRequestError: no client could address it.
    """
    text = namespace_of(namespace)
    for level in text.split("."):
        _refuse_unaddressable(level)
    return text


def _is_empty_or_padded(part: str) -> bool:
    return not part or part != part.strip()


def _refuse_unaddressable(part: str) -> None:
    """Refuse a part of a name that does not come back as itself from the path of a URL."""
    if part in {"", ".", ".."} or "/" in part:
        raise BadRequestError(
            f"{part!r} cannot be a name or a level of one: it is empty, '.' or '..', or has a slash, so that clients "
            "of the REST endpoint could not address it"
        )
