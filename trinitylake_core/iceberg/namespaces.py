"""Namespaces, their properties and the names in them: functions over a view of the catalog, or over an attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyiceberg.catalog import PropertiesUpdateSummary
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    TableAlreadyExistsError,
    ViewAlreadyExistsError,
)
from pyiceberg.typedef import Identifier, Properties

from trinitylake_core.catalog import CatalogView
from trinitylake_core.errors import AlreadyExists, InvalidName, NamespaceNotEmpty, ObjectNotFound
from trinitylake_core.iceberg.attempt import Attempt
from trinitylake_core.iceberg.errors import no_namespace
from trinitylake_core.iceberg.names import CatalogName
from trinitylake_core.keys import TABLE, VIEW


def has_namespace(view: CatalogView, namespace: str) -> bool:
    """Return whether a namespace exists, by itself or because one below it does."""
    try:
        view.namespace(namespace)
    except ObjectNotFound:
        return bool(view.namespaces(f"{namespace}."))
    except InvalidName:
        return False
    return True


def require_namespace(view: CatalogView, namespace: str) -> None:
    """Raise ``NoSuchNamespaceError`` if a namespace does not exist."""
    if not has_namespace(view, namespace):
        raise no_namespace(namespace)


def make_namespace(attempt: Attempt, namespace: str) -> None:
    """Make a namespace that existed only because of those below it a namespace of its own.

    Raises ``NoSuchNamespaceError``.
    """
    require_namespace(attempt.txn, namespace)
    try:
        attempt.txn.namespace(namespace)
    except ObjectNotFound:
        attempt.txn.create_namespace(namespace)


def create_namespace(attempt: Attempt, namespace: str, properties: Properties) -> None:
    """Create a namespace. Raises ``NamespaceAlreadyExistsError``, ``InvalidName``."""
    attempt.refuse_ground(namespace, properties)
    try:
        attempt.txn.create_namespace(namespace, properties)
    except AlreadyExists:
        raise NamespaceAlreadyExistsError(f"Namespace already exists: {namespace}") from None


def drop_namespace(attempt: Attempt, namespace: str) -> None:
    """Drop an empty namespace. Raises ``NoSuchNamespaceError``, ``NamespaceNotEmptyError``."""
    require_namespace(attempt.txn, namespace)
    below = attempt.txn.namespaces(f"{namespace}.")
    if below:
        raise NamespaceNotEmptyError(f"Namespace {namespace} is not empty. {len(below)} namespaces are below it.")
    try:
        attempt.txn.drop_namespace(namespace)
    except NamespaceNotEmpty as error:
        raise NamespaceNotEmptyError(f"Namespace {namespace} is not empty: {error}") from None


def namespaces_right_below(view: CatalogView, parent: str) -> list[Identifier]:
    """Return the namespaces right below one, or those of the top level. Raises ``NoSuchNamespaceError``."""
    names = view.namespaces(f"{parent}." if parent else "")
    if parent and not names:
        require_namespace(view, parent)
    level = len(parent.split(".")) + 1 if parent else 1
    return sorted({tuple(name.split("."))[:level] for name in names})


def properties_of_namespace(view: CatalogView, namespace: str) -> dict[str, str]:
    """Return the properties of a namespace. Raises ``NoSuchNamespaceError``."""
    try:
        return dict(view.namespace(namespace).properties)
    except (ObjectNotFound, InvalidName):
        require_namespace(view, namespace)
        return {}


def change_properties(
    attempt: Attempt, namespace: str, removals: set[str], updates: Properties
) -> PropertiesUpdateSummary:
    """Remove and set properties of a namespace, and return which. Raises ``NoSuchNamespaceError``."""
    attempt.refuse_ground(namespace, updates)
    make_namespace(attempt, namespace)
    current = attempt.txn.namespace(namespace).properties
    removed = sorted(each for each in removals if each in current)
    changes: dict[str, str | None] = dict.fromkeys(removed)
    changes.update(updates)
    if changes:
        attempt.txn.alter_namespace(namespace, changes)
    missing = sorted(removals.difference(removed))
    return PropertiesUpdateSummary(removed=removed, updated=list(updates), missing=missing)


def objects_in(
    view: CatalogView, namespace: str, list_names: Callable[[CatalogView, str], Iterable[str]]
) -> list[Identifier]:
    """Return what ``list_names`` lists in a namespace, as identifiers. Raises ``NoSuchNamespaceError``."""
    try:
        names = list(list_names(view, namespace))
    except (ObjectNotFound, InvalidName):
        require_namespace(view, namespace)
        return []
    return [(*namespace.split("."), name) for name in names]


def rename_object(attempt: Attempt, kind: str, old: CatalogName, new: CatalogName) -> None:
    """Rename a table or a view; raise PyIceberg's error for a name that one of them has."""
    make_namespace(attempt, new.namespace)
    other = VIEW if kind == TABLE else TABLE
    taken: type[Exception] = TableAlreadyExistsError if kind == TABLE else ViewAlreadyExistsError
    found = other
    try:
        attempt.txn.need_absent(other, *new)
        found = kind
        if kind == TABLE:
            attempt.txn.rename_table(*old, *new)
        else:
            attempt.txn.rename_view(*old, *new)
    except AlreadyExists:
        raise taken(f"Cannot rename {old} to {new}. {found.title()} already exists") from None
