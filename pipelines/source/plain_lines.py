"""Lines of JSON that create tables of plain columns and differ in their names only, as most lines of a load do.

    {"create_table": {"namespace": "sales", "name": "orders", "schema": [{"name": "id", "type": "bigint"}]}}

What follows the names of a table is parsed, checked and encoded once, and from then on recognised by its bytes. Every
other line, and every wrong one, is left to the parser of JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pipelines.source.entries import WrittenChange, parse_change
from trinitylake_core.definitions import encoded_table
from trinitylake_core.errors import InvalidInput

_ACTION: Final = "create_table"
_NAME: Final = rb'"([A-Za-z0-9_.-]+)"'
"""A name that stands in JSON as it is."""
_LINE: Final = re.compile(
    rb'\{\s*"create_table"\s*:\s*\{\s*"namespace"\s*:\s*' + _NAME + rb'\s*,\s*"name"\s*:\s*' + _NAME + rb"(.*)",
    re.DOTALL,
)
_MARK: Final = "_"
"""What stands in the place of both names where the rest of a line is parsed alone. No argument has this name."""
_MOST: Final = 256
"""So many different rests are remembered."""


class PlainTable(NamedTuple):
    """A new table: its names, and the file of its definition."""

    namespace: str
    name: str
    data: bytes


class PlainLines:
    """Parses lines of one source, by what it has seen of them."""

    def __init__(self, parse: Callable[[bytes], Any]) -> None:
        """``parse`` returns the value of a line of JSON, or raises ``InvalidInput``."""
        self._parse = parse
        self._seen: set[bytes] = set()
        self._parts: dict[bytes, tuple[bytes, bytes] | None] = {}

    def parse(self, line: bytes) -> PlainTable | None:
        """Return the table that a line creates; ``None`` if it is not a plain one, or the first of its kind."""
        match = _LINE.fullmatch(line)
        if match is None:
            return None
        namespace, name, rest = match.groups()
        parts = self._parts.get(rest)
        if parts is None:
            parts = self._learn(rest)
            if parts is None:
                return None
        return PlainTable(namespace.decode(), name.decode(), encoded_table(*parts))

    def _learn(self, rest: bytes) -> tuple[bytes, bytes] | None:
        """Return the parts of a definition that the rest of a line stands for, once there is a second such line."""
        if rest in self._parts:
            return None
        if rest not in self._seen:
            if len(self._seen) < _MOST:
                self._seen.add(rest)
            return None
        parts = self._parts_of(rest)
        self._parts[rest] = parts
        return parts

    def _parts_of(self, rest: bytes) -> tuple[bytes, bytes] | None:
        line = b'{"%b": {"%b": 0%b' % (_ACTION.encode(), _MARK.encode(), rest)
        try:
            if not _has_no_names(json.loads(line, object_pairs_hook=list)):
                return None
            arguments = self._parse(line)[_ACTION]
            del arguments[_MARK]
            value = {_ACTION: {"namespace": _MARK, "name": _MARK, **arguments}}
            change: WrittenChange = parse_change("the entry", value)
        except (InvalidInput, ValueError, RecursionError):
            return None
        return change.plain_parts()


def _has_no_names(pairs: Any) -> bool:
    """Whether a line, its objects as lists of pairs, is one action; and the mark, but no name, stands in it once.

    In JSON the last of two equal names counts: a rest could name another table than the one before it.
    """
    if len(pairs) != 1:
        return False
    ((_, arguments),) = pairs
    names = [name for name, _ in arguments]
    return names.count(_MARK) == 1 and "namespace" not in names and "name" not in names
