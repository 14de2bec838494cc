"""One attempt at a change: a transaction of the lakehouse, and the metadata files that were written for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import NamedTuple

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, TableAlreadyExistsError
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.view.metadata import ViewMetadata

from trinitylake_core.commits.confirm import remove_quietly
from trinitylake_core.errors import StorageError, UnsafeStorage
from trinitylake_core.grounds import NOBODY, Identities, Identity, directories_above, full_name
from trinitylake_core.iceberg.commit_rules.added import AddedFiles
from trinitylake_core.iceberg.errors import TableForbidden
from trinitylake_core.iceberg.names import CatalogName
from trinitylake_core.iceberg.rights.locations import Place
from trinitylake_core.iceberg.rights.metadata_files import MetadataFiles, Stored
from trinitylake_core.table_index import TableIndex
from trinitylake_core.table_places import TablePlaces
from trinitylake_core.transactions.made import note_version
from trinitylake_core.transactions.transaction import Transaction
from trinitylake_core.versions import Root

Require = Callable[[CatalogName], None]
_REQUIRE: ContextVar[Require | None] = ContextVar("require", default=None)


@contextmanager
def on_behalf_of(require: Require) -> Iterator[None]:
    """Say what refuses those who ask for a change, where it takes what another object has or had; else nobody is asked.

    It is called with the name of that object.
    """
    token = _REQUIRE.set(require)
    try:
        yield
    finally:
        _REQUIRE.reset(token)


class Claims:
    """The identities that attempts of this process are about to give to tables. Thread-safe.

    Attempts of one group become one version, and none of them sees the others in its base.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: dict[str, object] = {}
        self._inside: dict[str, set[object]] = {}
        """The attempts that have taken something in a directory."""

    def take(self, identity: Identity, directories: Iterable[str], owner: object) -> None:
        """Take an identity and directories until they are released.

        Raises ``CommitFailedException``: another attempt has it, or one of these directories, one in it or above it.
        """
        named = (identity.uuid, identity.metadata, *directories)
        wanted = {each: list(directories_above(each)) for each in named if each}
        with self._lock:
            for each, above in wanted.items():
                owners = {self._taken.get(known, owner) for known in (each, *above)}
                owners.update(self._inside.get(each, ()))
                if owners - {owner}:
                    raise CommitFailedException(
                        "another request that is under way creates or registers a table with the same UUID, the same "
                        "metadata file or the same directory: see what became of it, and retry"
                    )
            for each, above in wanted.items():
                self._taken[each] = owner
                for directory in above:
                    self._inside.setdefault(directory, set()).add(owner)

    def release(self, owner: object) -> None:
        """Let go of everything that an attempt has taken."""
        with self._lock:
            self._taken = {what: each for what, each in self._taken.items() if each is not owner}
            inside = {what: each - {owner} for what, each in self._inside.items()}
            self._inside = {what: each for what, each in inside.items() if each}


class _Claim(NamedTuple):
    """What an attempt requires that no other object has."""

    name: CatalogName
    identity: Identity
    directories: tuple[str, ...]
    require: Require | None


