"""PyIceberg's catalog over a lakehouse: every change is a version, and old versions can be opened."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Self, TypeVar

from pyiceberg.catalog import URI, WAREHOUSE_LOCATION
from pyiceberg.exceptions import CommitFailedException, ForbiddenError, NoSuchPropertyException

from trinitylake_core.catalog import CatalogView
from trinitylake_core.errors import (
    CommitConflict,
    Corrupt,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    StorageDenied,
    TransactionExpired,
    VersionExpired,
)
from trinitylake_core.iceberg.added import TableFilesVoid
from trinitylake_core.iceberg.change import Attempt
from trinitylake_core.iceberg.errors import MetadataMissing, translated
from trinitylake_core.iceberg.options import file_io_properties, storage_options
from trinitylake_core.iceberg.places import Places
from trinitylake_core.iceberg.transaction import CatalogTransaction
from trinitylake_core.iceberg.views import Views
from trinitylake_core.lakehouse import Lakehouse
from trinitylake_core.recovery.target import parse_moment
from trinitylake_core.storage import root_uri
from trinitylake_core.transactions.requests import asked, lifetime_of_keys

_T = TypeVar("_T")
GROUP_COMMITS: Final = "group-commits"
"""The property by which changes that threads make at the same time become one version."""
ATTEMPTS: Final = 10
"""How often a change is tried again after others changed the same object; each try stands on what they made."""
_MAY_HAVE_EXPIRED: Final = (Corrupt, MetadataMissing, TransactionExpired, VersionExpired)
"""What is raised where files of a version are gone: rightly, if it has expired."""


class TrinityLakeCatalog(Views):
    """The tables, views and namespaces of a lakehouse as a PyIceberg catalog. Thread-safe.

    Every method reads the newest version, with what a ``refresh`` costs, and every change is a version of its own.

    Args:
        name: the name of the catalog; it is not stored in the lakehouse.
        **properties: ``uri``, the root of the lakehouse; ``warehouse``, where new tables lie if not below the root;
            ``version`` (also ``HEAD~1``, a snapshot, a time, ``-2h``), ``timestamp`` (also an age such as ``2h``) or
            ``snapshot``, to open it as it was, read-only; ``storage.NAME``, the storage
            options of the lakehouse (``docs/storage.md``); options of PyIceberg's FileIO, such as ``s3.endpoint``;
            ``group-commits``, "true" where many threads change the catalog at the same time.

    Raises:
        NoSuchPropertyException: no ``uri``.
        ValueError: there is no lakehouse at the root, or no such version, or a property that cannot be.
        ForbiddenError: the storage refused the credentials.
    """

    def __init__(self, name: str, **properties: str) -> None:
        given = properties.get(URI)
        if not given:
            raise NoSuchPropertyException("the property 'uri' is required: the root URI or the path of a lakehouse")
        try:
            root = root_uri(given)
            lake = Lakehouse.open(root, storage_options=storage_options(root, properties))
            self._past = _past(lake, properties)
            self._stand_on(name, lake, properties)
        except (InvalidInput, NotFound) as error:
            raise ValueError(f"cannot open a lakehouse as catalog {name!r}: {error}") from error
        except StorageDenied as error:
            raise ForbiddenError(str(error)) from error

    @classmethod
    def over(cls, lake: Lakehouse, name: str = "lake", **properties: str) -> Self:
        """Return the catalog over a lakehouse that is open already.

        It reads the newest version, or the one that ``version``, ``timestamp`` or ``snapshot`` name. No request, but
        for those. Raises what ``Lakehouse.at`` raises.
        """
        made = cls.__new__(cls)
        made._past = _past(lake, properties)  # noqa: SLF001 - another way to make one
        made._stand_on(name, lake, {**properties, URI: lake.root})  # noqa: SLF001
        return made

    def serve_clients(self) -> None:
        """Hold the metadata of tables that this commits, and refuse commits that name files of this machine.

        REQUIRES: no caller changes metadata.
        """
        self._places.serve_clients()

    def refuse_local(self, location: str) -> None:
        """Refuse to read a file of this machine, but below the root or the warehouse. Raises ``ForbiddenError``."""
        self._places.refuse_local(location)

    def _stand_on(self, name: str, lake: Lakehouse, properties: dict[str, str]) -> None:
        defaults = file_io_properties(lake.root, lake.storage.spec()[1])
        super().__init__(name, **{**defaults, **properties})
        self._backend = lake.backend
        self._group = lake.group() if properties.get(GROUP_COMMITS, "").lower() == "true" else None
        self._places = Places(lake.storage, properties.get(WAREHOUSE_LOCATION), self.properties)

    @property
    def lakehouse(self) -> Lakehouse:
        """A handle of the version that this catalog reads: the newest one, unless it was opened in the past."""
        if self._past is not None:
            return self._past
        root = self._backend.newest()
        self._backend.note_newest(root)
        return Lakehouse(self._backend, root)

    def _read(self, act: Callable[[CatalogView], _T]) -> _T:
        for _ in range(ATTEMPTS):
            lake = self.lakehouse
            try:
                return act(lake)
            except _MAY_HAVE_EXPIRED:
                if self._past is not None or not self._expired(lake.version):
                    raise
        return act(self.lakehouse)

    def _expired(self, version: int) -> bool:
        """Whether a version is no longer kept, so that its files may rightly be gone. Three ``get``."""
        return version < self._backend.newest().oldest_version

    def _begin(self, reason: str | None, isolation: str | None = None, *, fresh: bool = True) -> Attempt:
        """Begin a change; without ``fresh`` at the newest version that was seen, which costs no request."""
        if self._past is not None:
            raise ForbiddenError(
                f"catalog {self.name!r} is open at version {self._past.version}, read-only; open it without 'version', "
                "'timestamp' and 'snapshot' to change it"
            )
        lake = self.lakehouse if fresh else Lakehouse(self._backend, self._backend.newest_seen)
        key = None if self._group is None else asked()
        txn = lake.transaction(reason=reason, isolation=isolation, group=self._group, request=key)
        return Attempt(txn, self._places)

    def _change(self, act: Callable[[Attempt], _T], reason: str) -> _T:
        lost: Exception | None = None
        for attempt in range(ATTEMPTS):
            fresh = self._group is None or attempt > 0
            try:
                change = self._begin(reason, fresh=fresh)
            except OutcomeUnknown:
                if fresh:
                    raise
                continue  # what is unknown below a version of long ago may be known by now
            try:
                result = act(change)
            except _MAY_HAVE_EXPIRED:
                change.discard()
                if self._expired(change.txn.base_version):
                    continue
                raise
            except Exception:
                change.discard()
                if not fresh:  # another process may have made what is missing here
                    continue
                raise
            except BaseException:
                change.discard()
                raise
            if not fresh and not change.writes_anything:  # another process may have made what would be undone here
                change.discard()
                continue
            try:
                change.commit()
            except TableFilesVoid:
                raise
            except (CommitConflict, TransactionExpired) as error:  # certainly not committed
                lost = error
                continue
            return result
        raise CommitFailedException(f"{reason}: {ATTEMPTS} races were lost to other writers; last: {lost}") from lost

    def _after_commit(self, act: Callable[[], Any]) -> None:
        act()

    def lifetime_of_keys(self) -> int:
        """Return for how many milliseconds a client may send a request again. No request."""
        definition = self._backend.definition(self._backend.newest_seen)
        return lifetime_of_keys(definition.txn_ttl_millis)

    def transaction(self, *, reason: str | None = None, isolation: str | None = None) -> CatalogTransaction:
        """Return a catalog of which all changes become one version: use it in a ``with`` block.

        ``isolation``: SNAPSHOT or SERIALIZABLE; by default that of the lakehouse definition. Raises ``ForbiddenError``:
        the catalog, or the lakehouse, is read-only.
        """
        with translated():
            begun = self._begin(reason, isolation)
            return CatalogTransaction(self.name, self.properties, begun, self._places, self._expired)


def _past(lake: Lakehouse, properties: dict[str, str]) -> Lakehouse | None:
    """Return a handle of the version that ``version``, ``timestamp`` or ``snapshot`` name, if one of them is set."""
    version, timestamp = properties.get("version"), properties.get("timestamp")
    snapshot = properties.get("snapshot")
    if version is None and timestamp is None and snapshot is None:
        return None
    when = parse_moment(timestamp)
    if timestamp is not None and str(timestamp).isdigit():
        when = datetime.fromtimestamp(int(timestamp) / 1000, UTC)
    return lake.at(version=None if version is None else str(version), timestamp=when, snapshot=snapshot)
