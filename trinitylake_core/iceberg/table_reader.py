"""Reading tables: a definition names the newest metadata file of an Iceberg table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchIcebergTableError, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier

from trinitylake_core.catalog import CatalogView
from trinitylake_core.definitions import TableDef
from trinitylake_core.errors import InvalidName, ObjectNotFound
from trinitylake_core.iceberg.errors import no_namespace, no_table, translated
from trinitylake_core.iceberg.namespaces import Namespaces
from trinitylake_core.tables import ICEBERG, metadata_uri


class TableReader(Namespaces):
    """The part of the catalog that finds, lists and loads tables."""

    def load_table(self, identifier: str | Identifier) -> Table:
        """Return a table. What looking up its definition costs, and one ``get`` for its metadata.

        Raises:
            NoSuchTableError: there is none.
            NoSuchIcebergTableError: it is of another format, or nothing has written its metadata yet.
            FileNotFoundError: its metadata file is gone.
            ValidationError: its metadata file is garbage.
        """
        namespace, name = self._split(identifier, NoSuchTableError)
        with translated():
            return self._read(lambda view: self._load(view, namespace, name))

    def table_exists(self, identifier: str | Identifier) -> bool:
        """Return whether there is an Iceberg table of this name. Its metadata are not read."""
        try:
            return bool(self.metadata_location(identifier))
        except NoSuchTableError:
            return False

    def metadata_location(self, identifier: str | Identifier) -> str:
        """Return the location of a table's newest metadata file, which never changes. The file is not read.

        Raises ``NoSuchTableError``, ``NoSuchIcebergTableError``.
        """
        namespace, name = self._split(identifier, NoSuchTableError)
        with translated():
            return self._read(lambda view: self._metadata_location(view, namespace, name))

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        """Return the tables in a namespace, of all formats. Raises ``NoSuchNamespaceError``."""
        return self._names(namespace, lambda view, text: view.tables(text))

    def _names(
        self, namespace: str | Identifier, names: Callable[[CatalogView, str], Iterable[str]]
    ) -> list[Identifier]:
        """Return the names that ``names`` lists in a namespace. Raises ``NoSuchNamespaceError``."""
        text = Catalog.namespace_to_string(namespace, NoSuchNamespaceError)

        def list_names(view: CatalogView) -> list[Identifier]:
            try:
                return [self._identifier(text, name) for name in names(view, text)]
            except (ObjectNotFound, InvalidName):
                if self._has_namespace(view, text):
                    return []
                raise no_namespace(text) from None

        with translated():
            return self._read(list_names)

    def _definition(self, view: CatalogView, namespace: str, name: str) -> TableDef:
        try:
            table = view.table(namespace, name)
        except (ObjectNotFound, InvalidName):
            raise no_table(namespace, name) from None
        if table.table_format != ICEBERG:
            raise NoSuchIcebergTableError(f"{namespace}.{name} is a table of the format {table.table_format!r}")
        return table

    def _metadata_location(self, view: CatalogView, namespace: str, name: str) -> str:
        location = metadata_uri(self._places.storage.root, self._definition(view, namespace, name))
        if location is None:
            raise NoSuchIcebergTableError(f"nothing has written metadata of {namespace}.{name} yet")
        return location

    def _load(self, view: CatalogView, namespace: str, name: str) -> Table:
        location = self._metadata_location(view, namespace, name)
        return self._table(namespace, name, self._places.read(location), location)

    def metadata_of(self, table: TableDef) -> TableMetadata:
        """Return the metadata that the definition of an Iceberg table names. One ``get``.

        Raises:
            FileNotFoundError: the file is gone, or nothing was written yet.
            ValidationError, ValueError: it is garbage.
        """
        location = metadata_uri(self._places.storage.root, table)
        if location is None:
            raise FileNotFoundError("nothing has written its metadata yet")
        return self._places.read(location)

    def _load_many(self, view: CatalogView, names: Sequence[tuple[str, str]]) -> Iterator[Table]:
        """Yield those of several tables that are there. One ``get`` each, side by side."""
        found: list[tuple[str, str, str]] = []
        for namespace, name in names:
            with suppress(NoSuchTableError):
                found.append((namespace, name, self._metadata_location(view, namespace, name)))

        def load(each: tuple[str, str, str]) -> Table:
            namespace, name, location = each
            metadata = self._places.read(location)
            return self._table(namespace, name, metadata, location)

        return self._places.storage.map(found, load)

    def _table(self, namespace: str, name: str, metadata: TableMetadata, location: str) -> Table:
        io = self._places.moved(self._places.file_io(location), metadata, location)
        return Table(self._identifier(namespace, name), metadata, location, io, self)
