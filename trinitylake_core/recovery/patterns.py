r"""Patterns over the names of objects: ``sales.orders``, ``sales.*``, or ``sales`` for the namespace itself.

``*`` stands for any text, ``?`` for one character. Names may hold dots, stars and question marks: a backslash takes
the next character as it is, and in a pattern with a backslash a bare dot is the one between namespace and name. So
``\*`` is a namespace of that name, and ``a\.b.c`` is ``c`` in the namespace ``a.b``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from trinitylake_core.errors import InvalidInput, InvalidName
from trinitylake_core.keys import KINDS, NAMESPACE, TABLE, VIEW, KeyCodec, KeyRange, ObjectName

T = TypeVar("T")
_BETWEEN = "\0"
"""What stands between namespace and name in the text that is matched: no name can hold it."""
_SPECIAL = frozenset("\\.*?")
NOT_PLAIN = frozenset("\\*?")
"""The characters that make a text more than a name."""
_WILD = frozenset({("*", True), ("?", True)})


class Pattern:
    """A pattern. Raises ``InvalidInput`` for a backslash at its end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._strict = "\\" in text
        self._parts = list(self._read(text))
        self.is_plain = _WILD.isdisjoint(self._parts)
        """Whether it names one object, without ``*`` and ``?``."""
        if self._strict:
            dot = re.escape(_BETWEEN)
        else:
            dot = f"[.{_BETWEEN}]"
        special = {("*", True): ".*", ("?", True): ".", (".", True): dot}
        expression = ""
        for part in self._parts:
            character, _ = part
            expression += special.get(part, re.escape(character))
        self._compiled = re.compile(expression, re.DOTALL)

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

    def matches(self, namespace: str, name: str | None) -> bool:
        """Whether an object has a name that this is a pattern of."""
        if name is None:
            whole = namespace
        else:
            whole = f"{namespace}{_BETWEEN}{name}"
        return self._compiled.fullmatch(whole) is not None

    def covers(self, other: str) -> bool:
        """Whether this surely matches all that another pattern matches; never with a ``?`` or a backslash."""
        if "?" in self.text or "\\" in self.text:
            return False
        return self._compiled.fullmatch(other) is not None

    def readings(self) -> list[ObjectName]:
        """Return every object that a plain pattern may mean: without a backslash each dot may be the one."""
        text = "".join(character for character, _ in self._parts)
        dots = []
        for index, part in enumerate(self._parts):
            if part == (".", True):
                dots.append(index)
        found = []
        if not dots or not self._strict:
            found.append(ObjectName(NAMESPACE, text))
        if self._strict and len(dots) > 1:
            return found
        for dot in dots:
            namespace = text[:dot]
            name = text[dot + 1 :]
            found += [ObjectName(TABLE, namespace, name), ObjectName(VIEW, namespace, name)]
        return found

    def ranges(self, codec: KeyCodec, kinds: Sequence[str] = KINDS) -> Iterator[KeyRange]:
        """Yield ranges of keys that hold all objects of some kinds that this matches: none twice, in key order."""
        if codec.utf16:  # such names may begin with spaces, which no pattern shows
            yield from map(codec.range, kinds)
            return
        start = []
        dots = []
        for index, part in enumerate(self._parts):
            if part in _WILD:
                break
            if part == (".", True):
                dots.append(index)
            start.append(part)
        text = "".join(character for character, _ in start)
        for kind in kinds:
            if kind != NAMESPACE:
                for dot in dots:
                    with suppress(InvalidName):  # no object has such a name
                        yield codec.beginning(text[dot + 1 :], kind, text[:dot])
            if not (self._strict and dots):
                yield codec.beginning(text, kind)


def first_match(
    patterns: Iterable[tuple[Pattern, T]],
    namespace: str,
    name: str,
    otherwise: T,
) -> T:
    """Return the value of the first pattern that matches a table or view."""
    for pattern, value in patterns:
        if pattern.matches(namespace, name):
            return value
    return otherwise


def exactly(namespace: str, name: str | None) -> str:
    """Return the pattern that names one object and no other."""
    escaped_namespace = _escape(namespace)
    if name is None:
        # With a backslash anywhere a bare dot is the one between namespace and name.
        if escaped_namespace == namespace:
            return f"\\{namespace}"
        return escaped_namespace
    escaped_name = _escape(name)
    if (escaped_namespace, escaped_name) == (namespace, name):
        return f"{namespace}.\\{name}"
    return f"{escaped_namespace}.{escaped_name}"


def _escape(text: str) -> str:
    escaped = []
    for character in text:
        if character in _SPECIAL:
            escaped.append("\\")
        escaped.append(character)
    return "".join(escaped)
