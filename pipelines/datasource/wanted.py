"""Which objects are wanted: filters on kind, namespace and name, as ranges of keys."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from trinitylake_core.errors import InvalidName
from trinitylake_core.keys import EVERYTHING, KINDS, NAMESPACE, KeyCodec, KeyRange, ObjectName

_COLUMNS: Final = {"kind": "kinds", "namespace": "namespaces", "name": "names"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What each of three columns must be one of; ``None``: anything."""

    kinds: frozenset[str] | None = None
    namespaces: frozenset[str] | None = None
    names: frozenset[str] | None = None

    def narrowed(self, column: str, values: Iterable[object]) -> Wanted | None:
        """Return this with one filter more, or ``None`` where the filter is on another column."""
        field = _COLUMNS.get(column)
        if field is None:
            return None
        found = frozenset(value for value in values if isinstance(value, str))
        before: frozenset[str] | None = getattr(self, field)
        return replace(self, **{field: found if before is None else before & found})

    def ranges(self, codec: KeyCodec) -> list[KeyRange]:
        """Return ranges of keys that hold everything that is wanted, ascending, and as little else as they can."""
        if self.kinds is None and self.namespaces is None:
            return [EVERYTHING]
        found: list[KeyRange] = []
        for kind in KINDS:
            if self.kinds is None or kind in self.kinds:
                found += self._of_kind(codec, kind)
        return found

    def _of_kind(self, codec: KeyCodec, kind: str) -> list[KeyRange]:
        if self.namespaces is None:
            return [codec.range(kind)]
        found: list[KeyRange] = []
        for namespace in self.namespaces:
            with suppress(InvalidName):  # nothing has such a name
                if kind == NAMESPACE:
                    found.append(_single(codec.namespace(namespace)))
                elif self.names is None:
                    found.append(codec.range(kind, namespace))
                else:
                    found += self._named(codec, kind, namespace)
        return sorted(found, key=lambda each: each.lo)

    def _named(self, codec: KeyCodec, kind: str, namespace: str) -> list[KeyRange]:
        found: list[KeyRange] = []
        for name in self.names or ():
            with suppress(InvalidName):
                found.append(_single(codec.encode(ObjectName(kind, namespace, name))))
        return found

    def holds(self, kind: str, namespace: str, name: str | None) -> bool:
        """Whether an object is wanted."""
        return (
            (self.kinds is None or kind in self.kinds)
            and (self.namespaces is None or namespace in self.namespaces)
            and (self.names is None or name in self.names)
        )


def _single(key: str) -> KeyRange:
    return KeyRange(key, key)
