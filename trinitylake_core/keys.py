"""Object names and object keys (format, section 3).

Keys are compared as UTF-8 bytes; Python compares ``str`` by code point, which is the same order.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from trinitylake_core import spec
from trinitylake_core.errors import InvalidInput, InvalidName

NAMESPACE: Final = "namespace"
TABLE: Final = "table"
VIEW: Final = "view"
KINDS: Final = (NAMESPACE, TABLE, VIEW)

_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f]")
_DIGITS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_LAST: Final = "\U0010ffff"
_SDK_TRIMMED: Final = "".join(map(chr, range(0x21)))


def encode_schema_id(schema_id: int) -> str:
    """Return a schema ID as four base64 digits: 1 → ``B===``, 64 → ``BA==``."""
    if not 0 <= schema_id < 64**4:
        raise InvalidInput(f"schema ID {schema_id} does not fit into four base64 digits")
    digits = ""
    while schema_id or not digits:
        schema_id, digit = divmod(schema_id, 64)
        digits = _DIGITS[digit] + digits
    return digits.ljust(4, "=")


_PREFIX: Final = {
    NAMESPACE: encode_schema_id(spec.SCHEMA_NAMESPACE),
    TABLE: encode_schema_id(spec.SCHEMA_TABLE),
    VIEW: encode_schema_id(spec.SCHEMA_VIEW),
}
_KIND: Final = {prefix: kind for kind, prefix in _PREFIX.items()}


def is_object_key(key: str) -> bool:
    """Whether a key starts like an object key (not whether it is well formed)."""
    return key[:4] in _KIND


def label(namespace: str, name: str | None) -> str:
    """Return the name of an object for people: ``sales`` for a namespace, ``sales.orders`` for what is in it."""
    return namespace if name is None else f"{namespace}.{name}"


NameParts: TypeAlias = tuple[str, str, str | None]
"""Kind, namespace and name of an object; no name of a namespace itself."""


@dataclass(frozen=True, slots=True, order=True)
class ObjectName:
    """A decoded object key. ``name`` is ``None`` for a namespace itself."""

    kind: str
    namespace: str
    name: str | None = None

    def __str__(self) -> str:
        return label(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class KeyRange:
    """All keys with ``lo <= key <= hi``."""

    lo: str
    hi: str

    def __contains__(self, key: str) -> bool:
        return self.lo <= key <= self.hi


EVERYTHING: Final = KeyRange("", _LAST)


def refuse_new_name(kind: str, name: str) -> None:
    """Raise ``InvalidName`` for the name of a new object that people take for another name.

    It holds an invisible character, or is not in Unicode's form NFC. Names that exist stay as they are.
    """
    if name.isascii():
        return
    for character in name:
        if unicodedata.category(character) == "Cf":
            raise InvalidName(f"{kind} name {name!r} holds the invisible character U+{ord(character):04X}")
    if not unicodedata.is_normalized("NFC", name):
        raise InvalidName(f"{kind} name {name!r} is not in Unicode's form NFC, so that people take it for another name")


@dataclass(frozen=True, slots=True)
class KeyCodec:
    """Turns names into keys and back, for the name sizes of one lakehouse.

    ``utf16`` counts sizes in UTF-16 units instead of bytes, as the published Java SDK does.
    """

    namespace_size: int
    table_size: int
    view_size: int
    utf16: bool = False

    def namespace(self, namespace: str) -> str:
        """Return the key of a namespace. Raises ``InvalidName``."""
        return _PREFIX[NAMESPACE] + self._pad_name(NAMESPACE, namespace, self.namespace_size)

    def table(self, namespace: str, name: str) -> str:
        """Return the key of a table. Raises ``InvalidName``."""
        return self._object(TABLE, namespace, name)

    def view(self, namespace: str, name: str) -> str:
        """Return the key of a view. Raises ``InvalidName``."""
        return self._object(VIEW, namespace, name)

    def encode(self, name: ObjectName) -> str:
        """Return the key of a decoded name. Raises ``InvalidName``."""
        if name.kind == NAMESPACE:
            return self.namespace(name.namespace)
        return self._object(name.kind, name.namespace, name.name)

    def _object(self, kind: str, namespace: str, name: str | None) -> str:
        padded_namespace = self._pad_name(NAMESPACE, namespace, self.namespace_size)
        padded_name = self._pad_name(kind, name, self._name_size(kind))
        return _PREFIX[kind] + padded_namespace + padded_name

    def range(self, kind: str | None = None, namespace: str | None = None) -> KeyRange:
        """Return the range of all objects of a kind, or of a kind in one namespace."""
        if kind is None:
            return EVERYTHING
        lo = _PREFIX[kind]
        if namespace is not None:
            lo += self._pad_name(NAMESPACE, namespace, self.namespace_size)
        return self._upwards(lo)

    def beginning(self, prefix: str, kind: str = NAMESPACE, namespace: str | None = None) -> KeyRange:
        """Return the range of all objects of a kind in namespaces whose names begin with ``prefix``.

        With ``namespace`` that of the tables, or views, in it whose own names begin so. Raises ``InvalidName``.
        """
        first = self.range(kind, namespace).lo
        return self._upwards(first + prefix)

    def _upwards(self, lo: str) -> KeyRange:
        """Return the range of all keys that begin with ``lo``."""
        longest = max(self.namespace_size, self.table_size, self.view_size)
        return KeyRange(lo, lo + _LAST * (longest + 1))

    def decode(self, key: str) -> ObjectName:
        """Return the name in a key.

        Raises ``InvalidName``: the key is not a well-formed object key of this lakehouse (invariant I11).
        """
        kind, namespace, name = self.parts(key)
        return ObjectName(kind, namespace, name)

    def parts(self, key: str) -> NameParts:
        """Return kind, namespace and name in a key, proved. Raises ``InvalidName`` as :meth:`decode`."""
        return self._plain(key) or self._split_proved(key)

    def well_formed(self, keys: Iterable[str]) -> bool:
        """Whether all keys are plainly well formed; after ``False``, :meth:`decode` decides."""
        return all(map(self._plain, keys))

    def _plain(self, key: str) -> NameParts | None:
        """Return the parts of a well-formed key in ASCII, which nearly all are: four times as fast."""
        kind = _KIND.get(key[:4])
        if self.utf16 or kind is None or not key.isascii() or not key.isprintable():
            return None
        cut = 4 + self.namespace_size
        if len(key) != cut + self._name_size(kind):
            return None
        namespace = key[4:cut].rstrip(" ")
        name = key[cut:].rstrip(" ")
        if not namespace or " " in namespace or " " in name:
            return None
        if kind == NAMESPACE:
            return kind, namespace, None
        if not name:
            return None
        return kind, namespace, name

    def _split_proved(self, key: str) -> NameParts:
        kind = _KIND.get(key[:4])
        if kind is None:
            raise InvalidName(f"key {key!r} does not start with a known schema ID")
        padded_namespace, padded_name = self._cut(key, kind)
        if self.utf16:  # the Java SDK proves nothing of its names, and so neither do we
            namespace = padded_namespace.strip(_SDK_TRIMMED)
            name = padded_name.strip(_SDK_TRIMMED)
            return kind, namespace, None if kind == NAMESPACE else name
        namespace = padded_namespace.rstrip(" ")
        name_or_none = None if kind == NAMESPACE else padded_name.rstrip(" ")
        if self.encode(ObjectName(kind, namespace, name_or_none)) != key:
            raise InvalidName(f"key {key!r} is not padded as the format demands")
        return kind, namespace, name_or_none

    def split(self, key: str) -> NameParts:
        """Return kind, namespace and name in a key, fast: plain keys of a sound lakehouse are not proved again."""
        kind = _KIND.get(key[:4])
        if self.utf16 or kind is None or not key.isascii():
            return self._split_proved(key)
        cut = 4 + self.namespace_size
        namespace = key[4:cut].rstrip(" ")
        name = key[cut:].rstrip(" ")
        return kind, namespace, name or None

    def names_in(self, keys: Sequence[str]) -> list[str]:
        """Return the names in keys of tables, or of views, of one namespace, as :meth:`split` returns them."""
        if self.utf16 or not "".join(keys).isascii():
            names = []
            for key in keys:
                _, _, name = self.split(key)
                names.append(name or "")
            return names
        cut = 4 + self.namespace_size
        return [key[cut:].rstrip(" ") for key in keys]

    def homes(self, keys: Iterable[str]) -> dict[tuple[str, str], int]:
        """Return the number of keys of each kind and namespace, fast. REQUIRES :meth:`well_formed` keys."""
        cut = 4 + self.namespace_size
        counts = Counter([key[:cut] for key in keys])
        found = {}
        for home, count in counts.items():
            kind = _KIND[home[:4]]
            namespace = home[4:].rstrip(" ")
            found[kind, namespace] = count
        return found

    def _cut(self, key: str, kind: str) -> tuple[str, str]:
        """Return the padded namespace and the padded name in a key; the latter is empty in that of a namespace."""
        size = self.namespace_size
        total = size + self._name_size(kind)
        encoding, unit = ("utf-16-le", 2) if self.utf16 else ("utf-8", 1)
        body = key[4:]
        data = body.encode(encoding)
        length = len(data) // unit
        cut = size * unit
        try:
            namespace = data[:cut].decode(encoding)
            name = data[cut:].decode(encoding)
        except UnicodeDecodeError:
            raise InvalidName(f"key {key!r} cuts a character in two") from None
        if length != total:
            raise InvalidName(f"key {key!r} is {length} long after its schema ID instead of {total}")
        return namespace, name

    def _name_size(self, kind: str) -> int:
        """Return the length of the part of a key behind the namespace, by kind."""
        if kind == TABLE:
            return self.table_size
        if kind == VIEW:
            return self.view_size
        return 0

    def _pad_name(self, kind: str, name: str | None, size: int) -> str:
        if not name or not isinstance(name, str):
            raise InvalidName(f"a {kind} name must be a non-empty string, not {name!r}")
        forbidden = None if self.utf16 else _FORBIDDEN.search(name)
        if forbidden is not None:
            raise InvalidName(f"{kind} name {name!r} holds the forbidden character U+{ord(forbidden[0]):04X}")
        length = len(name)
        if not name.isascii():
            try:
                length = self._measure(name)
            except UnicodeEncodeError:
                raise InvalidName(f"{kind} name {name!r} is not valid Unicode") from None
        if length > size:
            unit = "UTF-16 units" if self.utf16 else "bytes"
            raise InvalidName(f"{kind} name {name!r} is {length} {unit} long; this lakehouse allows {size}")
        return name + " " * (size - length)

    def _measure(self, name: str) -> int:
        if self.utf16:
            return len(name.encode("utf-16-le")) // 2
        return len(name.encode())