class Attempt:
    """A transaction and its metadata files: both become visible together, or neither does.

    Attributes:
        txn: the transaction.
        places: where its metadata files are written.
    """

    def __init__(self, txn: Transaction, places: MetadataFiles, index: TableIndex, claims: Claims) -> None:
        self.txn = txn
        self.places = places
        self._index = index
        self._claims = claims
        self._written: list[str] = []
        self._in_base: dict[str, TableMetadata | None] = {}
        self._identities = Identities(places.storage.root)
        self._claimed: list[_Claim] = []
        refuse = self._refuse_added if places.serves_clients else None
        self._added = AddedFiles(places.storage, refuse, places.locations.prefixes)
        txn.require(self._added.refuse_void)
        txn.require(self._refuse_taken)

    # -- metadata files ------------------------------------------------------------------------

    def write_metadata(
        self, name: CatalogName, metadata: TableMetadata | ViewMetadata, location: str, before: Stored | None = None
    ) -> None:
        """Write metadata to a new file, those of a table after those ``before``. One ``put``."""
        path = self.places.write(metadata, location)
        known = self._note_base(location, before)
        files = () if before is None else (before.metadata_location,)
        after = None if isinstance(metadata, ViewMetadata) else metadata
        self._added.add(known, after, location, known=files, name=name)
        if path is not None:
            self._written.append(path)

    def take_over(
        self, name: CatalogName, metadata: TableMetadata | None, location: str, before: Stored | None
    ) -> None:
        """Note a metadata file that another writer wrote, of a table in the place of ``before``. No request."""
        known = self._note_base(location, before)
        self._added.add(known, metadata, location, is_own=False, name=name)

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

    # -- identities ----------------------------------------------------------------------------

    def note(self, name: CatalogName, identity: Identity | None) -> None:
        """Note which identity an object has after this attempt; ``None``: there is none of this name."""
        self._identities.put(full_name(*name), identity)

    def claim(self, name: CatalogName, identity: Identity = NOBODY, directories: Iterable[str] = ()) -> None:
        """Require that no object but this one has an identity, at the base and in any race. It is noted afterwards.

        Nor one of these directories, one in it, or one above it. Costs what ``TableIndex.names_of`` does; nothing where
        nothing is claimed.

        Raises:
            TableAlreadyExistsError: another one has the identity, or such a directory.
            TableForbidden: only directories were claimed, and another one has such a directory.
            CommitFailedException: another attempt of this process claims the same.
        """
        claim = _Claim(name, identity, tuple(directories), _REQUIRE.get())
        if identity == NOBODY and not claim.directories:
            return
        self._refuse_others(claim, self.txn.change.base, {full_name(*name)})
        self._claims.take(identity, claim.directories, self)
        self._claimed.append(claim)

    def require_owners(self, name: CatalogName, location: str) -> None:
        """Refuse a file that is to be registered under a name to those who may not have what lies in its directory.

        That is what has it, or had it last. Where no version that is kept says who that was, the name of the directory
        does. Costs what ``TableIndex.former_owners`` does; nothing where nobody has to be asked.
        """
        require = _REQUIRE.get()
        if require is None:
            return
        base = self.txn.change.base
        locations = self.places.locations
        directories = []
        own = self.places.own_directory(location)
        if own is not None:
            directories.append(own)
        found = self._index.names_of(NOBODY, base, directories)
        found |= self._index.former_owners(base, directories)
        _require_each(require, found - {full_name(*name)})
        made_for = locations.made_for(location)
        if not found and made_for is not None and not locations.is_made_for(name, made_for):
            require(CatalogName(*made_for))

    def refuse_ground(self, namespace: str, properties: Mapping[str, str]) -> None:
        """Refuse to clients a location of a namespace that is, or lies in, a directory that a table has, or had last.

        It may be above those of tables: new ones lie below it. That of another namespace is refused, also one above
        it or in it, unless it lies in that of a namespace above this one. Costs as :meth:`claim`, and the same for
        namespaces. Raises ``TableForbidden``.
        """
        location = properties.get("location")
        if not self.places.serves_clients or not location:
            return
        place = Place(f"the location of namespace {namespace}", location)
        directory = self.places.locations.ground_of_namespace(namespace, place)
        base = self.txn.change.base
        if self._index.names_holding(base, directory):
            raise TableForbidden(f"{place.what} is the directory of a table, or lies in it: choose another one")
        self._index.refuse_unknown(base, [directory])
        self._claims.take(NOBODY, [f"namespaces in {directory}"], self)
        self.txn.require(partial(self._refuse_shared, namespace, place, directory))
        require = _REQUIRE.get()
        if require is not None:
            _require_each(require, self._index.former_owners(base, [directory], below=False))

    def _refuse_shared(self, namespace: str, place: Place, directory: str, base: Root) -> None:
        """Refuse a directory that is the location of another namespace of a version, or lies in or above it."""
        for name, ground in self._index.of_namespaces.grounds_over(base, directory):
            other, _, _ = name.partition("\0")
            is_in_parent = namespace.startswith(f"{other}.") and directory != ground and directory.startswith(ground)
            is_above_child = other.startswith(f"{namespace}.") and directory != ground and ground.startswith(directory)
            if other != namespace and not is_in_parent and not is_above_child:
                raise TableForbidden(
                    f"{place.what} is that of another namespace, lies in it, or is above it: choose another one"
                )
        self._index.of_namespaces.refuse_unknown(base, [directory])

    def _refuse_added(self, name: CatalogName | None, uris: Iterable[str], own: TablePlaces) -> None:
        """Refuse files that a client adds, in no place of the table or in one of another table.

        Those outside its own directory cost what :meth:`claim` does. Raises ``TableForbidden``, ``InvalidLocation``.
        """
        directories = self.places.refuse_added(uris, own)
        claimed = {each for claim in self._claimed for each in claim.directories if claim.name == name}
        if name is not None:
            self.claim(name, directories=[each for each in directories if each not in claimed])

    def _refuse_taken(self, base: Root) -> None:
        """Refuse what another object of a version, or of this attempt, has. Raises ``TableAlreadyExistsError``."""
        for claim in self._claimed:
            own = sorted(self._identities.names_like(claim.identity)) or [full_name(*claim.name)]
            self._refuse_others(claim, base, set(own[:1]))

    def _refuse_others(self, claim: _Claim, base: Root, own: set[str]) -> None:
        self._refuse_namespaces(claim, base)
        others = self._index.names_of(claim.identity, base, claim.directories)
        others -= self._identities.names()  # of these it is known what they are after this attempt
        others |= self._identities.names_like(claim.identity)
        for each in claim.directories:
            others |= self._identities.names_over(each)
        others -= own
        if not others:
            self._index.refuse_unknown(base, claim.directories)
            self._require_former(claim, base)
            return
        which = "another table" if self.places.serves_clients else min(others).replace("\0", ".")
        if claim.identity == NOBODY:
            raise TableForbidden(
                f"{claim.name}: a place that it names is the directory of {which}, lies in it, or is above it; each "
                "directory has one owner: choose another one"
            )
        raise TableAlreadyExistsError(
            f"{claim.name}: {which} has the same UUID, metadata file or directory; a table has one name: rename it, or "
            "drop it first"
        )

    def _refuse_namespaces(self, claim: _Claim, base: Root) -> None:
        """Refuse to clients the location of another namespace, or what is above it: its new tables lie there."""
        if not self.places.serves_clients:
            return
        for each in claim.directories:
            for name, ground in self._index.of_namespaces.grounds_over(base, each):
                if ground.startswith(each) and name != full_name(claim.name.namespace, ""):
                    raise TableForbidden(
                        f"{claim.name}: a place that it names is the location of another namespace, or is above it: "
                        "choose another one"
                    )

    def _require_former(self, claim: _Claim, base: Root) -> None:
        """Refuse directories that another object had last, to those who may not manage that."""
        if claim.require is None or not claim.directories:
            return
        found = self._index.former_owners(base, claim.directories)
        _require_each(claim.require, found - {full_name(*claim.name)})

    @property
    def writes_anything(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.txn.change.writes)

    # -- the end -------------------------------------------------------------------------------

    def commit(self) -> int:
        """Commit and return the version.

        The metadata files stay after any outcome: a root that this process tried to create names them.

        Raises:
            CommitConflict, TransactionExpired: it did not happen.
            TableFilesVoid: nor would it if it were tried again.
            TableAlreadyExistsError: another table has an identity that this claims.
            TableForbidden: it adds a file that does not lie in the places of its table.
            CommitStateUnknownException: the storage failed; it may have happened.
        """
        try:
            self._added.refuse_outside()
        except BaseException:
            self.discard()
            raise
        self._written.clear()
        with self._release_claims_after():
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
        with self._release_claims_after():
            remove_quietly(self.places.storage, self._written)
            self._written.clear()
            self.txn.abort()

    @contextmanager
    def _release_claims_after(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._claims.release(self)


def _require_each(require: Require, names: Iterable[str]) -> None:
    """Require rights over objects, by their names in the index."""
    for each in sorted(names):
        namespace, _, own = each.partition("\0")
        require(CatalogName(namespace, own))
