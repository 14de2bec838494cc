"""Which lakehouses an endpoint serves, and at which version: ``name``, or ``name@VERSION`` to read the past."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyiceberg import io
from pyiceberg.catalog import WAREHOUSE_LOCATION

from trinitylake_core.errors import InvalidInput, NotFound
from trinitylake_core.iceberg import ALLOWED_LOCATIONS, GROUP_COMMITS, TrinityLakeCatalog
from trinitylake_core.lakehouse import Lakehouse
from trinitylake_core.rest.problems import Problem

if TYPE_CHECKING:
    from trinitylake_core.rest.lending import Lender
    from trinitylake_core.rest.signing import RequestSigner

_OPENED: Final = 64
"""So many catalogs stay open; those of the past are many, and each costs a few requests to open again."""
_PUBLIC: Final = {
    io.S3_ENDPOINT: (io.S3_ENDPOINT,),
    io.S3_REGION: (io.S3_REGION, "client.region"),
}
"""What clients learn of the storage: where it is. Never how to get in."""


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A catalog under the name that clients use for it, and who lends keys for its tables or signs: nobody in the past.

    What a table was called then says nothing about who may have its files now.
    """

    name: str
    catalog: TrinityLakeCatalog
    lender: Lender | None = None
    signer: RequestSigner | None = None

    def client_properties(self) -> dict[str, str]:
        """Return the properties that clients need for the files of tables: the place of the storage, no credentials."""
        own = self.catalog.properties
        found: dict[str, str] = {}
        for ours, names in _PUBLIC.items():
            value = own.get(ours)
            if value and "@" not in value:  # credentials may stand in the address of a proxy
                found |= dict.fromkeys(names, str(value))
        if io.S3_ENDPOINT in found:
            virtual = own.get(io.S3_FORCE_VIRTUAL_ADDRESSING, "false")
            found["s3.path-style-access"] = "false" if virtual == "true" else "true"
        return found


class Warehouses:
    """The lakehouses of an endpoint by name, opened when they are first asked for. Thread-safe.

    Args:
        openers: by name, what opens the lakehouse.
        properties: of the catalogs, such as ``warehouse``, below which new tables lie and clients may place theirs.
        lender: lends keys for their tables to clients that ask.
        signs: whether requests of clients without keys are signed, where the files lie on S3. What it knows of a table
            is from its last load, so only for clients that live no longer than these warehouses.

    Raises ``InvalidInput``: several lakehouses would share places, and none of them knows those of another one.
    """

    def __init__(
        self,
        openers: Mapping[str, Callable[[], Lakehouse]],
        properties: Mapping[str, str] | None = None,
        lender: Lender | None = None,
        *,
        signs: bool = False,
    ) -> None:
        self._lender = lender
        self._signs = signs
        self._openers = dict(openers)
        self._here = {GROUP_COMMITS: "true", **(properties or {})}
        shared = self._here.keys() & {WAREHOUSE_LOCATION, ALLOWED_LOCATIONS}
        if shared and len(self._openers) > 1:
            raise InvalidInput(
                "several lakehouses of one endpoint go with neither --tables nor --allow-location: they do not know "
                "the places of each other; serve each by an endpoint of its own, with prefixes of its own"
            )
        self._opened: OrderedDict[str, Warehouse] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        """The names, in the order they were given."""
        return list(self._openers)

    def get(self, name: str) -> Warehouse:
        """Return a warehouse. The first time, what opening a lakehouse costs; then no request.

        Raises:
            Problem: there is no such lakehouse or version (404).
            StorageError, Corrupt: it cannot be opened.
        """
        with self._lock:
            if name in self._opened:
                self._opened.move_to_end(name)
                return self._opened[name]
        catalog = self._open(name)
        if "@" in name:
            warehouse = Warehouse(name, catalog)
        else:
            warehouse = Warehouse(name, catalog, self._lender, self._find_signer(catalog))
        with self._lock:
            self._opened[name] = warehouse
            while len(self._opened) > _OPENED:
                self._opened.popitem(last=False)
        return warehouse

    def _find_signer(self, catalog: TrinityLakeCatalog) -> RequestSigner | None:
        """Return who signs for a lakehouse; ``None``: nobody does, and nothing is read."""
        if not self._signs or not catalog.root.startswith("s3://"):
            return None
        from trinitylake_core.rest.signing import find_signer  # noqa: PLC0415 - botocore: a third of a second

        return find_signer(catalog.lakehouse.storage)

    def _open(self, name: str) -> TrinityLakeCatalog:
        base, _, version = name.partition("@")
        if base not in self._openers:
            raise Problem(404, "NotFoundException", f"no warehouse {base!r}")
        lake = self.get(base).catalog.lakehouse if version else self._openers[base]()
        try:
            properties = self._here
            if version.isascii() and version.isdecimal():
                properties = {"version": version}
            elif version:
                is_snapshot = any(each.name == version for each in lake.snapshots())
                properties = {"snapshot" if is_snapshot else "timestamp": version}
            catalog = TrinityLakeCatalog.over(lake, base, **properties)
        except (InvalidInput, NotFound) as error:
            raise Problem(404, "NotFoundException", f"no version {version!r} of {base!r}: {error}") from error
        catalog.serve_clients()
        return catalog
