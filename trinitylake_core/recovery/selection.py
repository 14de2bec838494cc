"""Objects that a restore brings back: patterns over names, and the namespaces that they need (format, section 6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from trinitylake_core import diff
from trinitylake_core.catalog import ObjectEntry, codec_of, entries
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.diff import Change
from trinitylake_core.errors import InvalidInput, InvalidName, NamespaceNotEmpty, ObjectNotFound
from trinitylake_core.keys import KINDS, NAMESPACE, TABLE, VIEW, KeyCodec, NameParts, ObjectName, label
from trinitylake_core.recovery.patterns import Pattern, exactly
from trinitylake_core.tree import search
from trinitylake_core.tree.node import Node
from trinitylake_core.versions import Root

"""Kind, namespace, and name of an object: keys may differ between two lakehouses."""


class Side(NamedTuple):
    """A version, and the files of its lakehouse."""

    backend: LakehouseBackend
    root: Root

    @property
    def codec(self) -> KeyCodec:
        """What turns its names into keys."""
        return codec_of(self.backend.definition(self.root), sdk=self.backend.versions.sdk)


class Selection:
    """What a restore takes from the changes between two versions: objects that match, and namespaces that they need.

    Args:
        here: the newest version.
        there: the version that the objects come from, of this lakehouse or another.
        only: patterns.
        exact: drop objects that match and are not in ``there``.
        remember: remember the name of each object that differs, for :meth:`of_one_file`.

    Raises:
        InvalidInput: a pattern may name objects in several namespaces.
    """

    def __init__(
        self,
        here: Side,
        there: Side,
        only: Sequence[str],
        *,
        exact: bool,
        remember: bool = False,
    ) -> None:
        self._here = here
        self._there = there
        self._exact = exact
        self._remember = remember
        self._patterns = [Pattern(text) for text in only]
        _refuse_ambiguous(here, there, self._patterns)
        self._unmatched = set(self._patterns)
        self._found: list[Change] = []
        self._new_namespaces: dict[str, Change] = {}
        """Those of ``there`` that do not exist here, and that nobody asked for."""
        self._differing: set[NameParts] = set()

    def take(self, differing: Iterable[Change]) -> None:
        """Take what is wanted of some of the changes from ``here`` to ``there``."""
        for change in differing:
            if self._remember:
                self._differing.add((change.kind, change.namespace, change.name))
            asking = []
            for pattern in self._patterns:
                if pattern.matches(change.namespace, change.name):
                    asking.append(pattern)
            self._unmatched.difference_update(asking)
            if asking and (self._exact or change.change != diff.REMOVED):
                self._found.append(change)
            elif change.kind == NAMESPACE and change.change == diff.ADDED:
                self._new_namespaces[change.namespace] = change

    def changes(self) -> list[Change]:
        """Return the changes of the restore, once all differences were taken. A few ``get`` for each unmatched pattern.

        Raises:
            ObjectNotFound: a pattern names nothing on either side.
            NamespaceNotEmpty: a namespace would be dropped, but not everything in it.
        """
        unmatched = []
        for pattern in self._patterns:
            if pattern in self._unmatched:
                unmatched.append(pattern)
        self._refuse_unknown(unmatched)
        _refuse_left_behind(self._here, self._found)
        needed = set()
        for change in self._found:
            if change.new_path is not None:
                needed.add(change.namespace)
        missing = sorted(needed & self._new_namespaces.keys())
        return [self._new_namespaces[name] for name in missing] + self._found

    def of_one_file(self) -> Iterator[Change]:
        """Yield the objects that match and have a file of the same name on both sides: all that did not differ."""
        here = self._here
        for index, pattern in enumerate(self._patterns):
            earlier = self._patterns[:index]
            for entry in matching(here.backend.nodes, here.root.node, here.codec, pattern):
                name = (entry.kind, entry.namespace, entry.name)
                if name in self._differing:
                    continue
                if any(other.matches(entry.namespace, entry.name) for other in earlier):
                    continue
                yield Change(
                    diff.CHANGED,
                    *name,
                    key=entry.key,
                    old_path=entry.path,
                    new_path=entry.path,
                )

    def _refuse_unknown(self, patterns: Sequence[Pattern]) -> None:
        """Raise for a pattern that names nothing: a typing error must not pass for success."""
        plain = [pattern for pattern in patterns if pattern.is_plain]
        named = _find_named(self._there, plain) | _find_named(self._here, plain)
        unknown = []
        for pattern in patterns:
            if pattern.is_plain:
                is_known = not named.isdisjoint(pattern.readings())
            else:
                is_known = _matches_something(self._there, pattern) or _matches_something(self._here, pattern)
            if not is_known:
                unknown.append(pattern.text)
        if not unknown:
            return
        here = self._here
        there = self._there
        shown = ", ".join(text or repr(text) for text in unknown)
        root_uri = there.backend.storage.root
        if root_uri == here.backend.storage.root:
            of_other = ""
        else:
            of_other = f" of {root_uri}"
        raise ObjectNotFound(
            f"{shown} names nothing in version {there.root.version}{of_other} nor in version {here.root.version}"
        )


def _matches_something(side: Side, pattern: Pattern) -> bool:
    """Whether a pattern matches an object of a version. Reads as ``matching``."""
    found = matching(side.backend.nodes, side.root.node, side.codec, pattern)
    return next(found, None) is not None


def matching(
    reader: search.NodeReader,
    node: Node,
    codec: KeyCodec,
    pattern: Pattern,
    kinds: Sequence[str] = KINDS,
) -> Iterator[ObjectEntry]:
    """Yield the objects below a root node that a pattern matches, in key order.

    Reads only nodes that hold names with the beginning of the pattern, and as many as the caller takes objects of, with
    a window read ahead.
    """
    for within in pattern.ranges(codec, kinds):
        for entry in entries(reader, node, codec, within):
            if pattern.matches(entry.namespace, entry.name):
                yield entry


def _find_named(side: Side, patterns: Iterable[Pattern]) -> set[ObjectName]:
    """Return the objects of a version that plain patterns may name. One ``get`` for each node on their ways."""
    codec = side.codec
    names = {}
    for pattern in patterns:
        for name in pattern.readings():
            with suppress(InvalidName):  # no object has such a name
                names[codec.encode(name)] = name
    found = search.lookup_many(side.backend.nodes, side.root.node, sorted(names))
    return {names[key] for key in found}


def _refuse_ambiguous(here: Side, there: Side, patterns: Iterable[Pattern]) -> None:
    """Raise if a plain pattern names objects in different namespaces: a guess may be the wrong one."""
    unclear = []
    for each in patterns:
        if each.is_plain and len(each.readings()) > 1:
            unclear.append(each)
    if not unclear:
        return
    named = _find_named(here, unclear) | _find_named(there, unclear)
    for pattern in unclear:
        meant = set()
        for name in pattern.readings():
            if name in named:
                meant.add((name.namespace, name.name or ""))
        if len(meant) > 1:
            raise InvalidInput(f"{pattern.text!r} is ambiguous; write one of {_list_choices(meant)}")


def _list_choices(meant: Iterable[tuple[str, str]]) -> str:
    """Return the patterns that name each of some objects and no other, with what they name."""
    choices = []
    for namespace, name in sorted(meant):
        if name:
            choices.append(f"{exactly(namespace, name)!r} ({name!r} in {namespace!r})")
        else:
            choices.append(f"{exactly(namespace, None)!r} (namespace {namespace!r})")
    return ", ".join(choices)


def _refuse_left_behind(here: Side, changes: Sequence[Change]) -> None:
    """Raise if a namespace is dropped, but not everything in it."""
    dropped = [change for change in changes if change.new_path is None]
    dropped_keys = {change.key for change in dropped}
    for change in dropped:
        if change.kind != NAMESPACE:
            continue
        for entry in _entries_inside(here, change.namespace):
            if entry.key not in dropped_keys:
                raise NamespaceNotEmpty(
                    f"namespace {change.namespace!r} did not exist in that version, but cannot be dropped without "
                    f"{label(entry.namespace, entry.name)!r}, which does not match; add the pattern "
                    f"'{change.namespace}.*'"
                )


def _entries_inside(side: Side, namespace: str) -> Iterator[ObjectEntry]:
    """Yield the tables and the views of a namespace. Reads the nodes that hold them."""
    codec = side.codec
    for kind in (TABLE, VIEW):
        inside = codec.range(kind, namespace)
        yield from entries(side.backend.nodes, side.root.node, codec, inside)
