"""One attempt at a change: a transaction of the lakehouse, and the metadata files that were written for it."""

from __future__ import annotations

from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.view.metadata import ViewMetadata

from trinitylake_core.commits.confirm import remove_quietly
from trinitylake_core.errors import StorageError, UnsafeStorage
from trinitylake_core.iceberg.added import AddedFiles
from trinitylake_core.iceberg.places import Places, Stored
from trinitylake_core.transactions.made import note_version
from trinitylake_core.transactions.transaction import Transaction


class Attempt:
    """A transaction and its metadata files: both become visible together, or neither does."""

    def __init__(self, txn: Transaction, places: Places) -> None:
        self.txn = txn
        self._places = places
        self._written: list[str] = []
        self._in_base: dict[str, TableMetadata | None] = {}
        self._added = AddedFiles(places.storage, places.refuse_local if places.serves_clients else None)
        txn.require(self._added.refuse_void)

    def write_metadata(
        self, metadata: TableMetadata | ViewMetadata, location: str, before: Stored | None = None
    ) -> None:
        """Write metadata to a new file, those of a table after those ``before``. One ``put``."""
        path = self._places.write(metadata, location)
        known = self._note_base(location, before)
        self._added.add(known, None if isinstance(metadata, ViewMetadata) else metadata, location)
        if path is not None:
            self._written.append(path)

    def take_over(self, metadata: TableMetadata | None, location: str, before: Stored | None) -> None:
        """Note a metadata file that another writer wrote, of a table in the place of ``before``. No request."""
        known = self._note_base(location, before)
        self._added.add(known, metadata, location, is_own=False)

    def _note_base(self, location: str, before: Stored | None) -> TableMetadata | None:
        """Return what the base version names of a table whose newest metadata are at ``location`` from now on.

        Where this attempt has changed the table before, ``before`` are metadata that no version names: what the first
        change names does not prove that the second one may name it.
        """
        known = None
        if before is not None:
            known = self._in_base.get(before.metadata_location, before.metadata)
        self._in_base[location] = known
        return known

    @property
    def writes_anything(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.txn.change.writes)

    def commit(self) -> int:
        """Commit and return the version.

        The metadata files stay after any outcome: a root that this process tried to create names them.

        Raises:
            CommitConflict, TransactionExpired: it did not happen.
            TableFilesVoid: nor would it if it were tried again.
            CommitStateUnknownException: the storage failed; it may have happened.
        """
        self._written.clear()
        try:
            version = self.txn.commit()
        except UnsafeStorage:
            raise
        except StorageError as error:
            text = f"{error}; the commit may or may not have been made: load the table again before trying again"
            raise CommitStateUnknownException(text) from error
        note_version(version)
        return version

    def discard(self) -> None:
        """Give the change up before it is committed, and remove what was written for it."""
        remove_quietly(self._places.storage, self._written)
        self._written.clear()
        self.txn.abort()
