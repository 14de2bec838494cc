"""Which objects a restore brings back: patterns over names, and what they need (format, section 6)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from trinitylake_core import diff
from trinitylake_core.catalog import codec_of, entries
from trinitylake_core.commits.files import Files
from trinitylake_core.diff import Change
from trinitylake_core.errors import InvalidName, NamespaceNotEmpty, ObjectNotFound
from trinitylake_core.keys import NAMESPACE, TABLE, VIEW, KeyCodec, ObjectName
from trinitylake_core.tree import search as tree
from trinitylake_core.versions import Root


class Side(NamedTuple):
    """A version, and the files of its lakehouse."""

    files: Files
    root: Root

    @property
    def codec(self) -> KeyCodec:
        """What turns its names into keys."""
        return codec_of(self.files.definition(self.root), sdk=self.files.versions.sdk)


def to_restore(
    here: Side, there: Side, only: Sequence[str], differing: Iterable[Change], *, exact: bool
) -> list[Change]:
    """Return what a restore changes: what matches, and the namespaces that it needs and that are gone.

    Args:
        here: the newest version.
        there: the version that the objects come from, of this lakehouse or another.
        only: patterns.
        differing: what changed from ``here`` to ``there``.
        exact: drop what matches and is not there.
    """
    patterns = [(pattern, _compiled(pattern)) for pattern in only]
    found: list[Change] = []
    gone: dict[str, Change] = {}
    unmatched = set(only)
    for change in differing:
        label = label_of(change.namespace, change.name)
        matching = [pattern for pattern, compiled in patterns if compiled.fullmatch(label)]
        unmatched.difference_update(matching)
        if matching and (exact or change.change != diff.REMOVED):
            found.append(change)
        elif change.kind == NAMESPACE and change.change == diff.ADDED:
            gone[change.namespace] = change
    _refuse_unknown(here, there, [(pattern, each) for pattern, each in patterns if pattern in unmatched])
    _refuse_left_behind(here, found)
    needed = {change.namespace for change in found if change.new_path is not None}
    return [gone[name] for name in sorted(needed & gone.keys())] + found


def _compiled(pattern: str) -> re.Pattern[str]:
    parts = {"*": ".*", "?": "."}
    return re.compile("".join(parts.get(character) or re.escape(character) for character in pattern), re.DOTALL)


def label_of(namespace: str, name: str | None) -> str:
    """Return the name that patterns match: ``namespace`` or ``namespace.name``."""
    return namespace if name is None else f"{namespace}.{name}"


def _refuse_unknown(here: Side, there: Side, patterns: Sequence[tuple[str, re.Pattern[str]]]) -> None:
    """Raise for a pattern that names nothing: a typing error must not look like success."""
    unknown = [pattern for pattern, each in patterns if not any(_names(side, pattern, each) for side in (there, here))]
    if unknown:
        named = ", ".join(each or repr(each) for each in unknown)
        where = "" if there.files.storage.root == here.files.storage.root else f" of {there.files.storage.root}"
        raise ObjectNotFound(
            f"{named} names nothing in version {there.root.version}{where} nor in version {here.root.version}"
        )


def _names(side: Side, pattern: str, compiled: re.Pattern[str]) -> bool:
    """Whether a pattern matches an object of a version. A few ``get`` for a plain name, else up to all nodes."""
    store, node, codec = side.files.store, side.root.node, side.codec
    if "*" in pattern or "?" in pattern:
        found = entries(store, node, codec)
        return any(compiled.fullmatch(label_of(each.namespace, each.name)) for each in found)
    return any(tree.search(store, node, key) is not None for key in _keys(codec, pattern))


def _keys(codec: KeyCodec, label: str) -> Iterator[str]:
    """Yield every key that a label may mean: names may hold dots, so every dot may be the one."""
    dots = [index for index, character in enumerate(label) if character == "."]
    readings = [ObjectName(NAMESPACE, label)]
    readings += [ObjectName(kind, label[:dot], label[dot + 1 :]) for dot in dots for kind in (TABLE, VIEW)]
    for name in readings:
        try:
            yield codec.encode(name)
        except InvalidName:
            continue


def _refuse_left_behind(here: Side, changes: Sequence[Change]) -> None:
    """Raise if a namespace is dropped, but not everything in it."""
    codec, store, node = here.codec, here.files.store, here.root.node
    dropped = {change.key for change in changes if change.new_path is None}
    for change in changes:
        if change.kind == NAMESPACE and change.new_path is None:
            ranges = [codec.range(kind, change.namespace) for kind in (TABLE, VIEW)]
            inside = [each for within in ranges for each in entries(store, node, codec, within)]
            if left := [each for each in inside if each.key not in dropped]:
                raise NamespaceNotEmpty(
                    f"namespace {change.namespace!r} did not exist in that version, but cannot be dropped without "
                    f"{label_of(left[0].namespace, left[0].name)!r}, which does not match; add the pattern "
                    f"'{change.namespace}.*'"
                )
