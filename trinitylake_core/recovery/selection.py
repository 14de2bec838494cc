"""Objects that a restore brings back: patterns over names, and the namespaces that they need (format, section 6)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import NamedTuple

from trinitylake_core import diff
from trinitylake_core.catalog import ObjectEntry, codec_of, entries
from trinitylake_core.commits.files import LakehouseStore
from trinitylake_core.diff import Change
from trinitylake_core.errors import InvalidInput, InvalidName, NamespaceNotEmpty, ObjectNotFound
from trinitylake_core.keys import KINDS, NAMESPACE, TABLE, VIEW, KeyCodec, KeyRange, ObjectName
from trinitylake_core.tree import search
from trinitylake_core.tree.node import Node
from trinitylake_core.versions import Root

# -- patterns --------------------------------------------------------------------------------------
#
# ``*`` stands for any text, ``?`` for one character. Names may hold dots, stars and question marks: a backslash takes
# the next character as it is, and in a pattern with a backslash a bare dot is the one between namespace and name. So
# ``\*`` is a namespace of that name, and ``a\.b.c`` is ``c`` in the namespace ``a.b``.

_BETWEEN = "\0"
"""What stands between namespace and name in the text that is matched: no name can hold it."""
_SPECIAL = frozenset("\\.*?")
NOT_PLAIN = frozenset("\\*?")
"""What a text holds that says more than a name."""
_WILD = frozenset({("*", True), ("?", True)})


class Pattern:
    """A pattern. Raises ``InvalidInput`` for a backslash at its end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._strict = "\\" in text
        self._parts = list(self._read(text))
        self.is_plain = _WILD.isdisjoint(self._parts)
        """Whether it names one object, without ``*`` and ``?``."""
        self._compiled = re.compile("".join(map(self._regex, self._parts)), re.DOTALL)

    @staticmethod
    def _read(text: str) -> Iterator[tuple[str, bool]]:
        """Yield each character, and whether it stands bare."""
        characters = iter(text)
        for character in characters:
            if character != "\\":
                yield character, True
                continue
            taken = next(characters, None)
            if taken is None:
                raise InvalidInput(f"the pattern {text!r} ends in a backslash; write two for one in a name")
            yield taken, False

    def _regex(self, part: tuple[str, bool]) -> str:
        character, bare = part
        special = {"*": ".*", "?": ".", ".": re.escape(_BETWEEN) if self._strict else f"[.{_BETWEEN}]"}
        return special.get(character, re.escape(character)) if bare else re.escape(character)

    def matches(self, namespace: str, name: str | None) -> bool:
        """Whether an object has a name that this is a pattern of."""
        whole = namespace if name is None else f"{namespace}{_BETWEEN}{name}"
        return self._compiled.fullmatch(whole) is not None

    def readings(self) -> Iterator[ObjectName]:
        """Yield every object that a plain pattern may mean: where dots are not told apart, each may be the one."""
        text = "".join(character for character, _ in self._parts)
        dots = [at for at, (character, bare) in enumerate(self._parts) if character == "." and bare]
        if not (self._strict and dots):
            yield ObjectName(NAMESPACE, text)
        for dot in dots if not self._strict or len(dots) == 1 else ():
            for kind in (TABLE, VIEW):
                yield ObjectName(kind, text[:dot], text[dot + 1 :])

    def ranges(self, codec: KeyCodec, kinds: Sequence[str] = KINDS) -> Iterator[KeyRange]:
        """Yield ranges of keys that hold all objects of some kinds that this matches: none twice, in key order."""
        if codec.utf16:  # such names may begin with spaces, which no pattern shows
            yield from map(codec.range, kinds)
            return
        start = list(takewhile(lambda part: part not in _WILD, self._parts))
        text = "".join(character for character, _ in start)
        dots = [at for at, part in enumerate(start) if part == (".", True)]
        for kind in kinds:
            for dot in dots if kind != NAMESPACE else ():
                with suppress(InvalidName):  # no object has such a name
                    yield codec.beginning(text[dot + 1 :], kind, text[:dot])
            if not (self._strict and dots):
                yield codec.beginning(text, kind)


def exactly(namespace: str, name: str | None) -> str:
    """Return the pattern that names one object and no other."""
    sides = ["".join(f"\\{each}" if each in _SPECIAL else each for each in side) for side in (namespace, name or "")]
    if name is None:
        return sides[0] if sides[0] != namespace else f"\\{namespace}"
    return ".".join(sides) if sides != [namespace, name] else f"{namespace}.\\{name}"


class Side(NamedTuple):
    """A version, and the files of its lakehouse."""

    files: LakehouseStore
    root: Root

    @property
    def codec(self) -> KeyCodec:
        """What turns its names into keys."""
        return codec_of(self.files.definition(self.root), sdk=self.files.versions.sdk)


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


def label_of(namespace: str, name: str | None) -> str:
    """Return the name of an object for people: ``namespace`` or ``namespace.name``."""
    return namespace if name is None else f"{namespace}.{name}"


def _refuse_unknown(here: Side, there: Side, patterns: Sequence[Pattern]) -> None:
    """Raise for a pattern that names nothing: a typing error must not look like success."""
    unknown = [each.text for each in patterns if not any(_names(side, each) for side in (there, here))]
    if unknown:
        named = ", ".join(each or repr(each) for each in unknown)
        where = "" if there.files.storage.root == here.files.storage.root else f" of {there.files.storage.root}"
        raise ObjectNotFound(
            f"{named} names nothing in version {there.root.version}{where} nor in version {here.root.version}"
        )


def _names(side: Side, pattern: Pattern) -> bool:
    """Whether a pattern matches an object of a version. A few ``get`` for a plain name; else as ``matching``."""
    if pattern.is_plain:
        return next(_meant(side, pattern), None) is not None
    return next(matching(side.files.store, side.root.node, side.codec, pattern), None) is not None


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


def _meant(side: Side, pattern: Pattern) -> Iterator[ObjectName]:
    """Yield the objects of a version that a plain pattern names. A few ``get`` each."""
    for name in pattern.readings():
        try:
            key = side.codec.encode(name)
        except InvalidName:
            continue
        if search.lookup(side.files.store, side.root.node, key) is not None:
            yield name


def _refuse_ambiguous(here: Side, there: Side, pattern: Pattern) -> None:
    """Raise if a plain pattern names objects in different namespaces: a guess may be the wrong one."""
    if not pattern.is_plain or len(list(pattern.readings())) < 2:
        return
    meant = {(name.namespace, name.name) for side in (there, here) for name in _meant(side, pattern)}
    if len(meant) > 1:
        named = ", ".join(
            f"{exactly(namespace, name)!r} ({f'namespace {namespace!r}' if not name else f'{name!r} in {namespace!r}'})"
            for namespace, name in sorted(meant, key=lambda each: (each[0], each[1] or ""))
        )
        raise InvalidInput(f"{pattern.text!r} is ambiguous; write one of {named}")


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
