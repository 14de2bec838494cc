"""The files that a commit adds to tables, and the proof that no cleaning of tables removed them (format, section 6).

A writer may have written its data files long ago, whatever it read since. So where tables were ever cleaned, the
storage is asked for the time of every file that the new metadata refers to and the metadata before does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pyiceberg.exceptions import ValidationError
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from trinitylake_core import clock
from trinitylake_core.commits.fences import CLOCKS_DIFFER_MILLIS, show_time
from trinitylake_core.errors import CommitConflict, Corrupt, FileMissing, InvalidInput, StorageError
from trinitylake_core.file_identity import LocalLinks, ends_in_area
from trinitylake_core.iceberg.errors import TableForbidden
from trinitylake_core.iceberg.names import CatalogName
from trinitylake_core.iceberg.reading.files import read_file
from trinitylake_core.iceberg.reading.references import files_in, manifests_in
from trinitylake_core.storage import Storage
from trinitylake_core.table_places import Located, TablePlaces
from trinitylake_core.tables import area_path, full_uri, path_below
from trinitylake_core.versions import RootRows

_NAMED: Final = 3
_GONE: Final = -1
Parse = Callable[[bytes, str], Iterable[str]]
Refuse = Callable[[CatalogName | None, Iterable[str], TablePlaces], None]


class TableFilesVoid(CommitConflict):
    """Files of this commit were written before the last cleaning of tables. Trying it again does not help."""


@dataclass(frozen=True, slots=True)
class _Added:
    """A metadata file of a commit, and what is in it: that of a table, after the metadata before, or of a view."""

    before: TableMetadata | None
    after: TableMetadata | None
    location: str
    is_own: bool
    is_here: bool
    places: TablePlaces
    name: CatalogName | None

    def new_lists(self) -> set[str]:
        """Return the manifest lists that only the new metadata name; the simulation takes this repair out."""
        return _lists(self.after) - _lists(self.before)

    def parent_lists(self) -> set[str]:
        """Return the manifest lists that the new snapshots were made from."""
        known = _snapshots(self.before)
        parents: set[int | None] = set()
        for number, snapshot in _snapshots(self.after).items():
            if number not in known:
                parents.add(snapshot.parent_snapshot_id)
        return {full_uri(each.manifest_list) for number, each in known.items() if number in parents}


class AddedFiles:
    """What one commit adds to tables."""

    def __init__(self, storage: Storage, refuse: Refuse | None = None, allowed: Sequence[str] = ()) -> None:
        """``refuse`` is called with the name of a table, files that clients add to it, and its places.

        Without a name, if the table had named the files before. It raises ``TableForbidden``. They are opened in these
        places, or in prefixes that are ``allowed``: no link leads out.
        """
        self._storage = storage
        self._refuse = refuse
        self._allowed = allowed
        self._tables_of: dict[str, _Added] = {}
        self._contents: dict[str, list[str] | Exception] = {}
        self._old: set[str] = set()
        self._is_proof = False
        self._located = Located(storage)
        self._tables: list[_Added] = []
        self._paths: set[str] | None = None
        self._stored_at: dict[str, int] = {}
        self._certain: set[str] = set()

    def add(
        self,
        before: TableMetadata | None,
        after: TableMetadata | None,
        location: str,
        *,
        is_own: bool = True,
        known: Iterable[str] = (),
        name: CatalogName | None = None,
    ) -> None:
        """Note a metadata file, with those of a table before and after, of a view with none of both.

        One that lies elsewhere may name files of this lakehouse, which a cleaning marks and removes like all others.

        ``is_own`` means that this commit wrote the file itself; ``known`` are metadata files that the table had.
        """
        is_here = path_below(self._storage.root, location) is not None
        prefixes: list[str] = []
        shared: tuple[str, ...] = ()
        for each in (location, *known):
            own = TablePlaces.of(self._storage, each)
            prefixes += own.prefixes
            shared = own.shared
        distinct = tuple(dict.fromkeys(prefixes))
        places = TablePlaces(self._storage.root, distinct, shared)
        self._tables.append(_Added(before, after, location, is_own, is_here, places, name))
        self._paths = None

    def refuse_outside(self) -> None:
        """Refuse files that clients add and that do not lie in the places of their table; nothing else is asked.

        One ``get`` for each new manifest list, its parent and each manifest in which they differ: two round trips.
        """
        if self._refuse is not None:
            self._is_proof = False
            for _ in self._find_added():
                pass

    def refuse_void(self, base: RootRows) -> None:
        """Refuse files that a cleaning up to ``base`` may have removed.

        No request where tables were never cleaned. Else one ``get`` for each new manifest list, its parent and each
        manifest in which they differ, and one ``head`` for each file that is added: three round trips, all requests of
        one kind side by side. Asked again for a later root, no request.

        Raises:
            TableFilesVoid: one is missing, or older than the last cleaning of tables.
            CommitConflict: only a metadata file that this commit wrote itself is; a new one can be written.
        """
        fence = base.tables_void_before_millis
        if not fence:
            return
        if self._paths is None:
            self._is_proof = True
            self._paths = set(self._find_added())
        unknown = [path for path in self._paths if path not in self._stored_at]
        self._stored_at |= dict(self._storage.map(unknown, self._time_of))
        void = {path for path in self._paths if self._is_void(path, fence)}
        void -= self._kept_by_base(void)
        if not void:
            return
        own = {path_below(self._storage.root, each.location) for each in self._tables if each.is_own}
        kind = CommitConflict if void <= own else TableFilesVoid
        named = ", ".join(self._describe(path) for path in sorted(void)[:_NAMED])
        ahead = fence - clock.now_millis()
        if ahead > CLOCKS_DIFFER_MILLIS:
            raise TableFilesVoid(
                f"the fence of the last cleaning of tables lies in the future: it is {show_time(fence)}, because a "
                "clock was wrong. Until then every commit of a table is refused; `trinitylake mend ROOT` corrects it",
                version=base.version,
            )
        raise kind(
            "files of this commit were written before the last cleaning of tables; write them again "
            f"({len(void)}: {named}). To bring a dropped table back, restore it",
            version=base.version,
        )

    def _is_void(self, path: str, fence: int) -> bool:
        """Whether a file was written before the fence; a missing one was, if it is certain that it is one of ours."""
        stored_at = self._stored_at[path]
        if stored_at == _GONE:
            return path in self._certain
        return stored_at < fence

    def _describe(self, path: str) -> str:
        return f"{path} (missing)" if self._stored_at[path] == _GONE else path

    def _time_of(self, path: str) -> tuple[str, int]:
        try:
            return path, self._storage.info(path).modified_millis
        except FileMissing:
            return path, _GONE

    # -- what is added -------------------------------------------------------------------------

    def _find_added(self) -> Iterator[str]:
        """Yield the paths of files in the cleaned area that are new; of some it is only not known that they are old."""
        new_lists: set[str] = set()
        parent_lists: set[str] = set()
        elsewhere: set[str] = set()
        found: set[str] = set()
        for table in self._tables:
            added = table.new_lists()
            parents = table.parent_lists()
            for uri in (*added, *parents):
                self._note_table(uri, table)
            new_lists |= added
            if not table.is_here:
                elsewhere |= added
            parent_lists |= parents
            found.add(table.location)
            known = _statistics(table.before)
            named = _statistics(table.after)
            found |= named - known
        self._old |= parent_lists
        # What this process cannot read of a table elsewhere stops each cleaning that meets it.
        lenient = parent_lists | elsewhere
        manifests_by_list = dict(self._read(new_lists | parent_lists, manifests_in, lenient=lenient))
        for uri, inner in manifests_by_list.items():
            for each in inner:
                self._note_table(each, self._tables_of[uri])
        newer = _union(manifests_by_list[uri] for uri in new_lists)
        older = _union(manifests_by_list[uri] for uri in parent_lists)
        new_manifests = newer - older
        replaced = older - newer
        self._old |= replaced
        lenient = replaced | _union(manifests_by_list[uri] for uri in elsewhere)
        files_by_manifest = dict(self._read(new_manifests | replaced, _uris_in, lenient=lenient))
        files_named = _union(files_by_manifest[uri] for uri in new_manifests)
        # A manifest that merges or rewrites others names files that its parents have named.
        taken_over = _union(files_by_manifest[uri] for uri in replaced)
        if self._refuse is not None:
            for manifest in new_manifests:
                table = self._tables_of[manifest]
                files = set(files_by_manifest[manifest])
                self._refuse(table.name, files - taken_over, table.places)
        files_added = files_named - taken_over
        return self._in_area(found | new_lists | new_manifests | files_added)

    def _kept_by_base(self, void: set[str]) -> set[str]:
        """Return those paths that the metadata before refers to, from any of its snapshots.

        Only where something would be refused. One ``get`` for each manifest list and manifest of the tables before.
        """
        if not void:
            return set()
        for table in self._tables:
            for uri in _lists(table.before):
                self._note_table(uri, table)
        lists = _union(_lists(each.before) for each in self._tables)
        manifests: set[str] = set()
        for uri, found in self._read(lists, manifests_in, lenient=lists):
            for each in found:
                self._note_table(each, self._tables_of[uri])
            manifests.update(found)
        kept = void.intersection(self._in_area(lists | manifests))
        for _, found in self._read(manifests, _uris_in, lenient=manifests):
            kept |= void.intersection(self._in_area(found))
        return kept

    def _in_area(self, uris: Iterable[str]) -> Iterator[str]:
        """Yield the paths of files in the cleaned area, whichever way their URIs spell them.

        Where a URI does not lie below the root by its text, nor by links of this disk, it may still name a file of the
        area: by another name of the bucket, or with percent signs. Its end is a guess, which counts if there is a file.
        """
        links = LocalLinks()
        for uri in uris:
            path = area_path(self._storage.root, links.target(uri) or full_uri(uri))
            if path is not None:
                self._certain.add(path)
                yield path
            elif path_below(self._storage.root, uri) is None:
                yield from ends_in_area(uri)

    def _note_table(self, uri: str, table: _Added) -> None:
        """Note whose file it is: that of a table in whose places it lies, if there is one."""
        known = self._tables_of.get(uri)
        if known is None or known.places.prefix_of(uri) is None:
            self._tables_of[uri] = table

    def _read(self, uris: set[str], parse: Parse, *, lenient: set[str]) -> Iterator[tuple[str, list[str]]]:
        """Yield what is in files, side by side; of a ``lenient`` one that cannot be read, nothing."""

        def read(uri: str) -> tuple[str, list[str]]:
            if uri not in self._contents:
                self._contents[uri] = self._content(uri, parse)
            found = self._contents[uri]
            if not isinstance(found, Exception):
                return uri, found
            if uri in lenient:
                return uri, []
            if not self._is_proof:
                if isinstance(found, (FileMissing, Corrupt)):
                    raise ValidationError(
                        f"this commit refers to {uri}, which is missing, or is neither a manifest nor a list of them: "
                        "write it before the commit"
                    )
                return uri, []  # what this process cannot reach is for those to judge who can
            raise TableFilesVoid(
                f"this commit refers to {uri}, which is missing or cannot be read ({found}): files of this commit "
                "were written before the last cleaning of tables; write them again"
            ) from found

        self._refuse_unread(uris)
        return self._storage.map(sorted(uris), read)

    def _refuse_unread(self, uris: set[str]) -> None:
        """Refuse files before they are read; what the table has named before is just not read."""
        if self._refuse is None:
            return
        for uri in sorted(uris - self._contents.keys()):
            table = self._tables_of[uri]
            is_old = uri in self._old
            try:
                self._refuse(None if is_old else table.name, [uri], table.places)
            except TableForbidden as error:
                if not is_old:
                    raise
                self._contents[uri] = error
            except InvalidInput as error:
                self._contents[uri] = error

    def _content(self, uri: str, parse: Parse) -> list[str] | Exception:
        """Return what is in a file, or why it is not read. One ``get``. Raises ``StorageError``."""
        places = self._tables_of[uri].places
        if self._refuse is not None:
            places = TablePlaces(self._storage.root, (*places.prefixes, *self._allowed, *places.shared))
        located = self._located.within(places)
        try:
            storage, path = located.find(uri)
            return list(parse(read_file(storage, path, uri), uri))
        except (FileMissing, Corrupt, InvalidInput, StorageError) as error:
            if isinstance(error, StorageError) and self._located.is_own(uri):
                raise
            return error


def _uris_in(data: bytes, location: str) -> Iterable[str]:
    return (each.uri for each in files_in(data, location))


def _snapshots(metadata: TableMetadata | None) -> dict[int, Snapshot]:
    """Return the snapshots of a table by their IDs; none where there is no table."""
    return {} if metadata is None else {each.snapshot_id: each for each in metadata.snapshots}


def _lists(metadata: TableMetadata | None) -> set[str]:
    return {full_uri(each.manifest_list) for each in _snapshots(metadata).values()}


def _statistics(metadata: TableMetadata | None) -> set[str]:
    if metadata is None:
        return set()
    return {full_uri(each.statistics_path) for each in (*metadata.statistics, *metadata.partition_statistics)}


def _union(sets: Iterable[Iterable[str]]) -> set[str]:
    return set().union(*sets)
