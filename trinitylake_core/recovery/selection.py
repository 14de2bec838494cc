"""Objects that a restore brings back: patterns over names, and the namespaces that they need (format, section 6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from trinitylake_core import diff
from trinitylake_core.catalog import ObjectEntry, codec_of, entries
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.diff import Change
from trinitylake_core.errors import InvalidInput, InvalidName, NamespaceNotEmpty, ObjectNotFound
from trinitylake_core.keys import KINDS, NAMESPACE, TABLE, VIEW, KeyCodec, ObjectName, label
from trinitylake_core.recovery.patterns import Pattern, exactly
from trinitylake_core.tree import search
from trinitylake_core.tree.node import Node
from trinitylake_core.versions import Root


class Side(NamedTuple):
    """A version, and the files of its lakehouse."""

    backend: LakehouseBackend
    root: Root

    @property
    def codec(self) -> KeyCodec:
        """What turns its names into keys."""
        return codec_of(self.backend.definition(self.root), sdk=self.backend.versions.sdk)


def to_restore(
    here: Side, there: Side, only: Sequence[str], differing: Iterable[Change], *, exact: bool
) -> list[Change]:
    """Return the changes of a restore: the objects that match, and the missing namespaces that they need.

    Args:
        here: the newest version.
        there: the version that the objects come from, of this lakehouse or another.
        only: patterns.
        differing: the changes from ``here`` to ``there``.
        exact: drop objects that match and are not in ``there``.
    """
    patterns = [Pattern(text) for text in only]
    for pattern in patterns:
        _refuse_ambiguous(here, there, pattern)
    found: list[Change] = []
    gone: dict[str, Change] = {}
    unmatched = set(patterns)
    for change in differing:
        matching = [pattern for pattern in patterns if pattern.matches(change.namespace, change.name)]
        unmatched.difference_update(matching)
        if matching and (exact or change.change != diff.REMOVED):
            found.append(change)
        elif change.kind == NAMESPACE and change.change == diff.ADDED:
            gone[change.namespace] = change
    _refuse_unknown(here, there, [pattern for pattern in patterns if pattern in unmatched])
    _refuse_left_behind(here, found)
    needed = {change.namespace for change in found if change.new_path is not None}
    return [gone[name] for name in sorted(needed & gone.keys())] + found


def _refuse_unknown(here: Side, there: Side, patterns: Sequence[Pattern]) -> None:
    """Raise for a pattern that names nothing: a typing error must not pass for success."""
    unknown = [each.text for each in patterns if not any(_names(side, each) for side in (there, here))]
    if unknown:
        named = ", ".join(each or repr(each) for each in unknown)
        where = "" if there.backend.storage.root == here.backend.storage.root else f" of {there.backend.storage.root}"
        raise ObjectNotFound(
            f"{named} names nothing in version {there.root.version}{where} nor in version {here.root.version}"
        )


def _names(side: Side, pattern: Pattern) -> bool:
    """Whether a pattern matches an object of a version. A few ``get`` for a plain name; else as ``matching``."""
    if pattern.is_plain:
        return next(_find_named(side, pattern), None) is not None
    return next(matching(side.backend.nodes, side.root.node, side.codec, pattern), None) is not None


def matching(
    reader: search.NodeReader, node: Node, codec: KeyCodec, pattern: Pattern, kinds: Sequence[str] = KINDS
) -> Iterator[ObjectEntry]:
    """Yield the objects below a root node that a pattern matches, in key order.

    Reads only nodes that hold names with the beginning of the pattern, and as many as the caller takes objects of, with
    a window read ahead.
    """
    for within in pattern.ranges(codec, kinds):
        for entry in entries(reader, node, codec, within):
            if pattern.matches(entry.namespace, entry.name):
                yield entry


def _find_named(side: Side, pattern: Pattern) -> Iterator[ObjectName]:
    """Yield the objects of a version that a plain pattern names. A few ``get`` each."""
    for name in pattern.readings():
        try:
            key = side.codec.encode(name)
        except InvalidName:
            continue
        if search.lookup(side.backend.nodes, side.root.node, key) is not None:
            yield name


def _refuse_ambiguous(here: Side, there: Side, pattern: Pattern) -> None:
    """Raise if a plain pattern names objects in different namespaces: a guess may be the wrong one."""
    if not pattern.is_plain or len(list(pattern.readings())) < 2:
        return
    meant = {(name.namespace, name.name) for side in (there, here) for name in _find_named(side, pattern)}
    if len(meant) > 1:
        named = ", ".join(
            f"{exactly(namespace, name)!r} ({f'namespace {namespace!r}' if not name else f'{name!r} in {namespace!r}'})"
            for namespace, name in sorted(meant, key=lambda each: (each[0], each[1] or ""))
        )
        raise InvalidInput(f"{pattern.text!r} is ambiguous; write one of {named}")


def _refuse_left_behind(here: Side, changes: Sequence[Change]) -> None:
    """Raise if a namespace is dropped, but not everything in it."""
    codec, store, node = here.codec, here.backend.nodes, here.root.node
    dropped = {change.key for change in changes if change.new_path is None}
    for change in changes:
        if change.kind == NAMESPACE and change.new_path is None:
            ranges = [codec.range(kind, change.namespace) for kind in (TABLE, VIEW)]
            inside = [each for within in ranges for each in entries(store, node, codec, within)]
            if left := [each for each in inside if each.key not in dropped]:
                raise NamespaceNotEmpty(
                    f"namespace {change.namespace!r} did not exist in that version, but cannot be dropped without "
                    f"{label(left[0].namespace, left[0].name)!r}, which does not match; add the pattern "
                    f"'{change.namespace}.*'"
                )
