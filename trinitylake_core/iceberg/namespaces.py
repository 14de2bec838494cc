"""Namespaces: nested ones are dotted names, as in PyIceberg's SQL catalog; a parent need not exist by itself."""

from __future__ import annotations

from pyiceberg.catalog import Catalog, PropertiesUpdateSummary
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NamespaceNotEmptyError, NoSuchNamespaceError
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.types import transform_dict_value_to_str

from trinitylake_core.catalog import CatalogView
from trinitylake_core.errors import AlreadyExists, InvalidName, NamespaceNotEmpty, ObjectNotFound
from trinitylake_core.iceberg.base import LakehouseCatalog
from trinitylake_core.iceberg.change import Attempt
from trinitylake_core.iceberg.errors import no_namespace, translated


class Namespaces(LakehouseCatalog):
    """The part of the catalog that keeps namespaces and their properties."""

    def namespace_exists(self, namespace: str | Identifier) -> bool:
        """Return whether a namespace exists, by itself or because one below it does."""
        with translated():
            return self._read(lambda view: self._has_namespace(view, _text(namespace)))

    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        """Create a namespace.

        Raises:
            NamespaceAlreadyExistsError: it is there.
            NoSuchNamespaceError: the name is empty.
            BadRequestError: the name is too long, or holds a space or a control character.
        """
        text, values = _text(namespace), transform_dict_value_to_str(dict(properties))

        def create(change: Attempt) -> None:
            try:
                change.txn.create_namespace(text, values)
            except AlreadyExists:
                raise NamespaceAlreadyExistsError(f"Namespace already exists: {text}") from None

        with translated():
            self._change(create, f"create namespace {text}")

    def drop_namespace(self, namespace: str | Identifier) -> None:
        """Drop an empty namespace.

        Raises:
            NoSuchNamespaceError: it is not there.
            NamespaceNotEmptyError: it holds tables or views, or there are namespaces below it.
        """
        text = _text(namespace)

        def drop(change: Attempt) -> None:
            self._need_namespace(change.txn, text)
            if below := change.txn.namespaces(f"{text}."):
                raise NamespaceNotEmptyError(f"Namespace {text} is not empty. {len(below)} namespaces are below it.")
            try:
                change.txn.drop_namespace(text)
            except NamespaceNotEmpty as error:
                raise NamespaceNotEmptyError(f"Namespace {text} is not empty: {error}") from None

        with translated():
            self._change(drop, f"drop namespace {text}")

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        """Return the namespaces right below one, or those of the top level. Raises ``NoSuchNamespaceError``."""
        parent = _text(namespace) if namespace else ""

        def listed(view: CatalogView) -> list[str]:
            found = view.namespaces(f"{parent}." if parent else "")
            if parent and not found:
                self._need_namespace(view, parent)
            return found

        with translated():
            names = self._read(listed)
        level = len(parent.split(".")) + 1 if parent else 1
        return sorted({tuple(name.split("."))[:level] for name in names})

    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        """Return the properties of a namespace. Raises ``NoSuchNamespaceError``."""
        text = _text(namespace)

        def properties(view: CatalogView) -> Properties:
            try:
                return dict(view.namespace(text).properties)
            except (ObjectNotFound, InvalidName):
                if self._has_namespace(view, text):
                    return {}
                raise no_namespace(text) from None

        with translated():
            return self._read(properties)

    def update_namespace_properties(
        self, namespace: str | Identifier, removals: set[str] | None = None, updates: Properties = EMPTY_DICT
    ) -> PropertiesUpdateSummary:
        """Remove and set properties of a namespace.

        Raises:
            NoSuchNamespaceError: it is not there.
            ValueError: a property is both removed and set, or its value is ``None``.
        """
        text, values = _text(namespace), transform_dict_value_to_str(dict(updates))

        def update(change: Attempt) -> PropertiesUpdateSummary:
            self._make_namespace(change, text)
            current = dict(change.txn.namespace(text).properties)
            summary, _ = self._get_updated_props_and_update_summary(current, removals, values)
            removed: dict[str, str | None] = dict.fromkeys(summary.removed)
            if removed or values:
                change.txn.alter_namespace(text, {**removed, **values})
            return summary

        with translated():
            return self._change(update, f"update namespace {text}")


def _text(namespace: str | Identifier) -> str:
    return Catalog.namespace_to_string(namespace, NoSuchNamespaceError)
