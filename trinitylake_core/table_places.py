"""Where files of a table may lie, and the storages that give them: what a job opens for a table lies in its places."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from trinitylake_core.errors import InvalidInput, InvalidLocation, OutsidePlaces, OwnersUnknown
from trinitylake_core.file_identity import LocalLinks
from trinitylake_core.locations import OWN
from trinitylake_core.storage import Storage, open_storage, options_for
from trinitylake_core.storage.local import LocalStorage
from trinitylake_core.table_index import Grounds
from trinitylake_core.tables import (
    as_directory,
    base_uri,
    former_root,
    full_uri,
    here,
    own_directory,
    path_below,
    shared_directory,
)

ALLOWED_LOCATIONS: Final = "allowed_locations"
"""The storage option with places where files of tables may lie besides their own directories, separated by commas:
PREFIX for all tables, where each directory of a table has one owner; DIRECTORY=PREFIX for those whose own directories
lie in one, a URI, or a path below the root."""
_ALLOWED: Final = re.compile(r"(?:([^=]+?)\s*=\s*)?((?:[A-Za-z][A-Za-z0-9+.-]*:/)?/[^=]+)", re.DOTALL)


def _parse_allowed(option: object) -> Iterator[tuple[str | None, str]]:
    """Yield the prefixes of the storage option, each with the directory of the tables that it is for, if it is one.

    Raises ``InvalidInput``.
    """
    for each in filter(None, (part.strip() for part in str(option).split(","))):
        match = _ALLOWED.fullmatch(each)
        if match is None:
            raise InvalidInput(f"storage option {ALLOWED_LOCATIONS}: {each!r} is neither PREFIX nor DIRECTORY=PREFIX")
        yield match[1], match[2]


def _allowed_for(root: str, option: object, own: str) -> Iterator[tuple[str, bool]]:
    """Yield the prefixes that the operator allowed for the table with a directory, and whether for it alone.

    Raises ``InvalidInput``.
    """
    for tables, prefix in _parse_allowed(option):
        if tables is None:
            yield as_directory(prefix), False
            continue
        is_path = "://" not in tables and not tables.startswith("/")
        above = base_uri(root) if is_path else ""
        if own.startswith(as_directory(above + tables)):
            yield as_directory(prefix), True


@lru_cache(maxsize=1024)
def _parse_label(label: str) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    prefixes, shared, own = json.loads(label)
    return tuple(prefixes), tuple(shared), own


@dataclass(frozen=True, slots=True)
class TablePlaces:
    """Where files of one table may lie: its own directory, and the prefixes that the operator allowed for it.

    A prefix for all tables is ``shared``: what lies there in the directory of another table is that one's.
    Of a directory that a table shares, only what lies right in it: that is a prefix with a dot at its end.

    What a table names was written by others. So the place of each file is compared when the file is about to be opened
    for the table, and one that lies elsewhere is not opened with the credentials of this process.
    """

    root: str
    prefixes: tuple[str, ...]
    shared: tuple[str, ...] = ()
    own: str = ""
    storage: Storage | None = field(default=None, compare=False)
    """The storage of the lakehouse that says whose ground is whose in what is shared; ``None``: somebody else asks."""

    @classmethod
    def of(cls, storage: Storage, metadata: str) -> TablePlaces:
        """Return those of the table with a metadata file, by the URI of that. Raises ``InvalidInput``."""
        _, options = storage.spec()
        option = options.get(ALLOWED_LOCATIONS) or ""
        own = own_directory(storage.root, metadata)
        shared = shared_directory(storage.root, metadata)
        found = []
        if own is not None:
            found.append(own)
        if shared is not None:
            found.append(f"{shared}.")
        for_all = []
        for prefix, is_its_own in _allowed_for(storage.root, option, own or shared or ""):
            if is_its_own:
                found.append(prefix)
            else:
                for_all.append(prefix)
        return cls(storage.root, tuple(found), tuple(for_all), own or "", storage)

    @classmethod
    def parse_label(cls, storage: Storage, label: str) -> TablePlaces:
        """Return the places that :meth:`label` wrote."""
        return cls(storage.root, *_parse_label(label), storage)

    def label(self) -> str:
        """Return the places as text."""
        return json.dumps([self.prefixes, self.shared, self.own])

    def prefix_of(self, uri: str) -> str | None:
        """Return the prefix that holds a file; ``None``: it is not in these places. Costs what :meth:`require` does."""
        try:
            return self.require(uri)
        except OutsidePlaces:
            return None

    def require(self, uri: str) -> str:
        """Return the prefix that holds a file.

        No request, but for what ``Grounds.are_others`` costs of a file that lies in a prefix for all tables.

        Raises:
            OutsidePlaces: none does, or it lies in the directory of another table.
            OwnersUnknown: nobody can tell whether it does.
        """
        spelled = self._spell(uri)
        if spelled is None:
            raise self._refusal(uri)
        directory, _, _ = spelled.rpartition("/")
        for each in self.prefixes:
            is_right_in = each == f"{directory}/."
            if is_right_in or spelled.startswith(each):
                return each
        for each in self.shared:
            if spelled.startswith(each) and not self._is_others(spelled):
                return each
        raise self._refusal(uri)

    def _spell(self, uri: str) -> str | None:
        """Return a URI as the root spells it where it lies below that; ``None``: it may lead anywhere."""
        try:
            path = path_below(self.root, uri)
        except InvalidLocation:
            return None
        if path is not None:
            return base_uri(self.root) + path
        spelled = full_uri(uri)
        segments = spelled.split("/")
        return None if "." in segments or ".." in segments else spelled

    def _is_others(self, uri: str) -> bool:
        """Whether a file in a prefix for all tables lies in the directory of another table, by name or by a link."""
        if self.storage is None:
            return False
        grounds = Grounds.of(self.storage)
        links = LocalLinks()
        real = links.target(uri)
        names = [uri] if real is None else [uri, real]
        try:
            return any(grounds.are_others(each, self.own) for each in names)
        except OwnersUnknown as error:
            raise OwnersUnknown(f"{uri} was not opened: {error}") from error

    def _refusal(self, uri: str) -> OutsidePlaces:
        named = ", ".join((*self.prefixes, *self.shared)) or "it has none"
        return OutsidePlaces(
            f"{full_uri(uri)} lies outside the places of its table ({named}), or in those of another, so it was not "
            f"opened; the operator may allow it (storage option {ALLOWED_LOCATIONS})"
        )


_OTHERS: Final[WeakKeyDictionary[Storage, dict[str, Storage]]] = WeakKeyDictionary()
"""The storages elsewhere that were opened beside one: what is known of a store that fails serves all of its tables."""


class Located:
    """The storages of files that are named by URIs: those of a lakehouse, or elsewhere by its credentials.

    Once it is that :meth:`of` a table, it gives files in the places of this table, and no others.
    """

    def __init__(
        self,
        storage: Storage,
        places: TablePlaces | None = None,
        former: str = "",
        allowed: Sequence[str] = (),
    ) -> None:
        """Give all files; ``allowed`` are prefixes of the operator beside those of the storage option."""
        self.storage = storage
        self._places = places
        self._former = former
        self._allowed = tuple(allowed)
        self._others = _OTHERS.setdefault(storage, {})

    def of(self, metadata: str, location: str) -> Located:
        """Return those of a table, by the URI of its metadata file and the location that stands in there.

        Where the location is below another root, the table was written there, and its files are here now.
        """
        places = TablePlaces.of(self.storage, metadata)
        former = former_root(self.storage.root, metadata, location)
        return self.within(places, former)

    def within(self, places: TablePlaces, former: str = "") -> Located:
        """Return those of a table with these places."""
        return Located(
            self.storage,
            places,
            former,
            self._allowed,
        )

    def is_own(self, uri: str) -> bool:
        """Whether a file lies below the root of the lakehouse."""
        return path_below(self.storage.root, uri) is not None

    def require(self, uri: str) -> str | None:
        """Return the prefix of the table's places that holds a file. No request. Raises ``OutsidePlaces``."""
        if self._places is None:
            return None
        uri = here(self.storage.root, uri, self._former)
        return self._places.require(uri)

    def write(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Write files of the table, by their URIs. One ``put`` each; they are durable after a barrier.

        Raises:
            OutsidePlaces: one would lie in no place of the table.
            InvalidInput: or not below the root.
        """
        found = []
        for uri, data in files:
            self.require(uri)
            path = path_below(self.storage.root, here(self.storage.root, uri, self._former))
            if path is None:
                raise InvalidInput("its files lie outside the lakehouse, where a rewrite writes nothing")
            found.append((path, data))
        self.storage.write_many(found)

    def find(self, uri: str) -> tuple[Storage, str]:
        """Return the storage of a file, and its path there. No request.

        Others write these URIs. That a pipe or a device is not read is the storage's to see.

        Raises:
            OutsidePlaces: the file does not lie in the places of the table.
            InvalidInput: no storage can hold it.
        """
        uri = here(self.storage.root, uri, self._former)
        inside = path_below(self.storage.root, uri)
        if self._places is None:  # a metadata file lies in the own directory of its table
            prefix = own_directory(self.storage.root, uri) or shared_directory(self.storage.root, uri)
        else:
            prefix = self._places.require(uri)
        if inside is not None:
            base = base_uri(self.storage.root)
            # A link in a directory below tables/ leads nowhere else; in another own directory, only if it is opened.
            is_opened = base.startswith("file:") and prefix is not None and len(prefix) > len(base)
            if not is_opened or OWN.match(inside):
                return self.storage, inside
            uri = base + inside
        uri = full_uri(uri)
        scheme, _, rest = uri.partition("://")
        authority, _, _ = rest.partition("/")
        if scheme == "file" and prefix is not None:
            return self._open_local(uri, prefix.removesuffix("."), is_inside=inside is not None)
        above = f"{scheme}://{authority}/"
        if above not in self._others:
            self._others[above] = open_storage(above, options_for(above, *self.storage.spec()))
            self._others[above].gives_up = True
        return self._others[above], uri.removeprefix(above)

    def _open_local(self, uri: str, prefix: str, *, is_inside: bool) -> tuple[Storage, str]:
        """Return the storage of a local file in one of the table's places, and its path there.

        The storage begins where what the operator chose ends: at the root or an allowed prefix, or right above the
        place where none of them holds it. Up to there directories may be links. From there on no link leads out of the
        place, or to the directory of a table: whoever may write the table may have put it there.
        """
        operators = [base_uri(self.storage.root), *self._allowed, *_prefixes_in(self.storage)]
        above = max((each for each in operators if prefix.startswith(each)), key=len, default="")
        if not above:
            above, _, _ = prefix.rstrip("/").rpartition("/")
            above += "/"
        if prefix != above:
            name = re.escape(prefix.removeprefix(above).rstrip("/"))
            own = rf"({name})/(.+)"
        elif self._places is not None and prefix in self._places.shared:
            own = r"(.+)/([^/]+)"  # each directory in it may be another table's
        else:
            own = r"(?!)"  # matches nothing
        key = f"{above} {own}"
        if key not in self._others:
            directory = Path(above.removeprefix("file://"))
            opened = directory.as_uri()
            storage = LocalStorage(opened, options_for(opened, *self.storage.spec()))
            storage.own = re.compile(own, re.DOTALL)
            storage.gives_up = not is_inside
            self._others[key] = storage
        return self._others[key], uri.removeprefix(above)


def _prefixes_in(storage: Storage) -> list[str]:
    """Return the prefixes of the storage option, for whichever tables."""
    _, options = storage.spec()
    found = []
    for _, prefix in _parse_allowed(options.get(ALLOWED_LOCATIONS) or ""):
        found.append(as_directory(prefix))
    return found
